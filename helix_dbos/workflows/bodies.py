"""A body: one start of a tool's function, and the answer that its end amounts to.

A body is never a DBOS step: DBOS steps run at least once, and a body must not. It starts
only after a committed, fenced transaction claimed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pydantic import JsonValue

from helix_dbos.agents import AbortSignal, ToolContext
from helix_dbos.agents.erased import AnyContext, AnyTool
from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.states import Origin, Outcome, Reason, Replay
from helix_dbos.core.storable import NotStorable, clean_text, storable
from helix_dbos.core.texts import TEXTS, not_executed, raised
from helix_dbos.errors import ToolError
from helix_dbos.faults import FaultPoint
from helix_dbos.workflows.execution import Execution, Refused, contained

__all__ = ["run_body"]

logger = logging.getLogger(__name__)

_NO_CHANGE: Mapping[str, JsonValue] = {}
_STRAGGLER_SECONDS = 1.0
_MAX_ERROR_TEXT = 8_192


class _TimedOut(Exception):
    """The body did not end within its tool's time."""


async def run_body(execution: Execution, call: Call) -> tuple[Answer, Mapping[str, JsonValue]]:
    """Start the body of a claimed call once, and say how it ended.

    Returns:
        The answer, and the fields of the custom state that the body set. A body that does not
        return sets nothing.

    Raises:
        Refused: The run was lost before the body could start, so it did not start.
    """
    if execution.lost:
        raise Refused
    execution.runtime.reach(FaultPoint.BEFORE_BODY, call.tool_name)
    tool = execution.agent.tool(call.tool_name)
    assert tool is not None, "the reply's plan and recovery let only known tools start"
    context = _context(execution, call)
    before = dict(execution.state)
    execution.aborts.append(context.abort)
    try:
        value = await _within_time(execution, tool, context, call)
    except (Refused, asyncio.CancelledError):
        raise
    except Exception as failure:
        answer, changed = _failed(execution, call, failure), _NO_CHANGE
    else:
        answer, changed = _returned(execution, before, context, value)
    finally:
        execution.aborts.remove(context.abort)
    execution.runtime.reach(FaultPoint.AFTER_BODY, call.tool_name)
    return answer, changed


def _context(execution: Execution, call: Call) -> AnyContext:
    return ToolContext(
        session_id=execution.session_id,
        run_id=execution.run_id,
        dispatch_id=call.dispatch_id,
        tool_call_id=call.tool_call_id,
        attempt=call.bodies,
        deps=execution.dependencies,
        state=execution.agent.load_state(execution.state),
        user_id=execution.session.user_id,
        metadata=execution.session.metadata,
        abort=AbortSignal(),
    )


async def _within_time(execution: Execution, tool: AnyTool, context: AnyContext, call: Call) -> object:
    """The body's value, or `_TimedOut`; a body that resists its cancellation is left behind.

    Left behind, it may still act outside; its late result has nowhere to go.
    """
    body = execution.spawn(_contained(tool, context, call.arguments, execution.runtime.threads))
    try:
        done, _ = await asyncio.wait({body}, timeout=tool.timeout_seconds)
        if not done:
            context.abort.set()
            body.cancel()
            await asyncio.wait({body}, timeout=_STRAGGLER_SECONDS)
            raise _TimedOut
    except asyncio.CancelledError:
        context.abort.set()
        body.cancel()
        raise
    if body.cancelled():
        if execution.lost:
            raise Refused
        raise RuntimeError("the body cancelled itself")
    return body.result()


async def _contained(
    tool: AnyTool, context: AnyContext, arguments: dict[str, JsonValue], threads: ThreadPoolExecutor
) -> object:
    """The body, unable to stop the event loop."""
    with contained("the body"):
        return await tool.run(context, tool.validate(arguments), executor=threads)


def _returned(
    execution: Execution, before: Mapping[str, JsonValue], context: AnyContext, value: object
) -> tuple[Answer, Mapping[str, JsonValue]]:
    try:
        result = storable(value)
        changed = storable(execution.agent.diff_state(before, context.state))
    except Exception as finding:  # the state's own serialisers run here, and may raise anything
        what = str(finding) if isinstance(finding, NotStorable) else f"no JSON form: {type(finding).__name__}"
        text = f"{TEXTS[Reason.RESULT_NOT_STORABLE]} ({what})"
        return raised(Reason.RESULT_NOT_STORABLE, text), _NO_CHANGE
    answer = Answer(Outcome.RETURNED, None, result, Origin.BODY)
    return answer, changed if isinstance(changed, dict) else _NO_CHANGE


def _failed(execution: Execution, call: Call, failure: Exception) -> Answer:
    """The answer of a body that did not return; details go to the log, never to the model."""
    if isinstance(failure, ToolError):
        return raised(Reason.TOOL_ERROR, clean_text(str(failure))[:_MAX_ERROR_TEXT])
    timed_out = isinstance(failure, _TimedOut)
    logger.warning(
        "body_timed_out" if timed_out else "body_failed",
        exc_info=None if timed_out else failure,
        extra={
            "event": "body_timed_out" if timed_out else "body_failed",
            "session_id": execution.session_id,
            "run_id": execution.run_id,
            "dispatch_id": call.dispatch_id,
            "generation": execution.generation,
            "tool": call.tool_name,
        },
    )
    if not timed_out:
        return raised(Reason.TOOL_FAILED)
    if call.replay is Replay.UNSAFE:
        return not_executed(Reason.OUTCOME_UNKNOWN, Origin.BODY)
    return raised(Reason.TIMED_OUT)
