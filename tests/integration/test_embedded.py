"""The embedded database keeps its promises whatever crashes: real servers, real SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import sqlalchemy

from helix_dbos.embedded import EmbeddedServer, start_embedded, temporary_server
from helix_dbos.errors import StoreError
from tests.integration.test_embedded_support import (
    ROOT,
    cluster_of,
    first_line,
    leave,
    mended,
    other_process,
    poll,
    postmasters,
    query,
    reachable_folder,
    ready_folder,
    stopped,
    write_as_server,
)


@pytest.fixture(scope="module")
def ready() -> Iterator[Path]:
    with ready_folder() as folder:
        yield folder


@pytest.fixture
def folder(ready: Path) -> Iterator[Path]:
    with mended(ready):
        yield ready


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    with reachable_folder() as fresh:
        yield fresh


def postmaster(server: EmbeddedServer) -> psutil.Process:
    (process,) = postmasters(server.data_dir)
    return process


def test_a_first_start_gives_a_private_durable_server(empty_folder: Path):
    with start_embedded(empty_folder) as server:
        sockets = server.data_dir.parent / "socket"
        settings = {
            name: query(server.url, f"show {name}")
            for name in ("data_directory", "listen_addresses", "fsync", "max_connections", "server_encoding")
        }
        assert settings == {
            "data_directory": str(server.data_dir),
            "listen_addresses": "",
            "fsync": "on",
            "max_connections": "200",
            "server_encoding": "UTF8",
        }
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert server.data_dir.stat().st_mode & 0o777 == 0o700
        assert server.data_dir.parent.name == f"postgres-{str(query(server.url, 'show server_version'))[:2]}"
        assert (postmaster(server).uids().effective != 0) is True
        assert not postmaster(server).net_connections("inet")
    assert stopped(empty_folder)


def test_the_url_serves_sqlalchemy_and_ignores_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"PGPORT": "1", "PGHOST": "nowhere", "PGDATA": "/nowhere", "PGUSER": "no"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HELIX_SECRET", "not-for-the-server")
    with start_embedded(folder) as server:
        assert server.url.startswith("postgresql://")
        engine = sqlalchemy.create_engine(
            sqlalchemy.make_url(server.url).set(drivername="postgresql+psycopg")
        )
        try:
            with engine.connect() as connection:
                assert connection.scalar(sqlalchemy.text("select 1")) == 1
        finally:
            engine.dispose()
        assert "HELIX_SECRET" not in postmaster(server).environ() if ROOT else True


def test_rows_and_the_url_survive_restarts_and_release_is_idempotent(folder: Path):
    server = start_embedded(folder)
    query(server.url, "create table kept as select 7 as n")
    server.release()
    server.release()
    assert stopped(folder)
    with start_embedded(folder) as again:
        assert again.url == server.url
        assert query(again.url, "select n from kept") == 7
        server.release()
        assert query(again.url, "select 1") == 1


def test_a_second_use_in_this_process_keeps_the_server(folder: Path):
    first, second = start_embedded(folder), start_embedded(folder)
    first.release()
    assert query(second.url, "select 1") == 1
    second.release()
    assert stopped(folder)


def test_the_server_stays_for_another_process_whose_normal_end_stops_it(folder: Path):
    server = start_embedded(folder)
    with other_process(folder) as other:
        first_line(other)
        server.release()
        assert query(server.url, "select 1") == 1
        leave(other)
        assert stopped(folder)


def test_a_server_left_by_a_killed_process_is_adopted_and_stopped_later(folder: Path):
    with other_process(folder) as other:
        started = first_line(other)
        other.kill()
        other.wait()
    (left,) = postmasters(folder)
    with start_embedded(folder) as server:
        assert query(server.url, "select pg_postmaster_start_time()::text") == started
        assert postmaster(server).pid == left.pid
    assert stopped(folder)


def test_a_killed_user_does_not_hide_a_living_one(folder: Path):
    with other_process(folder) as living, other_process(folder) as killed:
        assert first_line(living) == first_line(killed)
        killed.kill()
        killed.wait()
        start_embedded(folder).release()
        assert postmasters(folder)
        leave(living)
    assert stopped(folder)


def test_two_first_starts_at_once_share_one_server(empty_folder: Path):
    with other_process(empty_folder) as one, other_process(empty_folder) as two:
        assert first_line(one) == first_line(two)
        assert len(postmasters(empty_folder)) == 1
        leave(one)
        assert len(postmasters(empty_folder)) == 1
        leave(two)
        assert stopped(empty_folder)


@pytest.mark.parametrize("round_", range(2))
def test_a_killed_postmaster_loses_no_acknowledged_row(folder: Path, round_: int):
    acknowledged: list[int] = []

    def write(url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while True:
                try:
                    connection.execute("insert into written values (%s)", [len(acknowledged)])
                except psycopg.OperationalError:
                    return
                acknowledged.append(len(acknowledged))

    with start_embedded(folder) as server:
        query(server.url, "drop table if exists written")
        query(server.url, "create table written (n int)")
        writer = threading.Thread(target=write, args=[server.url])
        writer.start()
        poll(lambda: len(acknowledged) > 100)
        os.kill(postmaster(server).pid, signal.SIGKILL)
        with start_embedded(folder) as again:
            writer.join(timeout=10)
            assert query(again.url, "show data_directory") == str(again.data_dir)
            rows = query(server.url, "select array_agg(n order by n) from written")
            assert isinstance(rows, list)
            assert rows[: len(acknowledged)] == acknowledged
            assert len(rows) <= len(acknowledged) + 1
    assert stopped(folder)


def test_releasing_a_killed_server_is_quiet(folder: Path):
    server = start_embedded(folder)
    os.kill(postmaster(server).pid, signal.SIGKILL)
    server.release()
    assert stopped(folder)


@pytest.mark.parametrize("owner", ["same user", "other user"])
def test_a_stale_pid_file_that_names_an_unrelated_process_is_not_believed(folder: Path, owner: str):
    with start_embedded(folder) as server:
        leftovers = [
            server.data_dir / "postmaster.pid",
            server.data_dir.parent / "socket" / ".s.PGSQL.5432.lock",
        ]
        texts = [path.read_text() for path in leftovers]
    account = cluster_of(folder).stat().st_uid if ROOT else None
    unrelated = subprocess.Popen(["sleep", "60"], user=account)
    try:
        # Process 1 is root's, and root never runs the server.
        pid = unrelated.pid if owner == "same user" else 1
        for path, text in zip(leftovers, texts, strict=True):
            write_as_server(path, text.replace(text.split("\n", 1)[0], str(pid), 1))
        with start_embedded(folder) as server:
            assert query(server.url, "show data_directory") == str(server.data_dir)
        assert stopped(folder)
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_a_release_signals_nobody_when_the_pid_file_names_an_unrelated_process(folder: Path):
    server = start_embedded(folder)
    unrelated = subprocess.Popen(["sleep", "60"], user=cluster_of(folder).stat().st_uid if ROOT else None)
    try:
        os.kill(postmaster(server).pid, signal.SIGKILL)
        write_as_server(server.data_dir / "postmaster.pid", f"{unrelated.pid}\n{server.data_dir}\n")
        server.release()
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_a_slow_recovery_outlives_the_process_that_gave_up_and_is_waited_for(folder: Path):
    gate = folder / "gate"
    cluster = cluster_of(folder)
    write_as_server(cluster / "recovery.signal", "")
    command = f"while [ ! -e {gate} ]; do sleep 0.05; done; false"
    write_as_server(cluster / "postgresql.auto.conf", f"restore_command = '{command}'\n", mode="a")

    with pytest.raises(StoreError) as refused:
        start_embedded(folder, timeout_seconds=1.0)
    assert refused.value.code == "store_embedded_unavailable"
    assert "not ready in time" in str(refused.value)
    assert "starting up" in str(refused.value)

    (slow,) = postmasters(folder)
    opener = threading.Timer(2.0, gate.touch)
    opener.start()
    try:
        with start_embedded(folder) as server:
            assert gate.exists()
            assert postmaster(server).pid == slow.pid
            assert query(server.url, "select pg_is_in_recovery()") is False
    finally:
        opener.cancel()
    assert stopped(folder)


def test_a_kill_during_the_first_start_leaves_no_half_made_data(empty_folder: Path):
    with other_process(empty_folder) as other:
        poll(lambda: list(empty_folder.glob("postgres-*/data.draft-*/PG_VERSION")))
        other.kill()
        other.wait()
    assert not list(empty_folder.glob("postgres-*/data"))
    with start_embedded(empty_folder) as server:
        assert query(server.url, "select 1") == 1
        assert not list(empty_folder.glob("postgres-*/data.draft-*"))


def test_a_server_that_refuses_its_settings_is_a_clear_error_without_client_text(folder: Path):
    with start_embedded(folder) as server, pytest.raises(psycopg.DataError):
        query(server.url, "select 'private words'::int")
    assert "private words" in (server.data_dir.parent / "server.log").read_text()
    write_as_server(server.data_dir / "postgresql.conf", "shared_buffers = banana\n", mode="a")
    with pytest.raises(StoreError) as refused:
        start_embedded(folder)
    assert refused.value.code == "store_embedded_unavailable"
    assert "banana" in str(refused.value)
    assert "private words" not in str(refused.value)
    assert "banana" not in refused.value.error


def test_a_temporary_server_leaves_nothing():
    with temporary_server() as server:
        assert query(server.url, "select 1") == 1
        (left,) = postmasters(server.data_dir)
    assert not server.data_dir.parents[1].exists()
    poll(lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE)
