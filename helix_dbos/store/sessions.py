"""Sessions: the lock and the fence of everything that happens in a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg.types.json import Jsonb
from pydantic import JsonValue

from helix_dbos.store.database import Transaction

__all__ = [
    "SessionRow",
    "ensure_session",
    "load_session",
    "load_state",
    "lock_session",
    "raise_generation",
    "set_current_run",
]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as read under its lock."""

    session_id: str
    agent: str
    generation: int
    current_run_id: str | None
    user_id: str | None
    metadata: dict[str, JsonValue]


async def ensure_session(
    tx: Transaction, session_id: str, agent: str, user_id: str | None, metadata: Mapping[str, JsonValue]
) -> None:
    """Insert the session unless it exists; an existing one stays as it is."""
    await tx.send(
        "WITH fresh AS (INSERT INTO sessions (session_id, agent, user_id, metadata) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (session_id) DO NOTHING RETURNING session_id),"
        " counted AS (INSERT INTO session_counters (session_id) SELECT session_id FROM fresh)"
        " INSERT INTO session_state (session_id) SELECT session_id FROM fresh",
        (session_id, agent, user_id, Jsonb(dict(metadata))),
    )


async def lock_session(tx: Transaction, session_id: str) -> SessionRow | None:
    """Lock the session until the transaction ends, then read it.

    This is a statement of its own on purpose: a statement that waits for a row lock keeps
    the snapshot from before the wait for everything but that row.
    """
    row = await tx.one(
        "SELECT session_id, agent, generation, current_run_id, user_id, metadata"
        " FROM sessions WHERE session_id = %s FOR NO KEY UPDATE",
        (session_id,),
    )
    return SessionRow(**row) if row else None


async def load_session(tx: Transaction, session_id: str) -> SessionRow | None:
    """The session without a lock, for reading."""
    row = await tx.one(
        "SELECT session_id, agent, generation, current_run_id, user_id, metadata"
        " FROM sessions WHERE session_id = %s",
        (session_id,),
    )
    return SessionRow(**row) if row else None


async def raise_generation(tx: Transaction, session_id: str) -> None:
    """Raise the fence by one: every earlier execution is refused from now on. Needs the lock."""
    await tx.send(
        "UPDATE sessions SET generation = generation + 1, updated_at = now() WHERE session_id = %s",
        (session_id,),
    )


async def set_current_run(
    tx: Transaction, session_id: str, run_id: str, metadata: Mapping[str, JsonValue] | None
) -> None:
    """Make this run the session's current one; metadata replaces the session's when given."""
    await tx.execute(
        "UPDATE sessions SET current_run_id = %s, metadata = coalesce(%s, metadata), updated_at = now()"
        " WHERE session_id = %s",
        (run_id, None if metadata is None else Jsonb(dict(metadata)), session_id),
    )


async def load_state(tx: Transaction, session_id: str) -> dict[str, JsonValue]:
    """The session's custom state as it is now."""
    row = await tx.one("SELECT state FROM session_state WHERE session_id = %s", (session_id,))
    return row["state"] if row else {}
