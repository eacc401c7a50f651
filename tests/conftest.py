"""Real parts for every test: a real Postgres, and a database of one's own cloned from a template."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url

from helix_dbos.embedded import temporary_server
from helix_dbos.engine.dbos_engine import migrate_dbos
from helix_dbos.store.migration import apply_migrations
from tests.support.databases import fresh_database


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The server to test on: `HELIX_TEST_DATABASE_URL` when given, else a throwaway embedded one."""
    given = os.environ.get("HELIX_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with temporary_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """A migrated database that tests clone; made once."""
    with fresh_database(server_url) as url:
        migrate_dbos(url, "dbos")
        apply_migrations(url, "helix")
        yield str(make_url(url).database)


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    with fresh_database(server_url, template=template) as url:
        yield url


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database of this test's own with nothing in it."""
    with fresh_database(server_url) as url:
        yield url


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    """An autocommitting look at the test's database, schema helix."""
    with psycopg.connect(database_url, autocommit=True, options="-csearch_path=helix") as open_connection:
        yield open_connection
