"""Databases for tests: create, clone, drop."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

__all__ = ["create_database", "drop_database", "fresh_database", "with_database"]


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _run(url: str, statement: sql.Composed) -> None:
    parameters = {**conninfo_to_dict(url), "dbname": "postgres"}
    with psycopg.connect(**parameters, autocommit=True) as connection:
        connection.execute(statement)


def create_database(url: str, name: str, *, template: str = "template1") -> None:
    """Create a database, cloned from the template."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    _run(url, statement.format(sql.Identifier(name), sql.Identifier(template)))


def drop_database(url: str, name: str) -> None:
    """Drop a database, whoever is still connected."""
    _run(url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def fresh_database(url: str, *, template: str = "template1") -> Generator[str]:
    """The URL of a new database on this server, cloned from the template and dropped at the end."""
    name = f"helix_{secrets.token_hex(8)}"
    create_database(url, name, template=template)
    try:
        yield with_database(url, name)
    finally:
        drop_database(url, name)
