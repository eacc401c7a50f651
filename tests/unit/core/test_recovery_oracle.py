"""The table of section 7 written down once more, literally, and compared with the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

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
from helix_dbos.core.recovery import decide_recovery
from helix_dbos.core.states import CallKind, CallState, DispatchState, Reason, Replay
from tests.unit.core.core_builders import NOW, RETURNED, a_call, a_tool, answered

UNKNOWN = Pair(Reason.OUTCOME_UNKNOWN)


@dataclass(frozen=True)
class Case:
    """An unanswered call, its tool now, and whether a call ahead is in doubt."""

    call: Call
    tool: ToolNow | None
    doubt_ahead: bool

    @property
    def held(self) -> bool:
        """Saved, but never let go: its dispatch row says so, or it has none and never started."""
        dispatch = self.call.dispatch
        return dispatch.state == "held" if dispatch else self.call.bodies == 0

    @property
    def changed(self) -> bool:
        call, tool = self.call, self.tool
        if tool is None or tool.problem_with(call.arguments):
            return True
        declared = "local" if call.kind == "approval" else call.kind
        return declared != tool.kind or (tool.needs_approval(call.arguments) and not call.approval_required)

    def both(self, policy: str) -> bool:
        return self.call.replay == policy and self.tool is not None and self.tool.replay == policy


def remote(case: Case) -> Decision:
    dispatch = case.call.dispatch
    if dispatch and dispatch.state in ("settled", "lost"):
        return Reattach(ReattachHow.TAKE_RESULT)
    if dispatch and dispatch.stop_owed and not dispatch.stop_confirmed:
        return UNKNOWN
    if dispatch and dispatch.state in ("sending", "started"):
        return Reattach(ReattachHow.ATTACH)
    return Reattach(ReattachHow.START)


def first_start(case: Case) -> Decision:
    return Release() if case.call.kind in ("remote", "companion") else Start()


@dataclass(frozen=True)
class Row:
    number: int
    matches: Callable[[Case], bool]
    decision: Callable[[Case], Decision]


TABLE = [
    Row(
        1,
        lambda c: c.call.kind in ("client", "finish") or (c.call.approval_required and not c.call.approved),
        lambda _: Leave(),
    ),
    Row(2, lambda c: c.call.kind == "remote" and not c.held, remote),
    Row(3, lambda c: c.call.kind == "companion" and not c.held, lambda _: Reenter()),
    Row(4, lambda c: c.doubt_ahead, lambda _: UNKNOWN),
    Row(5, lambda c: c.changed, lambda _: UNKNOWN),
    Row(6, lambda c: c.call.bodies == 0, first_start),
    Row(7, lambda c: c.call.kind == "inline_agent", lambda _: UNKNOWN),
    Row(8, lambda c: c.both("transactional") and c.call.bodies < 3, lambda _: RunAgain()),
    Row(9, lambda c: c.both("verified") and c.call.bodies < 3, lambda _: AskHook()),
    Row(
        10,
        lambda c: (
            c.tool is None or "unsafe" in (c.call.replay, c.tool.replay) or c.call.replay != c.tool.replay
        ),
        lambda _: UNKNOWN,
    ),
    Row(11, lambda c: c.call.bodies >= 3, lambda _: Pair(Reason.REPLAY_LIMIT_REACHED)),
    Row(12, lambda c: c.call.replay == "safe", lambda _: RunAgain()),
]

CAN_MATCH_TOGETHER = {
    *((1, later) for later in range(2, 13)),
    *((row, later) for row in (2, 3) for later in (4, 5, 6, 8, 9, 10, 11, 12)),
    *((4, later) for later in range(5, 13)),
    *((5, later) for later in range(6, 13)),
    *((6, later) for later in (7, 8, 9, 10, 12)),
    *((7, later) for later in (8, 9, 10, 11, 12)),
    (10, 11),
    (10, 12),
    (11, 12),
}
"""Every pair of rows that one call can match; (2, 6) is a dispatch abandoned before its first body."""

TOOLS_NOW: dict[str, Callable[[ToolNow], ToolNow | None]] = {
    "as saved": lambda tool: tool,
    "missing": lambda _tool: None,
    "schema": lambda tool: replace(tool, problem_with=lambda _arguments: "no longer valid"),
    "kind": lambda tool: replace(tool, kind=CallKind.CLIENT),
    "gated": lambda tool: replace(tool, needs_approval=lambda _arguments: True),
}

ASKED_AND_GIVEN = [(False, False), (True, False), (True, True)]

DISPATCHES = [
    None,
    *(DispatchView(state) for state in (DispatchState.HELD, DispatchState.PENDING, DispatchState.ABANDONED)),
    *(
        DispatchView(state, owed, confirmed)
        for state in (DispatchState.SENDING, DispatchState.STARTED, DispatchState.SETTLED, DispatchState.LOST)
        for owed, confirmed in [(False, False), (True, False), (True, True)]
    ),
]
"""A stop is owed from `sending` on; before that the dispatch is simply abandoned (section 9)."""


def tool_of(call: Call, replay: Replay) -> ToolNow:
    kind = CallKind.LOCAL if call.kind is CallKind.APPROVAL else call.kind
    return a_tool(call.tool_name, kind=kind, replay=replay)


def possible(dispatch: DispatchView | None, bodies: int) -> bool:
    """A dispatch let go had its body counted; only an abandoned one may have been held before."""
    if dispatch is None or dispatch.state is DispatchState.ABANDONED:
        return True
    return (bodies == 0) == (dispatch.state is DispatchState.HELD)


def every_case() -> Iterator[Case]:
    """Every call there can be, alone but for an answered call ahead of it."""
    for kind in CallKind:
        delegates = kind in (CallKind.REMOTE, CallKind.COMPANION)
        policies = list(product(Replay, Replay))
        for (asked, granted), dispatch, doubt, now, bodies, (saved, declared) in product(
            ASKED_AND_GIVEN,
            DISPATCHES if delegates else [None],
            (False, True),
            TOOLS_NOW.values(),
            (0, 1, 3) if delegates else (0, 1, 2, 3, 4),
            policies,
        ):
            if not possible(dispatch, bodies):
                continue
            call = a_call(
                1,
                kind=kind,
                approval_required=asked,
                approved=granted,
                dispatch=dispatch,
                bodies=bodies,
                replay=saved,
                sequential=True,
            )
            yield Case(call, now(tool_of(call, declared)), doubt)


def decision_on(case: Case) -> Decision:
    ahead = answered(0, Reason.OUTCOME_UNKNOWN if case.doubt_ahead else None, sequential=True)
    tools = {case.call.tool_name: case.tool} if case.tool else {}
    ((_, decision),) = decide_recovery((ahead, case.call), tools, NOW)
    return decision


def test_every_single_call_is_decided_by_the_first_row_that_matches():
    together: set[tuple[int, int]] = set()
    for case in every_case():
        matching = [row for row in TABLE if row.matches(case)]
        together |= {(a.number, b.number) for a in matching for b in matching if a.number < b.number}
        assert decision_on(case) == matching[0].decision(case), (matching[0].number, case)
    assert together == CAN_MATCH_TOGETHER


def oracle(calls: list[Call], tools: dict[str, ToolNow], generation: int) -> dict[int, Decision]:
    """Section 7 over a whole step: in reply order, doubt passing on to the calls behind."""
    in_doubt = {
        c.call_index
        for c in calls
        if c.answer and c.answer.reason in ("outcome_unknown", "replay_limit_reached")
    }
    decided: dict[int, Decision] = {}
    for call in calls:
        if call.answer or call.generation == generation:
            continue
        ahead = {
            other.call_index
            for other in calls
            if other.call_index < call.call_index
            and (
                (other.sequential and call.sequential)
                or (other.concurrency_group or "no group") == call.concurrency_group
            )
        }
        case = Case(call, tools.get(call.tool_name), bool(ahead & in_doubt))
        decision = next(row.decision(case) for row in TABLE if row.matches(case))
        decided[call.call_index] = decision
        if isinstance(decision, Pair):
            in_doubt.add(call.call_index)
    return decided


@st.composite
def calls_with_tools(draw: st.DrawFn, index: int) -> tuple[Call, ToolNow | None]:
    bodies = draw(st.integers(0, 3))
    kind = draw(st.sampled_from(CallKind))
    asked, granted = draw(st.sampled_from(ASKED_AND_GIVEN))
    call = a_call(
        index,
        kind=kind,
        bodies=bodies,
        generation=draw(st.sampled_from([NOW - 2, NOW - 1, NOW])) if bodies else 0,
        replay=draw(st.sampled_from(Replay)),
        concurrency_group=draw(st.sampled_from([None, "g", "h"])),
        sequential=draw(st.booleans()),
        approval_required=asked,
        approved=granted,
        dispatch=draw(st.sampled_from(DISPATCHES)) if kind in (CallKind.REMOTE, CallKind.COMPANION) else None,
    )
    if draw(st.booleans()) and bodies:
        reason = draw(st.none() | st.sampled_from(Reason))
        answer = answered(index, reason).answer if reason else RETURNED
        call = replace(call, answer=answer, state=CallState.ANSWERED)
    now = draw(st.sampled_from(sorted(TOOLS_NOW)) if draw(st.booleans()) else st.just("as saved"))
    declared = draw(st.sampled_from(Replay)) if draw(st.booleans()) else call.replay
    return call, TOOLS_NOW[now](tool_of(call, declared))


steps = st.integers(0, 6).flatmap(lambda n: st.tuples(*(calls_with_tools(index) for index in range(n))))


@given(steps)
@settings(deadline=None, max_examples=250)
def test_whole_steps_are_decided_as_the_page_says(step):
    calls = [call for call, _ in step]
    tools = {call.tool_name: tool for call, tool in step if tool}
    decided = decide_recovery(calls, tools, NOW)
    assert {call.call_index: decision for call, decision in decided} == oracle(calls, tools, NOW)
    assert [call for call, _ in decided] == [c for c in calls if not c.answer and c.generation != NOW]


@given(steps)
@settings(deadline=None, max_examples=100)
def test_a_deploy_only_makes_recovery_more_careful(step):
    calls = [call for call, _ in step]
    deployed = {call.tool_name: tool for call, tool in step if tool}
    undeployed = {
        call.tool_name: replace(
            tool_of(call, call.replay), needs_approval=lambda _arguments, asked=call.approval_required: asked
        )
        for call in calls
    }
    before = decide_recovery(calls, undeployed, NOW)
    after = decide_recovery(calls, deployed, NOW)
    for (call, careful), (_, decision) in zip(before, after, strict=True):
        if isinstance(careful, Pair):
            assert isinstance(decision, Pair), call
