"""Bringing a schema to the head: from nothing, again, at once, beside another, and refusing to go on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import make_url

from helix_dbos.errors import SchemaError, StoreError
from helix_dbos.store.migration import apply_migrations, current_revision, head_revision, require_head
from helix_dbos.store.tables import metadata
from tests.support.waiting import poll_until

HEAD = "0001"
MIGRATE = (
    "import sys; from helix_dbos.store.migration import apply_migrations; apply_migrations(*sys.argv[1:])"
)


@pytest.fixture
def look(empty_database_url: str) -> Iterator[psycopg.Connection]:
    """An autocommitting look at the empty database."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


def tables(look: psycopg.Connection) -> set[tuple[str, str]]:
    rows = look.execute(
        "SELECT schemaname, tablename FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    return set(rows.fetchall())


def expected(schema: str) -> set[tuple[str, str]]:
    return {(schema, name) for name in [*metadata.tables, "schema_version"]}


def fake_revision(look: psycopg.Connection, schema: str, revision: str) -> None:
    look.execute(f"UPDATE {schema}.schema_version SET version_num = %s".encode(), (revision,))


def test_from_nothing_to_the_head(empty_database_url: str, look: psycopg.Connection):
    assert current_revision(empty_database_url, "helix") is None
    apply_migrations(empty_database_url, "helix")
    assert current_revision(empty_database_url, "helix") == head_revision() == HEAD
    require_head(empty_database_url, "helix")
    assert tables(look) == expected("helix"), "every table, the version's too, is inside the schema"


def test_again_changes_nothing(empty_database_url: str, look: psycopg.Connection):
    def state() -> list[tuple[object, ...]]:
        catalogue = "SELECT oid, xmin::text FROM pg_class WHERE relnamespace = 'helix'::regnamespace"
        version = "SELECT 0, xmin::text FROM helix.schema_version"
        return look.execute(f"{catalogue} UNION ALL {version} ORDER BY 1, 2".encode()).fetchall()

    apply_migrations(empty_database_url, "helix")
    before = state()
    apply_migrations(empty_database_url, "helix")
    assert state() == before


def test_a_failing_revision_leaves_nothing(empty_database_url: str, look: psycopg.Connection):
    look.execute("CREATE SCHEMA helix")
    look.execute("CREATE TABLE helix.engine (in_the_way text)")
    with pytest.raises(Exception, match="already exists"):
        apply_migrations(empty_database_url, "helix")
    assert tables(look) == {("helix", "engine")}
    look.execute("DROP TABLE helix.engine")
    apply_migrations(empty_database_url, "helix")
    assert tables(look) == expected("helix")


def test_two_schemas_share_nothing(empty_database_url: str, look: psycopg.Connection):
    apply_migrations(empty_database_url, "helix")
    with pytest.raises(SchemaError):
        require_head(empty_database_url, "other")
    apply_migrations(empty_database_url, "other")
    assert tables(look) == expected("helix") | expected("other")
    look.execute("INSERT INTO helix.sessions (session_id, agent) VALUES ('s', 'a')")
    assert look.execute("SELECT count(*) FROM other.sessions").fetchone() == (0,)
    fake_revision(look, "other", "0000")
    require_head(empty_database_url, "helix")
    across = look.execute(
        "SELECT conname FROM pg_constraint JOIN pg_class f ON f.oid = confrelid"
        " WHERE connamespace <> f.relnamespace"
    )
    assert across.fetchall() == []


@contextmanager
def migrating(url: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts processes that migrate; kills those that are left."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen([sys.executable, "-c", MIGRATE, url, "helix"], stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_of_two_processes_one_waits_and_both_succeed(empty_database_url: str, look: psycopg.Connection):
    def waiting_for(kind: str) -> list[tuple[object, ...]]:
        return look.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = %s",
            (kind,),
        ).fetchall()

    # An uncommitted schema of that name stops the first process inside its transaction.
    with psycopg.connect(empty_database_url) as in_the_way, migrating(empty_database_url) as start:
        in_the_way.execute("CREATE SCHEMA helix")
        processes = [start(), start()]
        poll_until(lambda: waiting_for("transactionid"), seconds=30)
        poll_until(lambda: waiting_for("advisory"), seconds=30)
        in_the_way.rollback()
        ends = [(process.communicate(timeout=30)[1], process.returncode) for process in processes]
    assert ends == [("", 0), ("", 0)]
    assert tables(look) == expected("helix")


def test_threads_of_one_process_do_not_mix_their_connections(empty_database_url: str):
    failures: list[BaseException] = []

    def migrate(schema: str) -> None:
        try:
            apply_migrations(empty_database_url, schema)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=migrate, args=(schema,)) for schema in ("helix", "other", "helix")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    require_head(empty_database_url, "helix")
    require_head(empty_database_url, "other")


@pytest.mark.parametrize(
    ("revision", "said"), [("0000", "is at revision 0000"), ("9999", "is at revision 9999")]
)
def test_an_older_or_newer_schema_is_refused(database_url: str, revision: str, said: str):
    with psycopg.connect(database_url, autocommit=True) as connection:
        fake_revision(connection, "helix", revision)
    with pytest.raises(SchemaError) as refused:
        require_head(database_url, "helix")
    assert refused.value.code == "store_schema_mismatch"
    assert refused.value.detail == f"schema 'helix' {said}, needed is {HEAD}; run `helix-dbos migrate`"


def test_a_missing_schema_is_refused(empty_database_url: str):
    with pytest.raises(SchemaError, match=r"'helix' is missing.*run `helix-dbos migrate`"):
        require_head(empty_database_url, "helix")


def test_a_newer_schema_is_not_migrated(database_url: str):
    with psycopg.connect(database_url, autocommit=True) as connection:
        fake_revision(connection, "helix", "9999")
        with pytest.raises(SchemaError, match="newer helix-dbos"):
            apply_migrations(database_url, "helix")
        found = connection.execute("SELECT version_num FROM helix.schema_version").fetchall()
    assert found == [("9999",)]


def test_a_database_out_of_reach_is_a_store_error(server_url: str):
    nowhere = make_url(server_url).set(host="127.0.0.1", port=1, query={}, password="not-to-be-shown")
    url = nowhere.render_as_string(hide_password=False)
    for use in (apply_migrations, require_head):
        with pytest.raises(StoreError) as away:
            use(url, "helix")
        assert not isinstance(away.value, SchemaError)
        assert away.value.code == "store_unavailable"
        assert "not-to-be-shown" not in str(away.value)
