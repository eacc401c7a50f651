"""`store/tables.py` describes exactly the tables that the migrations make."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from helix_dbos.store.migration import apply_migrations, sqlalchemy_url
from helix_dbos.store.tables import metadata
from tests.migration.catalogue import differences, read_catalogue
from tests.support.databases import create_database, drop_database, with_database

MIGRATED, DECLARED = "by_migrations", "by_metadata"
SIDES = (MIGRATED, DECLARED)


@pytest.fixture(scope="module")
def engine(server_url: str) -> Iterator[sa.Engine]:
    """A database with the tables made both ways, one schema each."""
    name = f"helix_{secrets.token_hex(8)}"
    create_database(server_url, name)
    url = with_database(server_url, name)
    apply_migrations(url, MIGRATED)
    engine = sa.create_engine(sqlalchemy_url(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE SCHEMA {DECLARED}"))
        connection.execute(sa.text(f"SET LOCAL search_path TO {DECLARED}"))
        metadata.create_all(connection)
    try:
        yield engine
    finally:
        engine.dispose()
        drop_database(server_url, name)


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection whose changes are rolled back."""
    with engine.connect() as connection:
        yield connection
        connection.rollback()


def compare(connection: sa.Connection) -> list[str]:
    return differences(read_catalogue(connection, MIGRATED), read_catalogue(connection, DECLARED))


def test_tables_and_migrations_agree(connection: sa.Connection):
    assert compare(connection) == []


def test_the_catalogue_shows_every_table(connection: sa.Connection):
    migrated = read_catalogue(connection, MIGRATED)
    assert migrated.tables == set(metadata.tables)
    assert migrated.constraints
    assert migrated.indexes


CHANGES = {
    "check dropped": ("ALTER TABLE runs DROP CONSTRAINT runs_error", "constraints runs.runs_error"),
    "check reworded": (
        "ALTER TABLE runs DROP CONSTRAINT runs_output,"
        " ADD CONSTRAINT runs_output CHECK (output IS NULL OR status <> 'failed')",
        "constraints runs.runs_output",
    ),
    "value list widened": (
        "ALTER TABLE calls DROP CONSTRAINT calls_state_check,"
        " ADD CONSTRAINT calls_state_check CHECK (state IN ('open', 'waiting', 'answered', 'lost'))",
        "constraints calls.calls_state_check",
    ),
    "check renamed": (
        "ALTER TABLE calls RENAME CONSTRAINT calls_claim TO calls_claims",
        "constraints calls.calls_claims",
    ),
    "check not validated": (
        "ALTER TABLE calls DROP CONSTRAINT calls_claim,"
        " ADD CONSTRAINT calls_claim CHECK ((bodies = 0) = (generation = 0)) NOT VALID",
        "constraints calls.calls_claim",
    ),
    "unique dropped": (
        "ALTER TABLE calls DROP CONSTRAINT calls_tool_call_id",
        "constraints calls.calls_tool_call_id",
    ),
    "foreign key dropped": (
        "ALTER TABLE requests DROP CONSTRAINT requests_run_id_fkey",
        "constraints requests.requests_run_id_fkey",
    ),
    "foreign key no longer deferred": (
        "ALTER TABLE sessions ALTER CONSTRAINT sessions_current_run NOT DEFERRABLE",
        "constraints sessions.sessions_current_run",
    ),
    "index dropped": ("DROP INDEX runs_session", "indexes runs_session"),
    "index no longer partial": (
        "DROP INDEX answers_one_current; CREATE UNIQUE INDEX answers_one_current ON answers (dispatch_id)",
        "indexes answers_one_current",
    ),
    "index no longer unique": (
        "DROP INDEX runs_one_open_per_session; CREATE INDEX runs_one_open_per_session ON runs (session_id)"
        " WHERE status IN ('queued', 'running', 'suspended')",
        "indexes runs_one_open_per_session",
    ),
    "default dropped": ("ALTER TABLE calls ALTER bodies DROP DEFAULT", "columns calls.bodies"),
    "default changed": ("ALTER TABLE runs ALTER stretch_no SET DEFAULT 2", "columns runs.stretch_no"),
    "null allowed": ("ALTER TABLE sessions ALTER agent DROP NOT NULL", "columns sessions.agent"),
    "null refused": ("ALTER TABLE sessions ALTER user_id SET NOT NULL", "columns sessions.user_id"),
    "type changed": ("ALTER TABLE executors ALTER pid TYPE bigint", "columns executors.pid"),
    "column added": ("ALTER TABLE engine ADD dispatch_queue text", "columns engine.dispatch_queue"),
    "column dropped": ("ALTER TABLE executors DROP host", "columns executors.host"),
    "table added": ("CREATE TABLE inputs (run_id text)", "columns inputs.run_id"),
    "table dropped": ("DROP TABLE checkpoints", "columns checkpoints.checkpoint_id"),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("change", CHANGES)
def test_any_change_on_one_side_is_seen(connection: sa.Connection, side: str, change: str):
    statements, shown = CHANGES[change]
    connection.execute(sa.text(f"SET LOCAL search_path TO {side}"))
    connection.execute(sa.text(statements))
    assert any(line.startswith(f"{shown}:") for line in compare(connection))
