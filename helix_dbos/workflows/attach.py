"""Attach: the first transaction of a stretch. It takes the run over, or leaves it alone."""

from __future__ import annotations

from helix_dbos.agents.erased import AnyAgent
from helix_dbos.core.states import RunStatus
from helix_dbos.faults import FaultPoint
from helix_dbos.store.calls import take_ownership
from helix_dbos.store.database import Transaction
from helix_dbos.store.runs import RunRow, lock_and_load, mark_attached
from helix_dbos.store.sessions import SessionRow, raise_generation
from helix_dbos.workflows.execution import Execution
from helix_dbos.workflows.runtime import Runtime
from helix_dbos.workflows.stretch import put_back

__all__ = ["attach"]

_ATTACHABLE = frozenset({RunStatus.QUEUED, RunStatus.RUNNING})


async def attach(runtime: Runtime, run_id: str, workflow_id: str) -> Execution | None:
    """Take the run over in a new generation; None when it is not this stretch's to carry.

    A stretch that was superseded, whose run has ended, or whose agent this process lacks
    leaves quietly; the last is put back into the queue with a pause. Repeatable: attaching
    again only takes one more generation.
    """
    runtime.reach(FaultPoint.BEFORE_ATTACH, run_id)

    async def work(tx: Transaction) -> Execution | None:
        found = await lock_and_load(tx, run_id)
        if found is None:
            return None
        session, run = found
        if run.workflow_id != workflow_id or run.status not in _ATTACHABLE:
            return None
        agent = runtime.agents.get(session.agent)
        if agent is None or runtime.draining or not runtime.carries_turns:
            await put_back(tx, runtime, run, session.generation)
            return None
        execution = await _take_over(tx, runtime, session, run, agent)
        runtime.reach(FaultPoint.BEFORE_ATTACH_COMMIT, run_id)
        return execution

    execution = await runtime.database.transaction(work)
    if execution is not None:
        runtime.reach(FaultPoint.AFTER_ATTACH, run_id)
    return execution


async def _take_over(
    tx: Transaction, runtime: Runtime, session: SessionRow, run: RunRow, agent: AnyAgent
) -> Execution:
    generation = session.generation + 1
    async with tx.together():
        await raise_generation(tx, session.session_id)
        await mark_attached(tx, run.run_id, generation, runtime.executor_id)
        await take_ownership(tx, session.session_id, run.run_id)
    return Execution(
        runtime=runtime,
        agent=agent,
        session=session,
        run_id=run.run_id,
        workflow_id=run.workflow_id,
        generation=generation,
        step_index=run.step_index,
        steps_used=run.steps_used,
        usage=run.usage,
        rescued=run.rescues > 0,
    )
