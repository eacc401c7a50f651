"""A plain in-process loop that stands in for DBOS behind the engine's port.

Its queue is one table beside ours, so that an enqueue is in the transaction that decided it;
everything else is tasks of this process, and dies with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pydantic import JsonValue

from helix_dbos.engine.port import RunStretch, StrandedCause, StrandedRun
from helix_dbos.store.database import Database, Transaction

__all__ = ["LoopEngine"]

_POLL_SECONDS = 0.01

_CREATE = """
CREATE TABLE IF NOT EXISTS loop_queue (
    workflow_id text PRIMARY KEY, run_id text NOT NULL, priority int NOT NULL,
    not_before timestamptz NOT NULL)
"""

_TAKE = """
DELETE FROM loop_queue WHERE workflow_id IN (
    SELECT workflow_id FROM loop_queue WHERE not_before <= now()
     ORDER BY priority, not_before LIMIT 10 FOR UPDATE SKIP LOCKED)
RETURNING run_id, workflow_id
"""

_LOST = """
SELECT run_id, session_id, workflow_id, generation, status FROM runs
 WHERE status IN ('queued', 'running') AND workflow_id <> ALL(%s)
   AND NOT EXISTS (SELECT 1 FROM loop_queue q WHERE q.workflow_id = runs.workflow_id)
 LIMIT %s
"""


class LoopEngine:
    """One process's engine, without DBOS."""

    starting = 0

    def __init__(self, database: Database) -> None:
        self._database = database
        self._run_stretch: RunStretch | None = None
        self._poller: asyncio.Task[None] | None = None
        self.carried: dict[str, asyncio.Task[str]] = {}
        self.records = 0

    async def launch(self, run_stretch: RunStretch, *, worker: bool) -> None:
        async with self._database.read() as tx:
            await tx.execute(_CREATE)
        self._run_stretch = run_stretch
        if worker:
            self._poller = asyncio.create_task(self._poll())

    async def close(self, grace_seconds: float) -> None:
        if self._poller is not None:
            self._poller.cancel()
            with suppress(asyncio.CancelledError):
                await self._poller
        if self.carried:
            await asyncio.wait(self.carried.values(), timeout=grace_seconds)
        for task in list(self.carried.values()):
            task.cancel()

    async def enqueue(
        self, tx: Transaction, *, run_id: str, workflow_id: str, priority: int, delay_seconds: float = 0.0
    ) -> None:
        await tx.send(
            "INSERT INTO loop_queue VALUES (%s, %s, %s, now() + make_interval(secs => %s))"
            " ON CONFLICT DO NOTHING",
            (workflow_id, run_id, priority, delay_seconds),
        )

    async def start(self, run_id: str, workflow_id: str) -> None:
        assert self._run_stretch is not None, "launched"
        task: asyncio.Task[str] = asyncio.create_task(self._carry(run_id, workflow_id))
        self.carried[workflow_id] = task
        task.add_done_callback(lambda _task: self.carried.pop(workflow_id, None))

    async def record(self, step: Callable[[], Awaitable[dict[str, JsonValue]]]) -> dict[str, JsonValue]:
        self.records += 1
        return await step()

    async def find_lost(self, tx: Transaction, limit: int) -> Sequence[StrandedRun]:
        rows = await tx.rows(_LOST, (list(self.carried), limit))
        return [StrandedRun(**row, cause=StrandedCause.DEAD_EXECUTOR) for row in rows]

    async def unknown_claims(self, tx: Transaction, limit: int) -> Sequence[StrandedRun]:
        return []

    async def cancel(self, workflow_ids: Sequence[str]) -> None:
        return None

    async def leftovers(self, tx: Transaction, limit: int) -> Sequence[str]:
        return []

    async def _carry(self, run_id: str, workflow_id: str) -> str:
        assert self._run_stretch is not None, "launched"
        return await self._run_stretch(run_id, workflow_id)

    async def _poll(self) -> None:
        while True:
            async with self._database.read() as tx:
                taken = await tx.rows(_TAKE)
            for row in taken:
                await self.start(row["run_id"], row["workflow_id"])
            await asyncio.sleep(_POLL_SECONDS)
