"""The end of a run: one terminal transaction, whatever the end is.

It raises the session's generation, so that nothing of the run can write afterwards, and it
leaves no call of the run unanswered.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from pydantic import JsonValue

from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.messages import AssistantContent, Usage
from helix_dbos.core.states import CallState, CheckpointKind, Origin, Outcome, Reason, RunStatus
from helix_dbos.core.texts import not_executed
from helix_dbos.errors import HelixError
from helix_dbos.faults import FaultPoint
from helix_dbos.store.calls import insert_answers, load_open_calls, mark_answered
from helix_dbos.store.checkpoints import insert_checkpoint
from helix_dbos.store.database import Transaction
from helix_dbos.store.hot import Reply, write_end
from helix_dbos.store.runs import RunRow, end_run
from helix_dbos.store.sessions import raise_generation
from helix_dbos.workflows.execution import Execution, fence_end

__all__ = ["complete", "end_with_finish", "fail_locked_run", "fail_run"]

logger = logging.getLogger(__name__)

_FINISHED = Answer(Outcome.RETURNED, None, "The result was delivered.", Origin.REPLY)
_SECOND = Answer(
    Outcome.NOT_EXECUTED,
    Reason.INVALID_ARGUMENTS,
    "It was not delivered: an earlier result of the same reply was.",
    Origin.REPLY,
)


async def complete(
    execution: Execution,
    output: JsonValue,
    *,
    content: AssistantContent,
    usage: Usage,
    finish: Call | None = None,
) -> None:
    """End the run completed, saving its last reply in the same transaction.

    Args:
        finish: The finish call that is the whole reply, when it was one.
    """
    answered = [replace(finish, answer=_FINISHED, state=CallState.ANSWERED)] if finish else []
    reply = Reply(
        step_index=execution.step_index + 1,
        steps_used=execution.steps_used + 1,
        usage=usage,
        content=content,
        calls=answered,
        checkpoint=CheckpointKind.END,
    )
    database = execution.runtime.database
    execution.runtime.reach(FaultPoint.BEFORE_END_COMMIT, execution.run_id)
    execution.require_hold()
    if not await database.statement(lambda tx: write_end(tx, execution.holder, reply, output)):
        # Either the acknowledgement of our own commit was lost, or the run was.
        await database.transaction(lambda tx: fence_end(tx, execution))
    _announce(execution)


async def end_with_finish(execution: Execution, finish: Call) -> bool:
    """End the run with a finish call that waited for its siblings; False when it no longer fits.

    A deploy may have changed the output's type since the save: then the call is answered with
    what is wrong, and the model is asked again.
    """
    check = execution.agent.check_output
    problem = check(finish.arguments) if check else "There is no typed output any more."
    answer = _FINISHED if problem is None else not_executed(Reason.INVALID_ARGUMENTS, Origin.REPLY, problem)

    async def work(tx: Transaction) -> None:
        if await fence_end(tx, execution) is None:
            return
        session_id, run_id, step = execution.session_id, execution.run_id, execution.step_index
        open_ids = [call.dispatch_id for call in await load_open_calls(tx, session_id)]
        if finish.dispatch_id not in open_ids:
            return  # our own commit, whose acknowledgement was lost
        answers = [(finish.dispatch_id, answer)]
        if problem is None:
            await raise_generation(tx, session_id)
            answers += [(other, _SECOND) for other in open_ids if other != finish.dispatch_id]
        async with tx.together():
            await insert_answers(tx, run_id, execution.generation, answers)
            await mark_answered(tx, [dispatch_id for dispatch_id, _ in answers])
            if problem is None:
                await end_run(
                    tx, run_id, RunStatus.COMPLETED, output=execution.agent.stored_output(finish.arguments)
                )
                await insert_checkpoint(tx, session_id, run_id, step, CheckpointKind.END)
        execution.runtime.reach(FaultPoint.BEFORE_END_COMMIT, run_id)

    if problem is None:
        await execution.runtime.database.transaction(work)
        _announce(execution)
        return True
    await execution.runtime.database.transaction(work)
    execution.know(
        tuple(replace(call, answer=answer) if call == finish else call for call in execution.calls)
    )
    return False


async def fail_run(execution: Execution, failure: Exception) -> str:
    """End the run failed, every open call answered `outcome_unknown`.

    Raises:
        Refused: The run was lost meanwhile; then it is not ours to end.
    """
    error = _error_of(failure)
    logger.warning(
        "run_failed",
        exc_info=failure,
        extra={
            "event": "run_failed",
            "session_id": execution.session_id,
            "run_id": execution.run_id,
            "generation": execution.generation,
            "code": error["code"],
        },
    )

    async def work(tx: Transaction) -> None:
        run = await fence_end(tx, execution)
        if run is None:
            return
        await fail_locked_run(tx, run, execution.generation, error)
        execution.runtime.reach(FaultPoint.BEFORE_END_COMMIT, execution.run_id)

    await execution.runtime.database.transaction(work)
    _announce(execution)
    return "failed"


async def fail_locked_run(tx: Transaction, run: RunRow, generation: int, error: dict[str, Any]) -> None:
    """Write a failed end. Needs the session's lock, and a run that is open.

    Args:
        generation: The session's, as read under the lock.
    """
    doubt = not_executed(Reason.OUTCOME_UNKNOWN, Origin.FAILURE)
    left = [call.dispatch_id for call in await load_open_calls(tx, run.session_id)]
    async with tx.together():
        await raise_generation(tx, run.session_id)
        if left:
            await insert_answers(tx, run.run_id, generation + 1, [(each, doubt) for each in left])
            await mark_answered(tx, left)
        await end_run(tx, run.run_id, RunStatus.FAILED, error=error)
        await insert_checkpoint(tx, run.session_id, run.run_id, run.step_index, CheckpointKind.END)


def _announce(execution: Execution) -> None:
    execution.runtime.reach(FaultPoint.AFTER_END, execution.run_id)
    execution.runtime.ended(execution.run_id)


def _error_of(failure: Exception) -> dict[str, Any]:
    if isinstance(failure, HelixError):
        return {"code": failure.code, "error": failure.error, "detail": failure.detail}
    return {
        "code": "run_internal_error",
        "error": "The run failed with an internal error.",
        "detail": type(failure).__name__,
    }
