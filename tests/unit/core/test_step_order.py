"""Section 6: which call is behind which, and which bodies may be claimed now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helix_dbos.core.order import is_behind, startable, unanswered_ahead, with_doubt_ahead
from helix_dbos.core.states import CallKind, CallState, Reason, Replay
from tests.unit.core.core_builders import NOW, a_call, answered

GROUP, OTHER, CHAIN = {"concurrency_group": "g"}, {"concurrency_group": "h"}, {"sequential": True}


def names(calls) -> list[int]:
    return [call.call_index for call in calls]


@pytest.mark.parametrize(
    ("first", "second", "behind"),
    [
        ({}, {}, False),
        (GROUP, GROUP, True),
        (GROUP, OTHER, False),
        (GROUP, {}, False),
        ({}, GROUP, False),
        (CHAIN, CHAIN, True),
        (CHAIN, {}, False),
        (GROUP, CHAIN, False),
        (GROUP | CHAIN, OTHER | CHAIN, True),
        (GROUP | CHAIN, GROUP, True),
    ],
)
def test_a_call_is_behind_an_earlier_one_of_its_group_or_of_the_chain(first, second, behind):
    one, two = a_call(0, **first), a_call(1, **second)
    assert is_behind(two, one) is behind
    assert not is_behind(one, two)
    assert not is_behind(one, one)


def test_the_empty_group_name_is_a_group_like_any_other():
    assert is_behind(a_call(1, concurrency_group=""), a_call(0, concurrency_group=""))


def test_unanswered_ahead():
    behind = a_call(2, **GROUP)
    assert unanswered_ahead(behind, [a_call(0, **GROUP), answered(1, None, **GROUP), behind])
    assert not unanswered_ahead(behind, [answered(0, None, **GROUP), a_call(1, **OTHER), behind])


@pytest.mark.parametrize("reason", [None, *Reason])
def test_doubt_ahead_is_an_unknown_outcome_or_a_reached_limit(reason):
    doubtful = reason in ("outcome_unknown", "replay_limit_reached")
    assert with_doubt_ahead(a_call(1, **CHAIN), [answered(0, reason, **CHAIN)]) is doubtful
    assert not with_doubt_ahead(a_call(1), [answered(0, reason, **CHAIN)])


def test_an_unanswered_call_ahead_is_no_doubt_yet():
    assert not with_doubt_ahead(a_call(1, **CHAIN), [a_call(0, **CHAIN)])


def test_calls_without_an_order_start_together():
    assert names(startable([a_call(i, bodies=0) for i in range(3)], NOW)) == [0, 1, 2]


def test_one_call_of_each_group_and_of_the_chain_starts_at_a_time():
    calls = [a_call(i, bodies=0, **order) for i, order in enumerate([GROUP, CHAIN, GROUP, OTHER, CHAIN, {}])]
    assert names(startable(calls, NOW)) == [0, 1, 3, 5]
    calls[0] = answered(0, None, **GROUP)
    assert names(startable(calls, NOW)) == [1, 2, 3, 5]
    calls[1] = answered(1, Reason.TOOL_FAILED, **CHAIN)
    assert names(startable(calls, NOW)) == [2, 3, 4, 5]


def test_a_call_in_both_orders_waits_for_both():
    both = a_call(2, bodies=0, **GROUP, **CHAIN)
    for first, second in ((None, "open"), ("open", None)):
        calls = [
            a_call(0, **GROUP) if first else answered(0, None, **GROUP),
            a_call(1, **CHAIN) if second else answered(1, None, **CHAIN),
            both,
        ]
        assert 2 not in names(startable(calls, NOW))
    assert names(startable([answered(0, None, **GROUP), answered(1, None, **CHAIN), both], NOW)) == [2]


def test_a_call_claimed_in_this_generation_is_running_and_holds_up_those_behind_it():
    calls = [a_call(0, generation=NOW, **GROUP), a_call(1, bodies=0, **GROUP)]
    assert startable(calls, NOW) == ()


@pytest.mark.parametrize("bodies", [0, 1, 2])
def test_a_call_of_an_older_generation_may_be_claimed_again(bodies):
    assert names(startable([a_call(0, bodies=bodies, replay=Replay.SAFE)], NOW)) == [0]


@pytest.mark.parametrize("kind", [CallKind.CLIENT, CallKind.FINISH])
@pytest.mark.parametrize("state", [CallState.OPEN, CallState.WAITING])
def test_client_and_finish_calls_have_no_body_to_start(kind, state):
    assert startable([a_call(0, kind=kind, state=state, bodies=0)], NOW) == ()


def test_a_waiting_call_starts_only_after_somebody_let_it_go():
    gated = a_call(0, kind=CallKind.APPROVAL, state=CallState.WAITING, approval_required=True, bodies=0)
    assert startable([gated], NOW) == ()
    granted = replace(gated, state=CallState.OPEN, approved=True)
    assert startable([granted], NOW) == (granted,)


def test_a_call_behind_a_waiting_one_waits_too():
    waiting = a_call(0, kind=CallKind.CLIENT, state=CallState.WAITING, bodies=0, **CHAIN)
    assert startable([waiting, a_call(1, bodies=0, **CHAIN)], NOW) == ()
