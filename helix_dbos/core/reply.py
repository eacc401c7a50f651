"""From a model's reply to a plan: what is saved, what is answered at once, what starts.

The plan has no side effects; the save commits it. Provider call ids are made unique within
the session here, before anything is stored, because nothing vouches that a provider's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue

from helix_dbos.core.calls import Answer, Call, ToolNow
from helix_dbos.core.messages import AssistantContent, CallPart
from helix_dbos.core.order import startable
from helix_dbos.core.states import FINISH_TOOL, CallKind, CallState, Origin, Reason
from helix_dbos.core.texts import not_executed

__all__ = ["Empty", "FinalOutput", "FinalText", "MissingOutput", "ReplyPlan", "SaveStep", "plan_reply"]

OutputCheck = Callable[[dict[str, JsonValue]], str | None]
"""Says what is wrong with a finish call's arguments, or None when they are a valid output."""


@dataclass(frozen=True, slots=True)
class FinalText:
    """Text alone ends the run: the text is its output."""

    content: AssistantContent


@dataclass(frozen=True, slots=True)
class FinalOutput:
    """A valid finish call alone ends the run: its arguments are the output."""

    content: AssistantContent
    call: Call


@dataclass(frozen=True, slots=True)
class MissingOutput:
    """Text where a typed output is due: the text is kept and the model is told to finish."""

    content: AssistantContent


@dataclass(frozen=True, slots=True)
class Empty:
    """Neither text nor calls: not a reply at all."""


@dataclass(frozen=True, slots=True)
class SaveStep:
    """A step to save before any of its bodies starts.

    Args:
        calls: Every call in reply order; those already answered carry their answer.
        starting: The dispatch ids whose first body the save itself claims.
    """

    content: AssistantContent
    calls: tuple[Call, ...]
    starting: frozenset[str]

    @property
    def starts_bodies(self) -> bool:
        """Whether some call can start a body, now or in its turn: then the save is an append."""
        return any(call.answer is None and call.state is CallState.OPEN for call in self.calls)

    @property
    def settled(self) -> bool:
        """Whether every call was answered by the reply itself."""
        return all(call.answer is not None for call in self.calls)


ReplyPlan = FinalText | FinalOutput | MissingOutput | Empty | SaveStep


def plan_reply(
    content: AssistantContent,
    tools: Mapping[str, ToolNow],
    *,
    taken_ids: Iterable[str],
    mint: Callable[[], str],
    check_output: OutputCheck | None = None,
) -> ReplyPlan:
    """Plan what one reply leads to; every call of it gets exactly one place in the plan.

    Args:
        tools: The agent's tools by name.
        taken_ids: Every `tool_call_id` the session already holds.
        mint: Gives a fresh dispatch id.
        check_output: Checks a finish call's arguments; None when the agent's output is text.
    """
    content = _with_unique_ids(content, set(taken_ids))
    if not content.calls:
        if not content.text.strip():
            return Empty()
        return MissingOutput(content) if check_output else FinalText(content)
    calls = tuple(
        _plan_call(part, index, tools, mint(), check_output) for index, part in enumerate(content.calls)
    )
    if len(calls) == 1 and calls[0].kind is CallKind.FINISH and calls[0].answer is None:
        return FinalOutput(content, calls[0])
    starting = frozenset(call.dispatch_id for call in startable(calls, generation=-1))
    return SaveStep(content, calls, starting)


def _with_unique_ids(content: AssistantContent, taken: set[str]) -> AssistantContent:
    """The reply with `<id>_<n>`, smallest free n, in place of every id already used."""
    parts = list(content.parts)
    for place, part in enumerate(parts):
        if not isinstance(part, CallPart):
            continue
        unique = _free_id(part.tool_call_id or "call", taken)
        taken.add(unique)
        parts[place] = part.model_copy(update={"tool_call_id": unique})
    return content.model_copy(update={"parts": tuple(parts)})


def _free_id(wanted: str, taken: set[str]) -> str:
    if wanted not in taken:
        return wanted
    n = 2
    while f"{wanted}_{n}" in taken:
        n += 1
    return f"{wanted}_{n}"


def _plan_call(
    part: CallPart,
    index: int,
    tools: Mapping[str, ToolNow],
    dispatch_id: str,
    check_output: OutputCheck | None,
) -> Call:
    arguments = part.arguments if isinstance(part.arguments, dict) else {}
    call = Call(dispatch_id, index, part.tool_call_id, part.tool_name, arguments)
    if part.tool_name == FINISH_TOOL and check_output is not None:
        problem = _problem(part, check_output)
        kind = replace(call, kind=CallKind.FINISH, state=CallState.WAITING)
        return kind if problem is None else _answered(kind, Reason.INVALID_ARGUMENTS, problem)
    tool = tools.get(part.tool_name)
    if tool is None:
        return _answered(call, Reason.UNKNOWN_TOOL, f"Available: {', '.join(sorted(tools)) or 'none'}.")
    call = replace(
        call,
        kind=tool.kind,
        replay=tool.replay,
        concurrency_group=tool.concurrency_group,
        sequential=tool.sequential,
    )
    problem = _problem(part, tool.problem_with)
    if problem is not None:
        return _answered(call, Reason.INVALID_ARGUMENTS, problem)
    return _waiting_for_somebody(call, tool)


def _waiting_for_somebody(call: Call, tool: ToolNow) -> Call:
    """The call as saved: waiting when a client answers it, or a person must let it go first."""
    if call.kind is CallKind.CLIENT:
        return replace(call, state=CallState.WAITING)
    if not tool.needs_approval(call.arguments):
        return call
    kind = CallKind.APPROVAL if call.kind is CallKind.LOCAL else call.kind
    return replace(call, kind=kind, state=CallState.WAITING, approval_required=True)


def _problem(part: CallPart, check: OutputCheck) -> str | None:
    if not isinstance(part.arguments, dict):
        return "They are not a JSON object."
    return check(part.arguments)


def _answered(call: Call, reason: Reason, detail: str) -> Call:
    answer: Answer = not_executed(reason, Origin.REPLY, detail)
    return replace(call, state=CallState.ANSWERED, answer=answer)
