"""Runs: one execution entry of a session, carried by one stretch after another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb
from pydantic import JsonValue

from helix_dbos.core.messages import Usage
from helix_dbos.core.states import RunStatus
from helix_dbos.store.database import Row, Transaction
from helix_dbos.store.sessions import SessionRow

__all__ = [
    "RunRow",
    "end_run",
    "insert_run",
    "load_run",
    "lock_and_load",
    "mark_attached",
    "next_stretch",
    "postpone_rescue",
]

_COLUMNS = (
    "run_id, session_id, entry, status, generation, workflow_id, stretch_no, rescues, executor_id,"
    " step_index, steps_used, queue, priority, output, error, usage, created_at, started_at, ended_at"
)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as read; `error` holds code, error and detail of a failed one."""

    run_id: str
    session_id: str
    entry: str
    status: RunStatus
    generation: int
    workflow_id: str
    stretch_no: int
    rescues: int
    executor_id: str | None
    step_index: int
    steps_used: int
    queue: str
    priority: int
    output: JsonValue
    error: dict[str, Any] | None
    usage: Usage
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


def _run(row: Row) -> RunRow:
    known: dict[str, Any] = {**row, "status": RunStatus(row["status"]), "usage": Usage(**row["usage"])}
    return RunRow(**known)


async def insert_run(
    tx: Transaction,
    *,
    run_id: str,
    session_id: str,
    entry: str,
    workflow_id: str,
    step_index: int,
    queue: str,
    priority: int,
) -> None:
    """Insert a queued run; the database refuses a second open one of the session."""
    await tx.execute(
        "INSERT INTO runs (run_id, session_id, entry, status, workflow_id, step_index, queue, priority)"
        " VALUES (%s, %s, %s, 'queued', %s, %s, %s, %s)",
        (run_id, session_id, entry, workflow_id, step_index, queue, priority),
    )


async def load_run(tx: Transaction, run_id: str) -> RunRow | None:
    """The run, or None."""
    row = await tx.one(f"SELECT {_COLUMNS} FROM runs WHERE run_id = %s", (run_id,))
    return _run(row) if row else None


async def lock_and_load(
    tx: Transaction, run_id: str, *, unless_locked: bool = False
) -> tuple[SessionRow, RunRow] | None:
    """Lock the run's session, then read the run: two statements, in this order, in one round trip.

    Which session a run belongs to never changes, so it may be found in the locking statement.

    Args:
        unless_locked: Do not wait for a session that somebody else has locked; None then.
    """
    locked = await tx.send(
        "SELECT session_id, agent, generation, current_run_id, user_id, metadata FROM sessions"
        " WHERE session_id = (SELECT session_id FROM runs WHERE run_id = %s) FOR NO KEY UPDATE"
        + (" SKIP LOCKED" if unless_locked else ""),
        (run_id,),
    )
    looked = await tx.send(f"SELECT {_COLUMNS} FROM runs WHERE run_id = %s", (run_id,))
    session, run = await locked.fetchone(), await looked.fetchone()
    return (SessionRow(**session), _run(run)) if session and run else None


async def mark_attached(tx: Transaction, run_id: str, generation: int, executor_id: str) -> None:
    """The run is this executor's, in this generation."""
    await tx.execute(
        "UPDATE runs SET status = 'running', generation = %s, executor_id = %s,"
        " started_at = coalesce(started_at, now()) WHERE run_id = %s",
        (generation, executor_id, run_id),
    )


async def next_stretch(
    tx: Transaction, run_id: str, *, generation: int, workflow_id: str, rescues: int, pause_seconds: float
) -> None:
    """The run waits in the queue for its next stretch; `workflow_id` must be a fresh one.

    Args:
        rescues: The rescues without progress so far, this one included.
        pause_seconds: The least time before the sweeper may rescue the run once more.
    """
    await tx.execute(
        "UPDATE runs SET status = 'queued', generation = %s, workflow_id = %s, stretch_no = stretch_no + 1,"
        " executor_id = NULL, rescues = %s, next_rescue_at = now() + make_interval(secs => %s),"
        " queued_at = now() WHERE run_id = %s",
        (generation, workflow_id, rescues, pause_seconds, run_id),
    )


async def postpone_rescue(tx: Transaction, run_id: str, workflow_id: str, *, pause_seconds: float) -> None:
    """The sweeper shall not look at this stretch before the pause is over.

    It reads nothing of the run, waits for no lock, and needs none.
    """
    await tx.execute(
        "UPDATE runs SET next_rescue_at = now() + make_interval(secs => %s) WHERE run_id IN"
        " (SELECT run_id FROM runs WHERE run_id = %s AND workflow_id = %s FOR NO KEY UPDATE SKIP LOCKED)",
        (pause_seconds, run_id, workflow_id),
    )


async def end_run(
    tx: Transaction,
    run_id: str,
    status: RunStatus,
    *,
    output: JsonValue = None,
    error: dict[str, Any] | None = None,
) -> None:
    """The run is over; the caller has raised the session's generation."""
    await tx.send(
        "UPDATE runs SET status = %s, output = %s, error = %s, ended_at = now() WHERE run_id = %s",
        (
            status.value,
            Jsonb(output) if status is RunStatus.COMPLETED else None,
            None if error is None else Jsonb(error),
            run_id,
        ),
    )
