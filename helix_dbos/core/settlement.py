"""What one live answer settles: its own call, the calls it puts in doubt, those it lets start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.order import startable, with_doubt_ahead
from helix_dbos.core.states import CallKind, CallState, Reason
from helix_dbos.core.texts import not_executed

__all__ = ["Settlement", "claim", "settle_call", "step_is_settled"]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the answer's transaction writes.

    Args:
        answers: Every call answered, the settled one first.
        claims: The calls whose next body this generation claims with it.
        calls: The step's calls as they are afterwards.
    """

    answers: tuple[tuple[str, Answer], ...]
    claims: tuple[str, ...]
    calls: tuple[Call, ...]


def settle_call(calls: Sequence[Call], dispatch_id: str, answer: Answer, generation: int) -> Settlement:
    """Settle one call of a step; doubt spreads at once to every call behind it.

    Args:
        calls: The step's calls as the store has them, in reply order.
        dispatch_id: An unanswered call of the step.
        generation: The live execution's; only its own claims may start.
    """
    after = [_answered(call, answer) if call.dispatch_id == dispatch_id else call for call in calls]
    answers = [(dispatch_id, answer)]
    for place, call in enumerate(after):
        if call.answer is None and with_doubt_ahead(call, after):
            doubt = not_executed(Reason.OUTCOME_UNKNOWN, answer.origin)
            after[place] = _answered(call, doubt)
            answers.append((call.dispatch_id, doubt))
    claims = tuple(call.dispatch_id for call in startable(after, generation))
    return Settlement(tuple(answers), claims, claim(after, claims, generation))


def claim(calls: Sequence[Call], claims: Sequence[str], generation: int) -> tuple[Call, ...]:
    """The calls with one more body claimed by this generation for each id in `claims`."""
    return tuple(
        replace(call, generation=generation, bodies=call.bodies + 1) if call.dispatch_id in claims else call
        for call in calls
    )


def step_is_settled(calls: Sequence[Call]) -> bool:
    """Whether every call but a waiting finish has its answer."""
    return all(call.answer is not None for call in calls if call.kind is not CallKind.FINISH)


def _answered(call: Call, answer: Answer) -> Call:
    return replace(call, answer=answer, state=CallState.ANSWERED)
