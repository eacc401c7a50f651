"""Executors: one row per start of a process. Who is alive is read from `pg_locks`, not from here."""

from __future__ import annotations

from collections.abc import Sequence

from helix_dbos.store.database import Transaction

__all__ = ["LIVE_EXECUTORS", "dbos_id_is_held", "insert_executor", "is_live", "mark_stopped"]

# A 64-bit advisory key shows up in pg_locks as two halves with objsubid 1.
LIVE_EXECUTORS = """
    SELECT e.executor_id, e.dbos_executor_id, e.role, e.version, e.agents, e.started_at
      FROM executors e
     WHERE e.stopped_at IS NULL
       AND EXISTS (SELECT 1 FROM pg_locks l
                    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                      AND ((l.classid::bigint << 32) | l.objid::bigint) = e.lock_key)
"""


async def insert_executor(
    tx: Transaction,
    *,
    executor_id: str,
    dbos_executor_id: str,
    role: str,
    version: str,
    agents: Sequence[str],
    lock_key: int,
    host: str,
    pid: int,
) -> None:
    """Register this process; idempotent."""
    await tx.execute(
        "INSERT INTO executors"
        " (executor_id, dbos_executor_id, role, version, agents, lock_key, host, pid)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (executor_id) DO NOTHING",
        (executor_id, dbos_executor_id, role, version, list(agents), lock_key, host, pid),
    )


async def dbos_id_is_held(tx: Transaction, dbos_executor_id: str) -> bool:
    """Whether a live process of this app already runs under this DBOS executor id."""
    row = await tx.one(
        f"SELECT 1 AS held FROM ({LIVE_EXECUTORS}) live WHERE live.dbos_executor_id = %s LIMIT 1",
        (dbos_executor_id,),
    )
    return row is not None


async def is_live(tx: Transaction, executor_id: str) -> bool:
    """Whether the server sees this executor's lock at this moment."""
    row = await tx.one(
        f"SELECT 1 AS live FROM ({LIVE_EXECUTORS}) live WHERE live.executor_id = %s", (executor_id,)
    )
    return row is not None


async def mark_stopped(tx: Transaction, executor_id: str) -> None:
    """The process stops in order; its lock goes with its connection."""
    await tx.execute("UPDATE executors SET stopped_at = now() WHERE executor_id = %s", (executor_id,))
