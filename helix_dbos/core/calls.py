"""A call and its answer, as the pure functions see them. No rows, no SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from helix_dbos.core.states import (
    DOUBTFUL,
    CallKind,
    CallState,
    DispatchState,
    Origin,
    Outcome,
    Reason,
    Replay,
)

__all__ = ["Answer", "Call", "DispatchView", "ToolNow"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call was answered: for `returned` the value, otherwise the text for the model."""

    outcome: Outcome
    reason: Reason | None
    result: JsonValue
    origin: Origin

    @property
    def doubtful(self) -> bool:
        """Whether the call's effect is in doubt, and so that of every call behind it."""
        return self.reason in DOUBTFUL


@dataclass(frozen=True, slots=True)
class DispatchView:
    """What recovery needs to know of a remote call's dispatch row."""

    state: DispatchState
    stop_owed: bool = False
    stop_confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One requested tool use of a saved reply.

    Args:
        call_index: Its place in the reply, from 0.
        generation: The generation that claimed its latest body; 0 while it never started.
        bodies: Started bodies; 0 proves that the call never started.
        approval_required: Whether a person's approval gates its body.
        approved: Whether that approval was given.
    """

    dispatch_id: str
    call_index: int
    tool_call_id: str
    tool_name: str
    arguments: dict[str, JsonValue]
    kind: CallKind = CallKind.LOCAL
    replay: Replay = Replay.UNSAFE
    concurrency_group: str | None = None
    sequential: bool = False
    generation: int = 0
    bodies: int = 0
    state: CallState = CallState.OPEN
    answer: Answer | None = None
    approval_required: bool = False
    approved: bool = False
    dispatch: DispatchView | None = None

    @property
    def held(self) -> bool:
        """Whether a remote or companion call still waits for the call ahead of it.

        One without a dispatch row of its own (a companion's, a child's in this database) is
        held until its first claim.
        """
        if self.kind not in (CallKind.REMOTE, CallKind.COMPANION):
            return False
        return self.bodies == 0 if self.dispatch is None else self.dispatch.state is DispatchState.HELD


@dataclass(frozen=True, slots=True)
class ToolNow:
    """A tool as this deployment declares it.

    Args:
        problem_with: Says what is wrong with arguments, or None when they pass the schema.
        needs_approval: Whether these arguments need a person's approval.
    """

    name: str
    kind: CallKind
    replay: Replay
    concurrency_group: str | None
    sequential: bool
    problem_with: Callable[[dict[str, JsonValue]], str | None]
    needs_approval: Callable[[dict[str, JsonValue]], bool] = lambda _arguments: False
