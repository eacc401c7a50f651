"""One migrated database for this folder: its tests keep apart by ids of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from helix_dbos.store.database import Database
from tests.support.databases import fresh_database


@pytest.fixture(scope="session")
def store_url(server_url: str, template: str) -> Iterator[str]:
    """A clone of the migrated template, for all tests of this folder."""
    with fresh_database(server_url, template=template) as url:
        yield url


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """The store, open."""
    opened = Database(store_url, "helix", pool_size=8)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def look(store_url: str) -> Iterator[psycopg.Connection]:
    """An autocommitting look at the store from outside."""
    with psycopg.connect(store_url, autocommit=True, options="-csearch_path=helix") as connection:
        yield connection
