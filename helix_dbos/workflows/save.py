"""Save first: a reply is committed, with every call, before any of its bodies starts."""

from __future__ import annotations

from typing import assert_never

from helix_dbos.core.calls import Call
from helix_dbos.core.messages import AssistantContent, NoticeContent, Usage
from helix_dbos.core.reply import Empty, FinalOutput, FinalText, MissingOutput, ReplyPlan, SaveStep
from helix_dbos.core.settlement import claim, step_is_settled
from helix_dbos.core.states import FINISH_TOOL, CheckpointKind
from helix_dbos.faults import FaultPoint
from helix_dbos.models.port import ModelReply
from helix_dbos.store.database import Transaction
from helix_dbos.store.hot import Reply, write_reply
from helix_dbos.workflows.end import complete
from helix_dbos.workflows.execution import Execution, Refused, fence

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
    settled = CheckpointKind.STEP_COMMIT if calls and step_is_settled(calls) else None
    reply = Reply(
        step_index=execution.step_index + 1,
        steps_used=execution.steps_used + 1,
        usage=usage,
        content=content,
        calls=calls,
        claimed=starting,
        notice=notice,
        checkpoint=append or settled,
    )
    runtime = execution.runtime
    runtime.reach(FaultPoint.BEFORE_SAVE_COMMIT, execution.run_id)
    execution.require_hold()
    if not await runtime.database.statement(lambda tx: write_reply(tx, execution.holder, reply)):
        await runtime.database.transaction(lambda tx: _require_saved(tx, execution, reply.step_index))
    execution.step_index, execution.usage, execution.rescued = reply.step_index, usage, False
    execution.steps_used = reply.steps_used
    execution.messages.append(content)
    execution.know(claim(calls, tuple(starting), execution.generation))
    runtime.reach(FaultPoint.AFTER_SAVE, execution.run_id)


async def _require_saved(tx: Transaction, execution: Execution, step_index: int) -> None:
    """Pass when the save is there already: our own commit, whose acknowledgement was lost."""
    run = await fence(tx, execution)
    if run.step_index != step_index:
        raise Refused
