"""Short ways to write a call, a tool and an answer; every default is the dullest value."""

from __future__ import annotations

from dataclasses import replace

from helix_dbos.core.calls import Answer, Call, DispatchView, ToolNow
from helix_dbos.core.decisions import Decision
from helix_dbos.core.recovery import decide_recovery
from helix_dbos.core.states import CallKind, CallState, DispatchState, Origin, Outcome, Reason, Replay
from helix_dbos.core.texts import not_executed

NOW = 9
"""The generation that recovers in these tests; the saved calls belong to earlier ones."""

RETURNED = Answer(Outcome.RETURNED, None, {"ok": True}, Origin.BODY)


def a_call(index: int = 0, **changes: object) -> Call:
    """A started local call of an earlier generation; every call has a tool of its own."""
    call = Call(
        dispatch_id=f"d{index}",
        call_index=index,
        tool_call_id=f"c{index}",
        tool_name=f"t{index}",
        arguments={"n": index},
        generation=NOW - 1,
        bodies=1,
    )
    call = replace(call, **changes)
    return replace(call, generation=0) if call.bodies == 0 and "generation" not in changes else call


def answered(index: int, reason: Reason | None, **changes: object) -> Call:
    """A call already answered with this reason; None means that it returned."""
    answer = RETURNED if reason is None else not_executed(reason, Origin.BODY)
    return a_call(index, state=CallState.ANSWERED, answer=answer, **changes)


def a_remote(
    index: int = 0, state: DispatchState | None = None, stop: str = "none", **changes: object
) -> Call:
    """A remote call; `stop` is none, owed or confirmed, and no state means no dispatch row yet."""
    view = state and DispatchView(state, stop_owed=stop != "none", stop_confirmed=stop == "confirmed")
    return a_call(index, **{"kind": CallKind.REMOTE, "dispatch": view, **changes})


def as_saved(call: Call) -> ToolNow:
    """The tool exactly as it was when the call was saved."""
    return ToolNow(
        name=call.tool_name,
        kind=CallKind.LOCAL if call.kind is CallKind.APPROVAL else call.kind,
        replay=call.replay,
        concurrency_group=call.concurrency_group,
        sequential=call.sequential,
        problem_with=lambda _arguments: None,
        needs_approval=lambda _arguments: call.approval_required,
    )


def a_tool(name: str = "t", **changes: object) -> ToolNow:
    """A local tool that takes any arguments and needs no approval."""
    dull = ToolNow(name, CallKind.LOCAL, Replay.UNSAFE, None, False, lambda _arguments: None)
    return replace(dull, **changes)


def decide(*calls: Call, now: dict[str, ToolNow | None] | None = None) -> dict[int, Decision]:
    """Recovery's decisions by call index; `now` overrides the tools saved, None removes one."""
    tools = {call.tool_name: as_saved(call) for call in calls} | (now or {})
    present = {name: tool for name, tool in tools.items() if tool is not None}
    return {call.call_index: decision for call, decision in decide_recovery(calls, present, NOW)}


def decide_one(call: Call, tool: ToolNow | None = None) -> Decision:
    """The decision about a step of one call, its tool unchanged unless given."""
    return decide(call, now={call.tool_name: tool or as_saved(call)})[call.call_index]
