"""Rows as DBOS and a process would leave them, written by hand."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg
from psycopg import sql

from helix_dbos.engine.lock import lock_key
from helix_dbos.ids import new_executor_id

__all__ = ["APPLICATION", "VERSION", "Executors", "mint", "session_with_run", "workflow_row"]

APPLICATION, VERSION = "shop", "helix-dbos/1@shop"


def mint(what: str) -> str:
    """An id of this test's own."""
    return f"{what}-{secrets.token_hex(6)}"


class Executors:
    """Executor rows, and the locks that make some of them live."""

    def __init__(self, look: psycopg.Connection, locks: psycopg.Connection, schema: str = "helix") -> None:
        self._look, self._locks, self._schema = look, locks, schema

    def add(
        self,
        *,
        live: bool = True,
        role: str = "worker",
        version: str = VERSION,
        dbos_id: str | None = None,
        key: int | None = None,
        age_seconds: float = 3600,
    ) -> str:
        """A process that started a while ago; its executor id, which is DBOS's too unless given."""
        executor_id = new_executor_id()
        known = lock_key(self._schema, executor_id) if key is None else key
        self._look.execute(
            sql.SQL(
                "INSERT INTO {}.executors (executor_id, dbos_executor_id, role, version, agents, lock_key,"
                " host, pid, started_at)"
                " VALUES (%s, %s, %s, %s, '{{}}', %s, 'here', 1, now() - make_interval(secs => %s))"
            ).format(sql.Identifier(self._schema)),
            (executor_id, dbos_id or executor_id, role, version, known, age_seconds),
        )
        if live:
            self._locks.execute("SELECT pg_advisory_lock(%s)", (known,))
        return executor_id

    def kill(self, executor_id: str) -> None:
        """Its lock goes; its row stays."""
        self._locks.execute("SELECT pg_advisory_unlock(%s)", (lock_key(self._schema, executor_id),))


def session_with_run(
    look: psycopg.Connection,
    *,
    schema: str = "helix",
    status: str = "running",
    age_seconds: float = 60,
    ended_seconds_ago: float = 60,
    stretch_no: int = 1,
    **more: Any,
) -> tuple[str, str]:
    """A session with one run that was queued a while ago: the run's id and its workflow's."""
    session_id, run_id = mint("session"), mint("run")
    workflow_id = f"helix.turn:{run_id}:{stretch_no}"
    table = sql.Identifier(schema)
    look.execute(
        sql.SQL("INSERT INTO {}.sessions (session_id, agent) VALUES (%s, 'desk')").format(table),
        (session_id,),
    )
    row: dict[str, Any] = {
        "run_id": run_id,
        "session_id": session_id,
        "entry": "turn",
        "status": status,
        "workflow_id": workflow_id,
        "stretch_no": stretch_no,
        "step_index": -1,
        "queue": "turns",
        "priority": 10,
        "executor_id": "somebody" if status == "running" else None,
    } | more
    ended = status not in ("queued", "running", "suspended")
    look.execute(
        sql.SQL(
            "INSERT INTO {}.runs ({}, queued_at, ended_at) VALUES ({},"
            " now() - make_interval(secs => %s), CASE WHEN %s THEN now() - make_interval(secs => %s) END)"
        ).format(
            table,
            sql.SQL(", ").join(map(sql.Identifier, row)),
            sql.SQL(", ").join(sql.Placeholder() * len(row)),
        ),
        [*row.values(), age_seconds, ended, ended_seconds_ago],
    )
    return run_id, workflow_id


def workflow_row(
    look: psycopg.Connection,
    workflow_id: str,
    status: str,
    *,
    executor_id: str | None = None,
    version: str | None = VERSION,
    application: str | None = APPLICATION,
    name: str = "helix.turn",
    created_seconds_ago: float = 60,
    started_seconds_ago: float | None = None,
) -> None:
    """An engine row of DBOS."""
    look.execute(
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, executor_id, application_version,"
        " application_name, queue_name, created_at, updated_at, started_at_epoch_ms)"
        " SELECT %(id)s, %(status)s, %(name)s, %(executor)s, %(version)s, %(application)s, 'turns',"
        " now_ms - %(created)s * 1000, now_ms, now_ms - %(started)s::float8 * 1000"
        " FROM (SELECT extract(epoch FROM now())::float8 * 1000 AS now_ms) clock",
        {
            "id": workflow_id,
            "status": status,
            "name": name,
            "executor": executor_id,
            "version": version,
            "application": application,
            "created": created_seconds_ago,
            "started": started_seconds_ago,
        },
    )
