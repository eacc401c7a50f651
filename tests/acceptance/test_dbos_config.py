"""DBOS's own command, with our dbos-config.yaml: `dbos migrate` and `dbos start`, for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from helix_dbos.store.migration import head_revision
from tests.support.waiting import poll_until

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent

# The executors that are registered and whose lock some connection of this database holds.
LIVE = """
    SELECT e.role, e.agents, e.pid FROM helix.executors e
     WHERE e.stopped_at IS NULL AND EXISTS (
           SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
            WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
              AND d.datname = current_database()
              AND ((l.classid::bigint << 32) | l.objid::bigint) = e.lock_key)
"""


def environment(database_url: str) -> dict[str, str]:
    """This environment, with the checkout's commands in front and one database, ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELIX_", "DBOS_"))}
    return {**kept, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", "HELIX_DATABASE_URL": database_url}


def dbos_migrate(database_url: str) -> str:
    command = [SCRIPTS / "dbos", "migrate"]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment(database_url), capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def versions(database_url: str) -> tuple[list[tuple[int]], list[tuple[str]]]:
    with psycopg.connect(database_url) as connection:
        return (
            connection.execute("SELECT version FROM dbos.dbos_migrations").fetchall(),
            connection.execute("SELECT version_num FROM helix.schema_version").fetchall(),
        )


@pytest.fixture
def started(database_url: str, tmp_path: Path) -> Iterator[psutil.Popen]:
    """`dbos start`; its worker is killed at the end if it is still there, even as an orphan."""
    with (tmp_path / "log").open("wb") as output:
        command = psutil.Popen(
            [SCRIPTS / "dbos", "start"],
            cwd=CHECKOUT,
            env=environment(database_url),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield command
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HELIX_DATABASE_URL") == database_url:
                    process.kill()
        command.wait(10)


def test_migrate_brings_an_empty_database_to_both_heads(empty_database_url: str, database_url: str):
    dbos_migrate(empty_database_url)

    assert versions(empty_database_url) == versions(database_url)
    assert versions(empty_database_url)[1] == [(head_revision(),)]

    assert "already" in dbos_migrate(empty_database_url)
    assert versions(empty_database_url) == versions(database_url)


def test_start_runs_a_worker_until_sigterm(started: psutil.Popen, database_url: str, tmp_path: Path):
    with psycopg.connect(database_url, autocommit=True) as database:

        def live() -> list[tuple[str, list[str], int]]:
            assert started.poll() is None, (tmp_path / "log").read_text()
            return database.execute(LIVE).fetchall()

        [(role, agents, pid)] = poll_until(live, seconds=60)
        assert (role, agents) == ("worker", ["refund-desk"])
        worker = psutil.Process(pid)
        assert started in worker.parents()

        started.send_signal(signal.SIGTERM)

        # The command passes the signal on and leaves at once, with 1; the worker then ends in its own time.
        assert started.wait(10) == 1
        poll_until(lambda: gone(worker), seconds=30)
        assert database.execute(LIVE).fetchall() == []
        stopped = "SELECT stopped_at IS NOT NULL FROM helix.executors WHERE pid = %s"
        assert database.execute(stopped, (pid,)).fetchall() == [(True,)]
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    events = [json.loads(line).get("event", "") for line in lines]
    assert [event for event in events if event.startswith("worker_")] == [
        "worker_ready",
        "worker_draining",
        "worker_stopped",
    ]


def gone(process: psutil.Process) -> bool:
    """Ended; a zombie has, and who adopts an orphan need not look after it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
