"""Section 6: what one live answer settles in its transaction."""

from __future__ import annotations

import pytest

from helix_dbos.core.settlement import claim, settle_call, step_is_settled
from helix_dbos.core.states import CallKind, CallState, Origin, Reason, Replay
from helix_dbos.core.texts import not_executed, raised
from tests.unit.core.core_builders import NOW, RETURNED, a_call, answered

CHAIN, GROUP = {"sequential": True}, {"concurrency_group": "g"}
UNKNOWN = not_executed(Reason.OUTCOME_UNKNOWN, Origin.BODY)


def running(index: int, **changes: object):
    return a_call(index, generation=NOW, **changes)


def test_an_answer_settles_its_call_and_claims_the_next_behind_it():
    calls = [running(0, **CHAIN), a_call(1, bodies=0, **CHAIN), a_call(2, bodies=0, **CHAIN)]
    settlement = settle_call(calls, "d0", RETURNED, NOW)
    assert settlement.answers == (("d0", RETURNED),)
    assert settlement.claims == ("d1",)
    first, second, third = settlement.calls
    assert (first.answer, first.state, first.bodies) == (RETURNED, CallState.ANSWERED, 1)
    assert (second.bodies, second.generation, second.answer) == (1, NOW, None)
    assert third == calls[2]


def test_a_call_running_beside_it_goes_on():
    calls = [running(0), running(1)]
    settlement = settle_call(calls, "d1", raised(Reason.TOOL_FAILED), NOW)
    assert settlement.claims == ()
    assert settlement.calls[0] == calls[0]


@pytest.mark.parametrize("doubt", [Reason.OUTCOME_UNKNOWN, Reason.REPLAY_LIMIT_REACHED])
def test_doubt_spreads_at_once_to_every_call_behind(doubt):
    calls = [
        running(0, **GROUP),
        a_call(1, bodies=0, replay=Replay.SAFE, **GROUP, **CHAIN),
        a_call(2, bodies=0, replay=Replay.SAFE, **CHAIN),
        a_call(3, bodies=0, kind=CallKind.CLIENT, state=CallState.WAITING, **CHAIN),
        running(4),
    ]
    answer = not_executed(doubt, Origin.BODY)
    settlement = settle_call(calls, "d0", answer, NOW)
    assert settlement.answers == (("d0", answer), ("d1", UNKNOWN), ("d2", UNKNOWN), ("d3", UNKNOWN))
    assert settlement.claims == ()
    assert [call.bodies for call in settlement.calls] == [1, 0, 0, 0, 1]


def test_doubt_leaves_calls_ahead_and_calls_of_other_orders_alone():
    calls = [running(0, **GROUP), running(1, **CHAIN), a_call(2, bodies=0, **GROUP)]
    assert settle_call(calls, "d1", UNKNOWN, NOW).answers == (("d1", UNKNOWN),)


@pytest.mark.parametrize(
    "reason", sorted(set(Reason) - {Reason.OUTCOME_UNKNOWN, Reason.REPLAY_LIMIT_REACHED})
)
def test_no_other_answer_spreads(reason):
    calls = [running(0, **CHAIN), a_call(1, bodies=0, **CHAIN)]
    settlement = settle_call(calls, "d0", not_executed(reason, Origin.BODY), NOW)
    assert len(settlement.answers) == 1
    assert settlement.claims == ("d1",)


def test_claim_counts_one_more_body_for_this_generation():
    calls = [a_call(0, bodies=1), a_call(1, bodies=0)]
    first, second = claim(calls, ["d0"], NOW)
    assert (first.bodies, first.generation) == (2, NOW)
    assert second == calls[1]


@pytest.mark.parametrize(
    ("calls", "settled"),
    [
        ([], True),
        ([answered(0, None), answered(1, Reason.UNKNOWN_TOOL)], True),
        ([answered(0, None), a_call(1)], False),
        ([answered(0, None), a_call(1, kind=CallKind.FINISH, state=CallState.WAITING, bodies=0)], True),
        ([a_call(0), a_call(1, kind=CallKind.FINISH, state=CallState.WAITING, bodies=0)], False),
        ([a_call(0, kind=CallKind.CLIENT, state=CallState.WAITING, bodies=0)], False),
    ],
)
def test_a_step_is_settled_when_all_but_a_waiting_finish_is_answered(calls, settled):
    assert step_is_settled(calls) is settled
