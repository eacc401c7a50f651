"""One table per row of section 7 of the design: what recovery does with an unanswered call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helix_dbos.core.calls import DispatchView
from helix_dbos.core.decisions import (
    AskHook,
    Leave,
    Pair,
    Reattach,
    ReattachHow,
    Reenter,
    Release,
    RunAgain,
    Start,
)
from helix_dbos.core.states import CallKind, CallState, DispatchState, Reason, Replay
from tests.unit.core.core_builders import (
    NOW,
    a_call,
    a_remote,
    answered,
    as_saved,
    decide,
    decide_one,
)

UNKNOWN = Pair(Reason.OUTCOME_UNKNOWN)
LIMIT = Pair(Reason.REPLAY_LIMIT_REACHED)
TAKE, ATTACH, START = (Reattach(how) for how in ReattachHow)

DOUBT = sorted({Reason.OUTCOME_UNKNOWN, Reason.REPLAY_LIMIT_REACHED})
NO_DOUBT = [None, *sorted(set(Reason) - set(DOUBT))]
POLICIES = list(Replay)
HELD = DispatchView(DispatchState.HELD)


def test_answered_calls_and_calls_running_in_this_generation_are_not_decided():
    running = a_call(1, generation=NOW, replay=Replay.SAFE)
    decisions = decide(answered(0, None), running, a_call(2, replay=Replay.SAFE))
    assert list(decisions) == [2]


def test_decisions_come_in_reply_order():
    decisions = decide(*(a_call(i, bodies=i % 2) for i in range(5)))
    assert list(decisions) == [0, 1, 2, 3, 4]


def test_a_step_without_calls_decides_nothing():
    assert decide() == {}


@pytest.mark.parametrize("bodies", [0, 1, 3])
@pytest.mark.parametrize(
    "waiting",
    [
        {"kind": CallKind.CLIENT, "state": CallState.WAITING},
        {"kind": CallKind.FINISH, "state": CallState.WAITING},
        {"kind": CallKind.APPROVAL, "state": CallState.WAITING, "approval_required": True},
        {"kind": CallKind.LOCAL, "approval_required": True},
        {"kind": CallKind.REMOTE, "approval_required": True},
        {"kind": CallKind.INLINE_AGENT, "approval_required": True},
    ],
    ids=["client", "finish", "approval", "gated-local", "gated-remote", "gated-inline"],
)
def test_row_1_leaves_what_a_client_or_a_person_answers(waiting, bodies):
    assert decide_one(a_call(bodies=bodies, **waiting)) == Leave()


def test_row_1_leaves_it_whatever_became_of_the_tool():
    assert decide(a_call(kind=CallKind.CLIENT, bodies=0), now={"t0": None}) == {0: Leave()}


def test_row_1_no_longer_holds_once_the_approval_is_given():
    granted = a_call(kind=CallKind.APPROVAL, approval_required=True, approved=True, bodies=0)
    assert decide_one(granted) == Start()
    assert decide_one(replace(granted, bodies=1)) == UNKNOWN
    assert decide_one(replace(granted, bodies=1, replay=Replay.SAFE)) == RunAgain()


@pytest.mark.parametrize(
    ("state", "stop", "expected"),
    [
        (DispatchState.SETTLED, "none", TAKE),
        (DispatchState.SETTLED, "owed", TAKE),
        (DispatchState.SETTLED, "confirmed", TAKE),
        (DispatchState.LOST, "none", TAKE),
        (DispatchState.LOST, "owed", TAKE),
        (DispatchState.LOST, "confirmed", TAKE),
        (DispatchState.STARTED, "none", ATTACH),
        (DispatchState.STARTED, "owed", UNKNOWN),
        (DispatchState.STARTED, "confirmed", ATTACH),
        (DispatchState.SENDING, "none", ATTACH),
        (DispatchState.SENDING, "owed", UNKNOWN),
        (DispatchState.SENDING, "confirmed", ATTACH),
        (DispatchState.PENDING, "none", START),
        (DispatchState.ABANDONED, "none", START),
    ],
)
@pytest.mark.parametrize("bodies", [1, 3])
def test_row_2_finds_the_one_child_again(state, stop, expected, bodies):
    assert decide_one(a_remote(0, state, stop, bodies=bodies)) == expected


def test_row_2_without_a_dispatch_row_starts_a_claimed_remote_call_once_under_its_id():
    assert decide_one(a_remote(0, None, bodies=1)) == START


@pytest.mark.parametrize("now", [None, "changed"])
def test_row_2_does_not_ask_what_the_tool_is_now(now):
    call = a_remote(0, DispatchState.STARTED)
    tool = None if now is None else replace(as_saved(call), kind=CallKind.LOCAL)
    assert decide(call, now={"t0": tool}) == {0: ATTACH}


def test_row_2_doubt_of_a_stopped_child_spreads_to_the_calls_behind_it():
    ahead = a_remote(0, DispatchState.STARTED, "owed", sequential=True)
    behind = a_call(1, sequential=True, replay=Replay.SAFE, bodies=0)
    assert decide(ahead, behind) == {0: UNKNOWN, 1: UNKNOWN}


@pytest.mark.parametrize("bodies", [1, 2, 3])
@pytest.mark.parametrize("replay", POLICIES)
@pytest.mark.parametrize("view", [None, DispatchView(DispatchState.STARTED)])
def test_row_3_reenters_a_companion_operation(bodies, replay, view):
    call = a_call(kind=CallKind.COMPANION, bodies=bodies, replay=replay, dispatch=view)
    assert decide_one(call) == Reenter()
    assert decide(call, now={"t0": None}) == {0: Reenter()}


@pytest.mark.parametrize("reason", DOUBT)
@pytest.mark.parametrize("bodies", [0, 1, 3])
@pytest.mark.parametrize("replay", POLICIES)
@pytest.mark.parametrize("shared", [{"concurrency_group": "g"}, {"sequential": True}], ids=["group", "chain"])
def test_row_4_a_call_behind_an_answered_doubt_is_in_doubt(reason, bodies, replay, shared):
    behind = a_call(1, bodies=bodies, replay=replay, **shared)
    assert decide(answered(0, reason, **shared), behind) == {1: UNKNOWN}


@pytest.mark.parametrize("reason", NO_DOUBT)
def test_row_4_any_other_answer_ahead_leaves_no_doubt(reason):
    ahead = answered(0, reason, sequential=True)
    assert decide(ahead, a_call(1, sequential=True, bodies=0)) == {1: Start()}


@pytest.mark.parametrize(
    ("ahead", "own"),
    [
        ({}, {}),
        ({"concurrency_group": "g"}, {"concurrency_group": "h"}),
        ({"concurrency_group": "g"}, {}),
        ({"concurrency_group": "g"}, {"sequential": True}),
        ({"sequential": True}, {}),
        ({"sequential": True}, {"concurrency_group": "g"}),
    ],
)
def test_row_4_spares_calls_that_share_neither_group_nor_chain(ahead, own):
    doubtful = answered(0, Reason.OUTCOME_UNKNOWN, **ahead)
    assert decide(doubtful, a_call(1, replay=Replay.SAFE, **own)) == {1: RunAgain()}


def test_row_4_spares_calls_ahead_of_the_doubt():
    first = a_call(0, sequential=True, replay=Replay.SAFE)
    assert decide(first, answered(1, Reason.OUTCOME_UNKNOWN, sequential=True)) == {0: RunAgain()}


def test_row_4_decided_doubt_spreads_through_groups_and_chain_alike():
    calls = (
        a_call(0, concurrency_group="g"),  # unsafe and started: in doubt
        a_call(1, concurrency_group="g", sequential=True, replay=Replay.SAFE, bodies=0),  # by its group
        a_call(2, sequential=True, concurrency_group="h", replay=Replay.SAFE, bodies=0),  # by the chain
        a_call(3, concurrency_group="h", replay=Replay.TRANSACTIONAL, bodies=0),  # by the other group
        a_call(4, concurrency_group="k", replay=Replay.SAFE, bodies=0),  # by nothing
    )
    assert decide(*calls) == {0: UNKNOWN, 1: UNKNOWN, 2: UNKNOWN, 3: UNKNOWN, 4: Start()}


def test_row_4_a_reached_limit_spreads_as_outcome_unknown():
    ahead = a_call(0, sequential=True, replay=Replay.SAFE, bodies=3)
    behind = a_call(1, sequential=True, replay=Replay.SAFE, bodies=0)
    assert decide(ahead, behind) == {0: LIMIT, 1: UNKNOWN}


def test_row_4_doubt_passes_over_an_answered_call_between():
    calls = (
        answered(0, Reason.OUTCOME_UNKNOWN, concurrency_group="g"),
        answered(1, None, concurrency_group="g"),
        a_call(2, concurrency_group="g", bodies=0),
    )
    assert decide(*calls) == {2: UNKNOWN}


@pytest.mark.parametrize("kind", [CallKind.REMOTE, CallKind.COMPANION])
def test_row_4_holds_for_held_remote_and_companion_calls(kind):
    held = a_call(1, kind=kind, bodies=0, dispatch=HELD, sequential=True)
    assert decide(a_call(0, sequential=True), held) == {0: UNKNOWN, 1: UNKNOWN}


@pytest.mark.parametrize("kind", [CallKind.REMOTE, CallKind.COMPANION])
def test_row_4_holds_for_a_held_call_that_has_no_dispatch_row_yet(kind):
    """A child in this database, or a companion: its row is inserted when it is released."""
    held = a_call(1, kind=kind, bodies=0, dispatch=None, sequential=True)
    assert decide(a_call(0, sequential=True), held) == {0: UNKNOWN, 1: UNKNOWN}


CHANGES = {
    "tool missing": lambda _tool: None,
    "arguments fail": lambda tool: replace(tool, problem_with=lambda _arguments: "n: too small"),
    "kind changed": lambda tool: replace(tool, kind=CallKind.CLIENT),
    "newly gated": lambda tool: replace(tool, needs_approval=lambda _arguments: True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("bodies", [0, 1, 2, 3])
@pytest.mark.parametrize("replay", POLICIES)
@pytest.mark.parametrize("kind", [CallKind.LOCAL, CallKind.INLINE_AGENT])
def test_row_5_a_changed_tool_leaves_the_outcome_unknown(change, bodies, replay, kind):
    call = a_call(bodies=bodies, replay=replay, kind=kind)
    assert decide(call, now={"t0": CHANGES[change](as_saved(call))}) == {0: UNKNOWN}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [CallKind.REMOTE, CallKind.COMPANION])
def test_row_5_holds_for_held_remote_and_companion_calls(change, kind):
    call = a_call(bodies=0, kind=kind, dispatch=HELD)
    assert decide(call, now={"t0": CHANGES[change](as_saved(call))}) == {0: UNKNOWN}


def test_row_5_looks_at_the_saved_arguments():
    call = a_call(arguments={"n": 3}, replay=Replay.SAFE)
    tight = replace(as_saved(call), problem_with=lambda given: "too small" if given["n"] < 5 else None)
    assert decide_one(call, tight) == UNKNOWN
    assert decide_one(replace(call, arguments={"n": 5}), tight) == RunAgain()


def test_row_5_looks_at_whether_these_arguments_need_an_approval():
    call = a_call(arguments={"n": 3}, replay=Replay.SAFE)
    gate = replace(as_saved(call), needs_approval=lambda given: given["n"] > 100)
    assert decide_one(call, gate) == RunAgain()
    assert decide_one(replace(call, arguments={"n": 101}), gate) == UNKNOWN


def test_row_5_asks_for_an_approval_only_about_arguments_that_pass_the_schema():
    call = a_call(arguments={"old": 1}, replay=Replay.SAFE)
    tool = replace(
        as_saved(call),
        problem_with=lambda given: None if "n" in given else "n: missing",
        needs_approval=lambda given: given["n"] > 100,
    )
    assert decide_one(call, tool) == UNKNOWN


@pytest.mark.parametrize("bodies", [0, 1])
def test_row_5_a_granted_call_is_not_newly_gated(bodies):
    call = a_call(
        kind=CallKind.APPROVAL, approval_required=True, approved=True, bodies=bodies, replay=Replay.SAFE
    )
    assert decide_one(call) == (RunAgain() if bodies else Start())


def test_row_5_an_approval_no_longer_needed_changes_nothing():
    call = a_call(kind=CallKind.APPROVAL, approval_required=True, approved=True, bodies=0)
    ungated = replace(as_saved(call), needs_approval=lambda _arguments: False)
    assert decide_one(call, ungated) == Start()


@pytest.mark.parametrize("saved", POLICIES)
@pytest.mark.parametrize("now", POLICIES)
def test_row_6_a_call_that_never_started_is_not_in_doubt_whatever_its_policy(saved, now):
    call = a_call(bodies=0, replay=saved)
    assert decide_one(call, replace(as_saved(call), replay=now)) == Start()


def test_row_6_an_inline_sub_agent_that_never_started_starts():
    assert decide_one(a_call(bodies=0, kind=CallKind.INLINE_AGENT)) == Start()


@pytest.mark.parametrize("kind", [CallKind.REMOTE, CallKind.COMPANION])
@pytest.mark.parametrize("view", [HELD, None], ids=["held", "no row yet"])
def test_row_6_a_held_call_is_released(kind, view):
    assert decide_one(a_call(bodies=0, kind=kind, dispatch=view)) == Release()


def test_row_6_is_decided_even_while_the_call_ahead_has_no_answer():
    ahead = a_call(0, sequential=True, replay=Replay.SAFE)
    assert decide(ahead, a_call(1, sequential=True, bodies=0)) == {0: RunAgain(), 1: Start()}


@pytest.mark.parametrize("bodies", [1, 2, 3])
@pytest.mark.parametrize("replay", POLICIES)
def test_row_7_an_inline_child_died_with_its_parent(bodies, replay):
    assert decide_one(a_call(kind=CallKind.INLINE_AGENT, bodies=bodies, replay=replay)) == UNKNOWN


@pytest.mark.parametrize(("bodies", "expected"), [(1, RunAgain()), (2, RunAgain()), (3, LIMIT), (4, LIMIT)])
def test_rows_8_and_11_transactional(bodies, expected):
    assert decide_one(a_call(replay=Replay.TRANSACTIONAL, bodies=bodies)) == expected


@pytest.mark.parametrize(("bodies", "expected"), [(1, AskHook()), (2, AskHook()), (3, LIMIT), (4, LIMIT)])
def test_rows_9_and_11_verified(bodies, expected):
    assert decide_one(a_call(replay=Replay.VERIFIED, bodies=bodies)) == expected


@pytest.mark.parametrize("bodies", [1, 2, 3, 4])
@pytest.mark.parametrize("saved", POLICIES)
@pytest.mark.parametrize("now", POLICIES)
def test_row_10_unsafe_or_changed(saved, now, bodies):
    call = a_call(replay=saved, bodies=bodies)
    decision = decide_one(call, replace(as_saved(call), replay=now))
    if saved is Replay.UNSAFE or now is Replay.UNSAFE or saved is not now:
        assert decision == UNKNOWN
    else:
        assert decision != UNKNOWN


@pytest.mark.parametrize(("bodies", "expected"), [(1, RunAgain()), (2, RunAgain()), (3, LIMIT), (4, LIMIT)])
def test_rows_11_and_12_safe(bodies, expected):
    assert decide_one(a_call(replay=Replay.SAFE, bodies=bodies)) == expected
