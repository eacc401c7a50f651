"""Rescue: another executor takes a run over, by giving it its next stretch.

Conditional on the workflow and generation that the sweeper saw, so that of two rescuers one
does nothing. Rescues after an attach without progress are bounded, with growing pauses.
"""

from __future__ import annotations

import logging

from helix_dbos.core.states import RunStatus
from helix_dbos.engine.port import StrandedCause, StrandedRun
from helix_dbos.faults import FaultPoint
from helix_dbos.store.database import Transaction
from helix_dbos.store.runs import RunRow, lock_and_load, postpone_rescue
from helix_dbos.workflows.end import fail_locked_run
from helix_dbos.workflows.runtime import Runtime
from helix_dbos.workflows.stretch import enqueue_next

__all__ = ["MAX_RESCUES", "postpone", "rescue"]

logger = logging.getLogger(__name__)

MAX_RESCUES = 5
_FIRST_PAUSE_SECONDS = 0.5
_POSTPONED_SECONDS = 30.0
_COUNTED = frozenset({StrandedCause.DEAD_EXECUTOR, StrandedCause.ENDED, StrandedCause.UNKNOWN_HERE})
_LIMIT = {
    "code": "rescue_limit_reached",
    "error": "The run was given up: it ended its process again and again without getting further.",
    "detail": f"{MAX_RESCUES} rescues without progress",
}


async def rescue(runtime: Runtime, stranded: StrandedRun) -> bool:
    """Give the run its next stretch, or end it failed when its rescues are used up.

    Returns:
        Whether anything was done; False when the run has moved since it was seen, or when its
        session is locked at this moment.
    """

    async def work(tx: Transaction) -> bool:
        # A process that froze in a transaction holds its session's lock until the server drops its
        # connection. Waiting for it would hold up the whole sweep; a later sweep comes here again.
        found = await lock_and_load(tx, stranded.run_id, unless_locked=True)
        if found is None or not _as_seen(found[1], stranded):
            return False
        session, run = found
        counted = stranded.cause in _COUNTED and run.status is RunStatus.RUNNING
        rescues = run.rescues + 1 if counted else run.rescues
        if rescues > MAX_RESCUES:
            await fail_locked_run(tx, run, session.generation, dict(_LIMIT))
        else:
            pause = _FIRST_PAUSE_SECONDS * 2 ** max(rescues - 1, 0)
            await enqueue_next(
                tx,
                runtime,
                run,
                generation=session.generation,
                rescues=rescues,
                pause_seconds=pause,
            )
        runtime.reach(FaultPoint.BEFORE_RESCUE_COMMIT, stranded.run_id)
        return True

    done = await runtime.database.transaction(work)
    runtime.reach(FaultPoint.AFTER_RESCUE, stranded.run_id)
    if done:
        await _cancel_old(runtime, stranded)
        logger.warning(
            "run_rescued",
            extra={
                "event": "run_rescued",
                "session_id": stranded.session_id,
                "run_id": stranded.run_id,
                "cause": stranded.cause.value,
            },
        )
    return done


async def postpone(runtime: Runtime, stranded: StrandedRun) -> None:
    """Put off a run whose rescue raised: many of them would fill every sweep, before all others."""

    async def work(tx: Transaction) -> None:
        await postpone_rescue(tx, stranded.run_id, stranded.workflow_id, pause_seconds=_POSTPONED_SECONDS)

    await runtime.database.transaction(work, patience_seconds=0)


async def _cancel_old(runtime: Runtime, stranded: StrandedRun) -> None:
    """Housekeeping: the old engine row is over. What this misses, a later sweep cancels."""
    if stranded.cause is StrandedCause.MISSING:
        return
    try:
        await runtime.engine.cancel([stranded.workflow_id])
    except Exception as failure:
        logger.info("cancel_failed", extra={"event": "cancel_failed", "cause": type(failure).__name__})


def _as_seen(run: RunRow, stranded: StrandedRun) -> bool:
    return (
        run.workflow_id == stranded.workflow_id
        and run.generation == stranded.generation
        and run.status in (RunStatus.QUEUED, RunStatus.RUNNING)
    )
