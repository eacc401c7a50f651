"""The server's side of a process: which connections are its own, and cutting them.

A process that is frozen keeps its connections, and with them its life sign; cutting them is
what a network partition does to it. Each such process logs in under a role of its own, because
the server does not know the pids of its clients.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import sql
from sqlalchemy import make_url

from helix_dbos.store.executors import LIVE_EXECUTORS
from tests.fault.truth import connect

__all__ = ["cut_all", "cut_locks", "is_frozen", "live_pids", "lock_backends", "own_login"]


@contextmanager
def own_login(database_url: str) -> Iterator[str]:
    """The same database under a role that nobody else uses."""
    role, password = f"helix_{uuid.uuid4().hex[:12]}", uuid.uuid4().hex  # noqa: TID251 - names, not ids
    create = sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}")
    with connect(database_url) as server:
        server.execute(create.format(sql.Identifier(role), sql.Literal(password)))
        try:
            own = make_url(database_url).set(username=role, password=password)
            yield own.render_as_string(hide_password=False)
        finally:
            cut_all(own.render_as_string(hide_password=False), database_url)
            server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def cut_all(own_url: str, database_url: str) -> int:
    """Terminate every backend of a role of `own_login`; how many there were."""
    with connect(database_url) as server:
        return server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s",
            (make_url(own_url).username,),
        ).rowcount


def lock_backends(database_url: str) -> dict[int, int]:
    """The backend that holds each live process's executor lock, by the process's pid."""
    with connect(database_url) as server:
        rows = server.execute(
            "SELECT e.pid, l.pid AS backend FROM executors e JOIN pg_locks l"
            " ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
            " AND ((l.classid::bigint << 32) | l.objid::bigint) = e.lock_key"
            " WHERE e.stopped_at IS NULL"
        ).fetchall()
    return {row["pid"]: row["backend"] for row in rows}


def cut_locks(database_url: str, *pids: int) -> None:
    """Terminate the connections that hold these processes' executor locks, all in one statement."""
    backends = lock_backends(database_url)
    wanted = [backends[pid] for pid in pids or backends]
    with connect(database_url) as server:
        server.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", (wanted,))


def live_pids(database_url: str) -> set[int]:
    """The processes that count as alive, by the statement that Helix itself uses."""
    with connect(database_url) as server:
        live = server.execute(
            f"SELECT e.pid FROM executors e WHERE e.executor_id IN"
            f" (SELECT executor_id FROM ({LIVE_EXECUTORS}) live)"
        ).fetchall()
    return {row["pid"] for row in live}


def is_frozen(pid: int) -> bool:
    """Whether the process is stopped by a signal."""
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return said.stdout.strip().startswith("T")
