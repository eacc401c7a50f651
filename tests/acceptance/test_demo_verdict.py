"""The demo's verdict is computed: each broken promise is seen."""

from dataclasses import replace

import pytest

from helix_dbos.cli.demo.facts import Body, CallFacts, Facts
from helix_dbos.cli.demo.verdict import judge

KILLED, ENDED = Body("A", finished=False), Body("B", finished=True)
REFUND = CallFacts(
    dispatch_id="d-1",
    step_index=0,
    tool_name="issue_refund",
    replay="unsafe",
    concurrency_group="money",
    sequential=False,
    bodies=1,
    outcome="not_executed",
    reason="outcome_unknown",
    origin="recovery",
    answers=1,
    seen=(KILLED,),
)
PREFERENCE = replace(
    REFUND, dispatch_id="d-2", tool_name="set_preference", replay="safe", concurrency_group=None,
    bodies=2, outcome="returned", reason=None, seen=(KILLED, ENDED),
)  # fmt: skip
GOOD = Facts(
    status="completed",
    output="done",
    calls=(REFUND, PREFERENCE),
    asked=((0, "A"), (1, "B")),
    replies=2,
    took_over_seconds=0.3,
    strangers=0,
    shop={"refunds": 1, "receipts": 1, "notices": 1, "ledger_lines": 1},
)


def broken(facts: Facts) -> list[str]:
    return [promise.says for promise in judge(facts, scripted=True) if not promise.kept]


def with_refund(**changes: object) -> Facts:
    return replace(GOOD, calls=(replace(REFUND, **changes), PREFERENCE))


def test_a_good_performance():
    assert broken(GOOD) == []


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (replace(GOOD, status="failed"), "the turn was brought to its end"),
        (with_refund(answers=2), "one answer per call"),
        (with_refund(answers=0), "one answer per call"),
        (replace(GOOD, strangers=1), "no body without a saved claim"),
        (with_refund(bodies=0), "no body without a saved claim"),
        (with_refund(bodies=2, seen=(KILLED, ENDED)), "an unsafe call starts at most one body"),
        (with_refund(reason=None, outcome="returned"), "doubt is said aloud"),
        (replace(GOOD, asked=((0, "A"), (0, "B"), (1, "B"))), "no saved reply is asked for again"),
        (replace(GOOD, replies=3), "no saved reply is asked for again"),
        (replace(GOOD, shop={**GOOD.shop, "refunds": 2}), "the customer was paid once"),
    ],
)
def test_a_broken_promise_is_seen(facts, says):
    assert broken(facts) == [says]


def test_four_bodies_of_a_safe_call():
    calls = (REFUND, replace(PREFERENCE, bodies=4, seen=(KILLED, KILLED, KILLED, ENDED)))
    assert broken(replace(GOOD, calls=calls)) == ["a safe call starts at most three"]


def test_what_a_real_model_did_with_the_shop_is_not_judged():
    facts = replace(GOOD, shop={})
    assert all(promise.kept for promise in judge(facts, scripted=False))
