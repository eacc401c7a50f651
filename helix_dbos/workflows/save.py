"""Save first: a reply is committed, with every call, before any of its bodies starts."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from helix_dbos.core.calls import Call
from helix_dbos.core.messages import AssistantContent, NoticeContent, Usage
from helix_dbos.core.reply import Empty, FinalOutput, FinalText, MissingOutput, ReplyPlan, SaveStep
from helix_dbos.core.settlement import claim, step_is_settled
from helix_dbos.core.states import FINISH_TOOL, CheckpointKind
from helix_dbos.faults import FaultPoint
from helix_dbos.models.port import ModelReply
from helix_dbos.store.calls import insert_answers, insert_calls
from helix_dbos.store.checkpoints import insert_checkpoint
from helix_dbos.store.database import Transaction
from helix_dbos.store.messages import append_message
from helix_dbos.store.runs import RunRow, mark_progress
from helix_dbos.workflows.end import complete
from helix_dbos.workflows.execution import Execution, fence

__all__ = ["save_reply"]

MISSING_OUTPUT = NoticeContent(
    text=f"This reply was not delivered. Hand over the result by calling the tool {FINISH_TOOL}."
)


async def save_reply(execution: Execution, reply: ModelReply, plan: ReplyPlan) -> bool:
    """Commit a reply in one transaction; True when that also ended the run.

    Idempotent under a lost acknowledgement: the plan, dispatch ids included, was made before,
    and a run that is one step further in this generation shows that it was committed.

    Raises:
        Refused: The run was lost; nothing was written.
    """
    usage = execution.usage + reply.usage
    match plan:
        case FinalText(content):
            await complete(execution, content.text, content=content, usage=usage)
            return True
        case FinalOutput(content, call):
            output = execution.agent.stored_output(call.arguments)
            await complete(execution, output, content=content, usage=usage, finish=call)
            return True
        case MissingOutput(content):
            await _save(execution, content, (), frozenset(), usage, notice=MISSING_OUTPUT)
            execution.messages.append(MISSING_OUTPUT)
            return False
        case SaveStep(content, calls, starting):
            kind = CheckpointKind.APPEND if plan.starts_bodies else None
            await _save(execution, content, calls, starting, usage, append=kind)
            return False
        case Empty():
            raise AssertionError("an empty reply is never saved")
        case _:
            assert_never(plan)


async def _save(
    execution: Execution,
    content: AssistantContent,
    calls: tuple[Call, ...],
    starting: frozenset[str],
    usage: Usage,
    *,
    append: CheckpointKind | None = None,
    notice: NoticeContent | None = None,
) -> None:
    step_index = execution.step_index + 1

    async def work(tx: Transaction) -> None:
        run = await fence(tx, execution)
        if run.step_index == step_index:
            return  # our own commit, whose acknowledgement was lost
        async with tx.together():
            await _write(tx, run, step_index)
        execution.runtime.reach(FaultPoint.BEFORE_SAVE_COMMIT, execution.run_id)

    async def _write(tx: Transaction, run: RunRow, step_index: int) -> None:
        session_id, run_id = execution.session_id, execution.run_id
        await mark_progress(tx, run_id, step_index=step_index, steps_used=run.steps_used + 1, usage=usage)
        await append_message(tx, session_id, run_id, content, step_index)
        if notice:
            await append_message(tx, session_id, run_id, notice)
        await insert_calls(
            tx,
            session_id=session_id,
            run_id=run_id,
            step_index=step_index,
            calls=calls,
            claimed=starting,
            generation=execution.generation,
        )
        answered = [(call.dispatch_id, call.answer) for call in calls if call.answer is not None]
        await insert_answers(tx, run_id, execution.generation, answered)
        if append:
            await insert_checkpoint(tx, session_id, run_id, step_index, append)
        elif calls and step_is_settled(calls):
            await insert_checkpoint(tx, session_id, run_id, step_index, CheckpointKind.STEP_COMMIT)

    await execution.runtime.database.transaction(work)
    execution.step_index, execution.usage, execution.rescued = step_index, usage, False
    execution.steps_used += 1
    execution.messages.append(content)
    execution.know(claim([replace(call) for call in calls], tuple(starting), execution.generation))
    execution.runtime.reach(FaultPoint.AFTER_SAVE, execution.run_id)
