"""The sweeper: finds runs that no live process will bring any further, and rescues them.

One process per tick sweeps, elected by a transaction-level try-lock. Nothing here decides
about truth: a rescue that raced somebody else finds that the run has moved.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any

from helix_dbos.engine.port import StrandedRun
from helix_dbos.errors import StoreError
from helix_dbos.store.database import Transaction
from helix_dbos.store.executors import is_live
from helix_dbos.workflows.rescue import postpone, rescue
from helix_dbos.workflows.runtime import Runtime

__all__ = ["SETTLED_SECONDS", "sweep_for_ever", "sweep_once"]

logger = logging.getLogger(__name__)

# After a database outage every executor looks dead until it has taken its lock again. Who looks
# must not be fooled by his own: that it is gone shows at the next ping only, so the server is asked.
SETTLED_SECONDS = 2.0
_BATCH = 100


async def sweep_for_ever(runtime: Runtime, lock_held_for: Callable[[], float]) -> None:
    """Sweep at every tick while this process's own lock is old enough; failures are logged."""

    def settled() -> bool:
        return lock_held_for() >= SETTLED_SECONDS

    suspects: frozenset[str] = frozenset()
    while True:
        await asyncio.sleep(runtime.settings.sweep_seconds)
        if not settled() or runtime.draining:
            continue
        try:
            await sweep_once(runtime, settled)
            suspects = await _sweep_own(runtime, suspects)
        except Exception as failure:
            logger.warning(
                "sweep_failed",
                exc_info=failure,
                extra={"event": "sweep_failed", "cause": type(failure).__name__},
            )


async def sweep_once(runtime: Runtime, settled: Callable[[], bool] = lambda: True) -> int:
    """Rescue what is stranded and cancel what is left over; the number of runs rescued.

    Returns 0 when another process is sweeping, or when this one's lock turns out to be gone: then
    the others may look dead for the same reason.

    Args:
        settled: Whether the lock has been held for a while, as this process knows.
    """
    key = _sweep_key(runtime.database.schema)

    async def work(tx: Transaction) -> int:
        elected = await tx.one("SELECT pg_try_advisory_xact_lock(%s) AS mine", (key,))
        if not elected or not elected["mine"]:
            return 0
        lost = await runtime.engine.find_lost(tx, _BATCH)
        if not await is_live(tx, runtime.executor_id) or not settled():
            return 0
        rescued = 0
        for stranded in lost:
            rescued += await _alone(_rescue(runtime, stranded))
        await _alone(_cancel_leftovers(runtime, tx))
        return rescued

    return await runtime.database.transaction(work, patience_seconds=0)


async def _sweep_own(runtime: Runtime, suspects: frozenset[str]) -> frozenset[str]:
    """Rescue what the engine claimed for this process without its knowing; whom to suspect next.

    When the acknowledgement of a claim is lost, the row says for ever that a live process carries
    the run. Only a second look counts, because a claim's start may just be on its way.
    """
    async with runtime.database.read() as tx:
        unknown = await runtime.engine.unknown_claims(tx, _BATCH)
    for stranded in unknown:
        if stranded.workflow_id in suspects:
            await _alone(_rescue(runtime, stranded))
    return frozenset(stranded.workflow_id for stranded in unknown)


async def _rescue(runtime: Runtime, stranded: StrandedRun) -> bool:
    try:
        return await rescue(runtime, stranded)
    except StoreError:
        raise
    except Exception:
        await postpone(runtime, stranded)
        raise


async def _alone(work: Any) -> int:
    """One poisoned run never stops the sweep of the others."""
    try:
        return int(await work)
    except Exception as failure:
        logger.warning(
            "rescue_failed",
            exc_info=failure,
            extra={"event": "rescue_failed", "cause": type(failure).__name__},
        )
        return 0


async def _cancel_leftovers(runtime: Runtime, tx: Transaction) -> int:
    leftovers = await runtime.engine.leftovers(tx, _BATCH)
    await runtime.engine.cancel(leftovers)
    return 0


def _sweep_key(schema: str) -> int:
    digest = hashlib.blake2b(f"{schema}/sweep".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
