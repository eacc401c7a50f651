"""The order of bodies inside one step: concurrency groups and the sequential chain.

A call is *behind* another when it comes later in the reply and shares its group or the
chain. It starts only after the answer of every call ahead of it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from helix_dbos.core.calls import Call
from helix_dbos.core.states import CallKind, CallState

__all__ = ["is_behind", "startable", "unanswered_ahead", "with_doubt_ahead"]

_NO_BODY = frozenset({CallKind.FINISH, CallKind.CLIENT})


def is_behind(call: Call, other: Call) -> bool:
    """Whether `call` was written to run after `other`'s effect."""
    if other.call_index >= call.call_index:
        return False
    same_group = call.concurrency_group is not None and call.concurrency_group == other.concurrency_group
    return same_group or (call.sequential and other.sequential)


def unanswered_ahead(call: Call, calls: Iterable[Call]) -> bool:
    """Whether a call ahead of this one still lacks its answer."""
    return any(is_behind(call, other) and other.answer is None for other in calls)


def with_doubt_ahead(call: Call, calls: Iterable[Call]) -> bool:
    """Whether a call ahead of this one was answered that its effect is in doubt."""
    return any(
        is_behind(call, other) and other.answer is not None and other.answer.doubtful for other in calls
    )


def startable(calls: Sequence[Call], generation: int) -> tuple[Call, ...]:
    """The calls whose body may be claimed now by this generation, in reply order.

    A call already claimed by this generation is running, not startable. Calls of older
    generations count: recovery has decided, before this is asked, which of them may run.
    """
    return tuple(
        call
        for call in calls
        if call.answer is None
        and call.state is CallState.OPEN
        and call.kind not in _NO_BODY
        and call.generation != generation
        and not unanswered_ahead(call, calls)
    )
