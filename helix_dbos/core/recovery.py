"""Recovery of a saved step: one decision for each unanswered call, in reply order.

The rules are the table of the recoverable-tools page, with one refinement that the page
cannot see: `bodies = 0` proves that a call never started, so it is not in doubt (rule 6).
The first rule that matches wins; their order is the contract and is tested row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from helix_dbos.core.calls import Call, DispatchView, ToolNow
from helix_dbos.core.decisions import (
    AskHook,
    Decision,
    Leave,
    Pair,
    Reattach,
    ReattachHow,
    Reenter,
    Release,
    RunAgain,
    Start,
)
from helix_dbos.core.order import with_doubt_ahead
from helix_dbos.core.states import MAX_BODIES, CallKind, DispatchState, Origin, Reason, Replay
from helix_dbos.core.texts import not_executed

__all__ = ["decide_recovery"]

_UNKNOWN = Pair(Reason.OUTCOME_UNKNOWN)


def decide_recovery(
    calls: Sequence[Call], tools: Mapping[str, ToolNow], generation: int
) -> tuple[tuple[Call, Decision], ...]:
    """Decide every unanswered call that no body of this generation is running, in reply order.

    Args:
        calls: All current calls of the saved step, answered or not, in reply order.
        tools: The tools of this deployment by name.
        generation: The generation that recovers; its own claims are left alone.

    Returns:
        The decided calls with their decisions. A decision in doubt puts the calls behind it
        in doubt too, whatever their own policy.
    """
    seen = list(calls)
    decided: list[tuple[Call, Decision]] = []
    for place, call in enumerate(seen):
        if call.answer is not None or call.generation == generation:
            continue
        decision = _decide(call, seen, tools.get(call.tool_name))
        decided.append((call, decision))
        if isinstance(decision, Pair):
            seen[place] = replace(call, answer=not_executed(decision.reason, Origin.RECOVERY))
    return tuple(decided)


def _decide(call: Call, calls: Sequence[Call], tool: ToolNow | None) -> Decision:
    outside = _answered_elsewhere(call)
    if outside is not None:
        return outside
    if with_doubt_ahead(call, calls):
        return _UNKNOWN
    if tool is None or _changed(call, tool):
        return _UNKNOWN
    if call.bodies == 0:
        return Release() if call.held else Start()
    if call.kind is CallKind.INLINE_AGENT:
        return _UNKNOWN
    return _decide_started(call, tool)


def _answered_elsewhere(call: Call) -> Decision | None:
    """Rules 1 to 3: calls that a client, a person, a child or a companion answers."""
    if call.kind in (CallKind.CLIENT, CallKind.FINISH):
        return Leave()
    if call.approval_required and not call.approved:
        return Leave()
    if call.kind is CallKind.REMOTE and not call.held:
        return _reattach(call.dispatch) if call.dispatch else Reattach(ReattachHow.START)
    if call.kind is CallKind.COMPANION and not call.held:
        return Reenter()
    return None


def _reattach(dispatch: DispatchView) -> Decision:
    if dispatch.state in (DispatchState.SETTLED, DispatchState.LOST):
        return Reattach(ReattachHow.TAKE_RESULT)
    if dispatch.stop_owed and not dispatch.stop_confirmed:
        return _UNKNOWN
    if dispatch.state in (DispatchState.PENDING, DispatchState.ABANDONED):
        return Reattach(ReattachHow.START)
    return Reattach(ReattachHow.ATTACH)


def _changed(call: Call, tool: ToolNow) -> bool:
    """Rule 5: whether a deploy since the save takes the call out of recovery's hands."""
    saved_kind = CallKind.LOCAL if call.kind is CallKind.APPROVAL else call.kind
    if saved_kind is not tool.kind or tool.problem_with(call.arguments) is not None:
        return True
    return not call.approval_required and tool.needs_approval(call.arguments)


def _decide_started(call: Call, tool: ToolNow) -> Decision:
    """Rules 8 to 12: a body of this call was started and no answer was committed."""
    tries_left = call.bodies < MAX_BODIES
    agreed = call.replay if call.replay is tool.replay else Replay.UNSAFE
    if agreed is Replay.UNSAFE:
        return _UNKNOWN
    if not tries_left:
        return Pair(Reason.REPLAY_LIMIT_REACHED)
    return AskHook() if agreed is Replay.VERIFIED else RunAgain()
