"""The watcher: tells this process's executions, soon, that they have lost their runs.

The fence refuses a stale write in any case; the watcher only spares bodies and model
requests that could no longer count. One query per tick for all executions of the process.
"""

from __future__ import annotations

import asyncio
import logging

from helix_dbos.workflows.runtime import Runtime

__all__ = ["watch_for_ever", "watch_once"]

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.3


async def watch_for_ever(runtime: Runtime) -> None:
    """Look at every tick; a database that is away says nothing about who holds a run."""
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        try:
            await watch_once(runtime)
        except Exception as failure:
            logger.info("watch_failed", extra={"event": "watch_failed", "cause": type(failure).__name__})


async def watch_once(runtime: Runtime) -> None:
    """Mark every live execution whose generation is not the session's any more as lost."""
    seen = list(runtime.live.values())
    if not seen:
        return
    async with runtime.database.read() as tx:
        rows = await tx.rows(
            "SELECT session_id, generation FROM sessions WHERE session_id = ANY(%s)",
            ([execution.session_id for execution in seen],),
        )
    generations = {row["session_id"]: row["generation"] for row in rows}
    for execution in seen:
        if generations.get(execution.session_id) != execution.generation:
            execution.lose()
