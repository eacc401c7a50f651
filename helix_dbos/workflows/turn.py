"""A turn, on one page: attach, then settle and ask until the run ends.

This is the body of the DBOS workflow `helix.turn`, one per stretch of a run. It decides
nothing and trusts nothing but the store: it loads rows, asks `core`, commits what was
decided, and only then acts. It may be killed, repeated or raced at any point.

    attach      take the run over in a new generation, or leave quietly
    recover     decide every call that an earlier generation left unanswered
    loop
      settle    start what may start; commit each answer; until the step has all of them
      finish?   a waiting `__finish__` ends the run
      drain?    hand the run over to another process
      ask       the model step: ask, then save in one transaction; a final reply ends the run
"""

from __future__ import annotations

import logging

from helix_dbos.agents import RunInfo, run_dependencies
from helix_dbos.core.messages import Usage
from helix_dbos.errors import RunError, StoreError
from helix_dbos.workflows.attach import attach
from helix_dbos.workflows.end import end_with_finish, fail_run
from helix_dbos.workflows.execution import Execution, Refused, contained
from helix_dbos.workflows.model_step import take_step
from helix_dbos.workflows.recovery import recover
from helix_dbos.workflows.runtime import Runtime
from helix_dbos.workflows.settle import settle
from helix_dbos.workflows.stretch import hand_over

__all__ = ["run_stretch"]

logger = logging.getLogger(__name__)


async def run_stretch(runtime: Runtime, run_id: str, workflow_id: str) -> str:
    """Carry one stretch of a run to its end, its hand-over, or the loss of the run.

    Whatever fails ends the run failed with every call answered; only a process that dies
    leaves the run to the sweeper. DBOS's own signals are `BaseException`s and pass through.

    Returns:
        One word for DBOS's tools; nothing reads it.
    """
    execution = await attach(runtime, run_id, workflow_id)
    if execution is None:
        return "superseded"
    if earlier := runtime.live.get(run_id):
        earlier.lose()  # DBOS ran the stretch again in this very process: the watcher sees only the new one
    runtime.live[run_id] = execution
    try:
        return await execution.outside_workflow(_carry(execution))
    except Refused:
        return "superseded"
    except StoreError:
        # The database went away for longer than our patience: the sweeper takes over.
        logger.warning("stretch_abandoned", extra={"event": "stretch_abandoned", "run_id": run_id})
        return "abandoned"
    finally:
        if runtime.live.get(run_id) is execution:
            del runtime.live[run_id]


async def _carry(execution: Execution) -> str:
    try:
        with contained("the run"):
            await execution.load()
            info = RunInfo(
                session_id=execution.session_id,
                run_id=execution.run_id,
                user_id=execution.session.user_id,
                metadata=execution.session.metadata,
                process=await execution.runtime.process_dependencies.get(execution.agent),
            )
            async with run_dependencies(execution.agent, info) as execution.dependencies:
                return await _drive(execution)
    except (Refused, StoreError):
        raise
    except Exception as failure:
        return await fail_run(execution, failure)


async def _drive(execution: Execution) -> str:
    await recover(execution)
    while True:
        await settle(execution)
        if finish := execution.waiting_finish:
            if await end_with_finish(execution, finish):
                return "completed"
            continue
        if execution.runtime.draining:
            return await hand_over(execution)
        _require_budget(execution)
        if await take_step(execution):
            return "completed"


def _require_budget(execution: Execution) -> None:
    """Refuse one more model request when the run's budget is used up."""
    agent = execution.agent
    if execution.steps_used >= agent.max_steps:
        raise RunError(
            "The run reached its limit of steps.",
            code="max_steps_exceeded",
            detail=f"max_steps is {agent.max_steps}",
        )
    one_more = execution.usage + Usage(requests=1)
    exceeded = agent.usage_limits.exceeded_by(one_more) if agent.usage_limits else None
    if exceeded:
        raise RunError("The run reached its usage limit.", code="usage_limit_exceeded", detail=exceeded)
