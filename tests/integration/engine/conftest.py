"""One database with DBOS's tables and ours for this folder, emptied before every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from helix_dbos.store.database import Database
from tests.integration.engine.engine_rows import Executors
from tests.support.databases import fresh_database


@pytest.fixture(scope="session")
def engine_url(server_url: str, template: str) -> Iterator[str]:
    """A clone of the migrated template, for all tests of this folder."""
    with fresh_database(server_url, template=template) as url:
        yield url


@pytest.fixture
def look(engine_url: str) -> Iterator[psycopg.Connection]:
    """An autocommitting look at the emptied database from outside."""
    with psycopg.connect(engine_url, autocommit=True, options="-csearch_path=helix") as connection:
        connection.execute("DELETE FROM sessions")
        connection.execute("DELETE FROM executors")
        connection.execute("DELETE FROM dbos.workflow_status")
        connection.execute("DELETE FROM dbos.workflow_input")
        yield connection


@pytest.fixture
async def database(engine_url: str, look: psycopg.Connection) -> AsyncIterator[Database]:
    """The store, open and empty."""
    opened = Database(engine_url, "helix", pool_size=4)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def executors(engine_url: str, look: psycopg.Connection) -> Iterator[Executors]:
    """Executors that live and die at the test's word."""
    with psycopg.connect(engine_url, autocommit=True) as locks:
        yield Executors(look, locks)
