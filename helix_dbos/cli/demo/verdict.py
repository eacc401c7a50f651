"""The promises that the demo can check, each computed from the facts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from helix_dbos.cli.demo.facts import Facts

__all__ = ["Promise", "judge"]

_MOST_SAFE_BODIES = 3


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise, whether it was kept, and by what one can tell."""

    says: str
    kept: bool
    because: str


def judge(facts: Facts, *, scripted: bool) -> tuple[Promise, ...]:
    """Every promise; what the shop holds is judged only when the script says what should be there."""
    promises = (
        _completed(facts),
        _one_answer(facts),
        _saved_first(facts),
        _unsafe(facts),
        _safe(facts),
        _doubt(facts),
        _asked_once(facts),
    )
    return (*promises, _shop(facts)) if scripted else promises


def _completed(facts: Facts) -> Promise:
    return Promise("the turn was brought to its end", facts.status == "completed", f"run {facts.status}")


def _one_answer(facts: Facts) -> Promise:
    answers = sum(call.answers for call in facts.calls)
    kept = all(call.answers == 1 for call in facts.calls)
    return Promise("one answer per call", kept, f"{len(facts.calls)} calls, {answers} answers")


def _saved_first(facts: Facts) -> Promise:
    """No body without a saved call, and none beyond what was claimed: 0 proves that it never started."""
    seen = sum(len(call.seen) for call in facts.calls)
    kept = facts.strangers == 0 and all(len(call.seen) <= call.bodies for call in facts.calls)
    claimed = sum(call.bodies for call in facts.calls)
    return Promise("no body without a saved claim", kept, f"{seen} bodies seen, {claimed} claimed")


def _unsafe(facts: Facts) -> Promise:
    counts = [len(call.seen) for call in facts.calls if call.replay == "unsafe"]
    most = max(counts, default=0)
    return Promise(
        "an unsafe call starts at most one body", most <= 1, f"{len(counts)} calls, at most {most} each"
    )


def _safe(facts: Facts) -> Promise:
    most = max((len(call.seen) for call in facts.calls if call.replay == "safe"), default=0)
    return Promise("a safe call starts at most three", most <= _MOST_SAFE_BODIES, f"at most {most} each")


def _doubt(facts: Facts) -> Promise:
    cut_off = [call for call in facts.calls if call.cut_off and call.replay == "unsafe"]
    said = sum(call.reason == "outcome_unknown" for call in cut_off)
    return Promise(
        "doubt is said aloud",
        said == len(cut_off),
        f"killed in unsafe bodies: {len(cut_off)}, told as unknown: {said}",
    )


def _asked_once(facts: Facts) -> Promise:
    askers = {step: {process for asked, process in facts.asked if asked == step} for step, _ in facts.asked}
    again = sum(len(processes) > 1 for processes in askers.values())
    return Promise(
        "no saved reply is asked for again",
        again == 0 and len(askers) == facts.replies,
        f"{len(facts.asked)} asks, {facts.replies} replies, {again} asked by both workers",
    )


def _shop(facts: Facts) -> Promise:
    wanted = ("refunds", "receipts", "notices", "ledger_lines")
    kept = all(facts.shop.get(name) == 1 for name in wanted)
    held = ", ".join(f"{name.replace('_', ' ')} {facts.shop.get(name)}" for name in wanted)
    return Promise("the customer was paid once", kept, held)
