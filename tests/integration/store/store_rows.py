"""Rows to begin with, made by the store's own functions, and looks at what is there."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg

from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.messages import AssistantContent, CallPart, TextPart, Usage
from helix_dbos.core.states import Origin, Outcome, Replay
from helix_dbos.ids import new_dispatch_id, new_run_id, turn_workflow_id
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.hot import Holder, Reply, write_reply
from helix_dbos.store.runs import insert_run, mark_attached
from helix_dbos.store.sessions import ensure_session, lock_session, raise_generation, set_current_run

__all__ = [
    "RETURNED",
    "blocked",
    "calling",
    "mint",
    "new_call",
    "new_session",
    "queued_run",
    "running_run",
    "saved_step",
    "session_rows",
]

RETURNED = Answer(Outcome.RETURNED, None, {"ok": True}, Origin.BODY)

_OF_SESSION = {
    "sessions": "session_id = %(s)s",
    "session_state": "session_id = %(s)s",
    "session_counters": "session_id = %(s)s",
    "runs": "session_id = %(s)s",
    "messages": "session_id = %(s)s",
    "calls": "session_id = %(s)s",
    "answers": "dispatch_id IN (SELECT dispatch_id FROM calls WHERE session_id = %(s)s)",
    "checkpoints": "session_id = %(s)s",
    "requests": "session_id = %(s)s",
}


def mint(what: str) -> str:
    """An id of this test's own."""
    return f"{what}-{secrets.token_hex(6)}"


async def new_session(database: Database) -> str:
    session_id = mint("session")
    await database.transaction(lambda tx: ensure_session(tx, session_id, "desk", None, {}))
    return session_id


async def queued_run(database: Database, session_id: str | None = None) -> tuple[str, str]:
    """A session (a new one unless given) with a fresh queued run: both ids."""
    owner, run_id = session_id or await new_session(database), new_run_id()

    async def work(tx: Transaction) -> None:
        await lock_session(tx, owner)
        await insert_run(
            tx,
            run_id=run_id,
            session_id=owner,
            entry="turn",
            workflow_id=turn_workflow_id(run_id, 1),
            step_index=-1,
            queue="turns",
            priority=10,
        )
        await set_current_run(tx, owner, run_id, None)

    await database.transaction(work)
    return owner, run_id


async def running_run(database: Database) -> Holder:
    """A run that is attached in generation 1."""
    session_id, run_id = await queued_run(database)

    async def work(tx: Transaction) -> None:
        await lock_session(tx, session_id)
        await raise_generation(tx, session_id)
        await mark_attached(tx, run_id, 1, "executor-1")

    await database.transaction(work)
    return Holder(session_id, run_id, 1)


def new_call(index: int = 0, replay: Replay = Replay.UNSAFE, **more: Any) -> Call:
    dispatch_id = new_dispatch_id()
    known: dict[str, Any] = {"tool_call_id": f"call-{dispatch_id}", "tool_name": "charge", "arguments": {}}
    return Call(dispatch_id=dispatch_id, call_index=index, replay=replay, **(known | more))


def calling(*calls: Call, step_index: int = 0, **more: Any) -> Reply:
    """A reply of one sentence that makes these calls; all are claimed unless said otherwise."""
    parts = [
        CallPart(tool_call_id=call.tool_call_id, tool_name=call.tool_name, arguments=call.arguments)
        for call in calls
    ]
    known: dict[str, Any] = {
        "steps_used": step_index + 1,
        "usage": Usage(requests=step_index + 1),
        "content": AssistantContent(parts=(TextPart(text="One moment."), *parts)),
        "calls": calls,
        "claimed": frozenset(call.dispatch_id for call in calls),
    }
    return Reply(step_index=step_index, **(known | more))


async def saved_step(database: Database, *calls: Call, **more: Any) -> Holder:
    """A running run with one saved step of these calls."""
    holder = await running_run(database)
    assert await database.statement(lambda tx: write_reply(tx, holder, calling(*calls, **more)))
    return holder


def session_rows(look: psycopg.Connection, session_id: str) -> dict[str, list[str]]:
    """Every row of a session, as text: two of these are equal when nothing was written between."""
    found: dict[str, list[str]] = {}
    for table, which in _OF_SESSION.items():
        query = f"SELECT to_jsonb(t)::text || xmin::text FROM {table} t WHERE {which} ORDER BY 1"
        found[table] = [row for (row,) in look.execute(query.encode(), {"s": session_id}).fetchall()]
    return found


def blocked(look: psycopg.Connection) -> int:
    """How many connections to this database wait for a lock."""
    row = look.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    return int(row[0]) if row else 0
