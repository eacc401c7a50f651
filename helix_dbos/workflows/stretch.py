"""The next stretch of a run: one mechanism for put-back, hand-over, rescue and continuation.

The new workflow id comes from a counter raised under the session's lock, and the enqueue is
in the transaction that decided it. The old stretch, wherever it is, finds itself superseded.
"""

from __future__ import annotations

from helix_dbos.faults import FaultPoint
from helix_dbos.ids import turn_workflow_id
from helix_dbos.store.database import Transaction
from helix_dbos.store.runs import RunRow, next_stretch
from helix_dbos.store.sessions import raise_generation
from helix_dbos.workflows.execution import Execution, fence
from helix_dbos.workflows.runtime import Runtime

__all__ = ["CONTINUATION_PRIORITY", "TURN_PRIORITY", "enqueue_next", "hand_over", "put_back"]

# Lower goes first: what was begun is finished before something new is begun.
CONTINUATION_PRIORITY, TURN_PRIORITY = 10, 100

_PUT_BACK_SECONDS = 1.0


async def enqueue_next(
    tx: Transaction,
    runtime: Runtime,
    run: RunRow,
    *,
    generation: int,
    rescues: int,
    pause_seconds: float = 0.0,
    delay_seconds: float = 0.0,
) -> None:
    """Enqueue the run's next stretch and fence every earlier one off. Needs the session's lock.

    Args:
        generation: The session's, as read under the lock.
        rescues: Rescues without progress so far.
        pause_seconds: The least time before the sweeper may rescue the run again.
        delay_seconds: How long the stretch waits before a worker may take it.
    """
    workflow_id = turn_workflow_id(run.run_id, run.stretch_no + 1)
    async with tx.together():
        await raise_generation(tx, run.session_id)
        await next_stretch(
            tx,
            run.run_id,
            generation=generation + 1,
            workflow_id=workflow_id,
            rescues=rescues,
            pause_seconds=pause_seconds,
        )
        await runtime.engine.enqueue(
            tx,
            run_id=run.run_id,
            workflow_id=workflow_id,
            priority=CONTINUATION_PRIORITY,
            delay_seconds=delay_seconds,
        )


async def put_back(tx: Transaction, runtime: Runtime, run: RunRow, generation: int) -> None:
    """Leave the run to a process that can carry it; nothing is counted against it."""
    await enqueue_next(
        tx, runtime, run, generation=generation, rescues=run.rescues, delay_seconds=_PUT_BACK_SECONDS
    )


async def hand_over(execution: Execution) -> str:
    """Leave the run to another process between two steps, because this one is draining."""
    runtime = execution.runtime

    async def work(tx: Transaction) -> None:
        run = await fence(tx, execution)
        await enqueue_next(tx, runtime, run, generation=execution.generation, rescues=run.rescues)
        runtime.reach(FaultPoint.BEFORE_HANDOVER_COMMIT, execution.run_id)

    await runtime.database.transaction(work)
    runtime.reach(FaultPoint.AFTER_HANDOVER, execution.run_id)
    return "handed over"
