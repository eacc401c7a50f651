"""Brings the schema to this version, or says that it is not there. Cold code: SQLAlchemy and Alembic."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import OperationalError

from helix_dbos.errors import SchemaError, StoreError

__all__ = ["apply_migrations", "current_revision", "head_revision", "require_head", "sqlalchemy_url"]

# Alembic's `context`, which env.py reads, is one per process: threads would swap connections.
_one_thread = threading.Lock()


def sqlalchemy_url(url: str) -> sa.URL:
    """The URL with psycopg as its driver, whatever spelling it came in."""
    return sa.make_url(url).set(drivername="postgresql+psycopg")


def _scripts() -> Path:
    """The revisions: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "_migrations"
    return shipped if shipped.is_dir() else package.parent / "migrations"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_scripts()))
    config.set_main_option("path_separator", "os")
    return config


def head_revision() -> str:
    """The revision that this version of the package needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise SchemaError("The installed package holds no migrations.", detail=str(_scripts()))
    return head


@contextmanager
def _connected(url: str) -> Generator[sa.Connection]:
    engine = sa.create_engine(sqlalchemy_url(url), poolclass=sa.NullPool)
    try:
        try:
            connection = engine.connect()
        except OperationalError as problem:
            cause = type(problem.orig).__name__
            raise StoreError(
                "The database cannot be reached.", detail=f"{cause}; see `helix-dbos doctor`"
            ) from problem
        with connection:
            yield connection
    finally:
        engine.dispose()


def apply_migrations(url: str, schema: str) -> None:
    """Bring the schema to this package's revision; concurrent callers wait for each other.

    Idempotent. It commits whole or not at all.

    Raises:
        SchemaError: The schema is of a newer version.
        StoreError: The database is out of reach.
    """
    with _connected(url) as connection, _one_thread:
        config = _config()
        config.attributes.update(connection=connection, schema=schema)
        try:
            command.upgrade(config, "head")
        except CommandError as problem:
            raise SchemaError(
                "The database schema cannot be brought to this version.",
                detail=f"schema {schema!r}: {problem}; it may have been migrated by a newer helix-dbos",
            ) from problem
        connection.commit()


def current_revision(url: str, schema: str) -> str | None:
    """The revision the schema is at; None when there is no such schema yet.

    Raises:
        StoreError: The database is out of reach.
    """
    with _connected(url) as connection:
        if not sa.inspect(connection).has_table("schema_version", schema=schema):
            return None
        row = connection.execute(sa.text(f'SELECT version_num FROM "{schema}".schema_version')).first()
        return str(row[0]) if row else None


def require_head(url: str, schema: str) -> None:
    """Return only when the schema is of this version.

    Raises:
        SchemaError: It is missing, older or newer; the error names the command that mends it.
    """
    found, needed = current_revision(url, schema), head_revision()
    if found == needed:
        return
    state = "is missing" if found is None else f"is at revision {found}"
    raise SchemaError(
        "The database schema is not the one this version needs.",
        detail=f"schema {schema!r} {state}, needed is {needed}; run `helix-dbos migrate`",
    )
