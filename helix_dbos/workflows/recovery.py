"""Applies `core.recovery`: decides what an earlier generation left open, in one transaction.

No body starts before that transaction has committed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.decisions import Decision, Pair, RunAgain, Start
from helix_dbos.core.order import startable
from helix_dbos.core.recovery import decide_recovery
from helix_dbos.core.settlement import claim, step_is_settled
from helix_dbos.core.states import CallKind, CallState, CheckpointKind, Origin
from helix_dbos.core.texts import not_executed
from helix_dbos.errors import HelixError
from helix_dbos.faults import FaultPoint
from helix_dbos.store.calls import claim_bodies, insert_answers, load_step_calls, mark_answered
from helix_dbos.store.checkpoints import insert_checkpoint
from helix_dbos.store.database import Transaction
from helix_dbos.workflows.execution import Execution, fence

__all__ = ["recover"]

logger = logging.getLogger(__name__)


async def recover(execution: Execution) -> None:
    """Decide every unanswered call of the current step, commit that, and claim what may start.

    Does nothing, and writes nothing, when the step has no unanswered call. Repeatable: calls
    this generation claimed already are left alone.
    """
    if all(call.answer is not None for call in execution.calls):
        return

    async def work(tx: Transaction) -> tuple[Call, ...]:
        await fence(tx, execution)
        calls = await load_step_calls(tx, execution.session_id, execution.step_index)
        decided = decide_recovery(calls, execution.agent.tools_now(), execution.generation)
        after, answers = _apply(calls, decided)
        claims = [call.dispatch_id for call in startable(after, execution.generation)]
        async with tx.together():
            await insert_answers(tx, execution.run_id, execution.generation, answers)
            await mark_answered(tx, [dispatch_id for dispatch_id, _ in answers])
            await claim_bodies(tx, claims, execution.generation)
            if answers and step_is_settled(after):
                await insert_checkpoint(
                    tx,
                    execution.session_id,
                    execution.run_id,
                    execution.step_index,
                    CheckpointKind.STEP_COMMIT,
                )
        _log(execution, decided)
        execution.runtime.reach(FaultPoint.BEFORE_RECOVERY_COMMIT, execution.run_id)
        return claim(after, claims, execution.generation)

    execution.know(await execution.runtime.database.transaction(work))
    execution.runtime.reach(FaultPoint.AFTER_RECOVERY, execution.run_id)


def _apply(
    calls: Sequence[Call], decided: Sequence[tuple[Call, Decision]]
) -> tuple[list[Call], list[tuple[str, Answer]]]:
    """The step's calls with the decided answers, and those answers."""
    answers: dict[str, Answer] = {}
    for call, decision in decided:
        match decision:
            case Pair(reason):
                answers[call.dispatch_id] = not_executed(reason, Origin.RECOVERY)
            case Start() | RunAgain():
                pass
            case _ if call.kind is CallKind.FINISH:
                pass
            case _:
                raise HelixError(
                    "This version cannot recover a call of this kind.",
                    code="framework_not_supported",
                    detail=f"{call.kind.value}: {type(decision).__name__}",
                )
    after = [
        replace(call, answer=answers[call.dispatch_id], state=CallState.ANSWERED)
        if call.dispatch_id in answers
        else call
        for call in calls
    ]
    return after, list(answers.items())


def _log(execution: Execution, decided: Sequence[tuple[Call, Decision]]) -> None:
    for call, decision in decided:
        logger.info(
            "call_recovered",
            extra={
                "event": "call_recovered",
                "session_id": execution.session_id,
                "run_id": execution.run_id,
                "dispatch_id": call.dispatch_id,
                "generation": execution.generation,
                "decision": type(decision).__name__,
            },
        )
