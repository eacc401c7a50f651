"""What a caller sees of a run: a handle, and its outcome. Reading only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import JsonValue

from helix_dbos.core.calls import Call
from helix_dbos.core.messages import Usage
from helix_dbos.core.states import OPEN_RUN, Outcome, Reason, RunStatus
from helix_dbos.errors import NotFoundError, RunError
from helix_dbos.store.calls import load_calls_of_run
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.runs import RunRow, load_run

__all__ = ["CallReport", "Run", "RunFailure", "RunOutcome"]

OutputT = TypeVar("OutputT")

_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.05, 0.5
_OWN_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call of a run with the truth about it.

    Args:
        bodies: How many bodies were started; 0 proves that none was.
        outcome: None while it is unanswered.
        result: The value returned, or the text that the model was given.
    """

    tool_name: str
    arguments: dict[str, JsonValue]
    dispatch_id: str
    tool_call_id: str
    replay: str
    bodies: int
    outcome: Outcome | None
    reason: Reason | None
    result: JsonValue


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run failed: a stable code, a sentence for users, a detail for developers."""

    code: str
    error: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class RunOutcome(Generic[OutputT]):
    """Where a run stands or how it ended, with every call it made.

    Args:
        output: The typed output of a completed run, None otherwise.
        pending: The calls without an answer.
    """

    run_id: str
    session_id: str
    status: RunStatus
    output: OutputT | None
    error: RunFailure | None
    usage: Usage
    steps: int
    rescues: int
    calls: tuple[CallReport, ...]

    @property
    def pending(self) -> tuple[CallReport, ...]:
        """The calls that nobody has answered yet."""
        return tuple(call for call in self.calls if call.outcome is None)

    def unwrap(self) -> OutputT:
        """The output of a completed run.

        Raises:
            RunError: The run did not complete; the error carries its code.
        """
        if self.status is RunStatus.COMPLETED:
            return self.output  # pyright: ignore[reportReturnType] - None is then a legal output
        if self.error is not None:
            raise RunError(self.error.error, code=self.error.code, detail=self.error.detail)
        raise RunError("The run has no output.", code="run_not_completed", detail=self.status.value)


class Run(Generic[OutputT]):
    """A handle on one run; any number of processes may hold one.

    Args:
        parse: Turns the stored output into the agent's output type.
        told: Gives an event that is set when this process commits the run's end.
        own: Whether this process is expected to carry the run, so that looking often is wasted.
    """

    def __init__(
        self,
        run_id: str,
        session_id: str,
        database: Database,
        parse: Callable[[JsonValue], OutputT],
        told: Callable[[str], AbstractContextManager[asyncio.Event]],
        *,
        own: bool = False,
    ) -> None:
        self.run_id, self.session_id = run_id, session_id
        self._database, self._parse, self._told, self._own = database, parse, told, own

    async def outcome(self) -> RunOutcome[OutputT]:
        """Where the run stands now; a database that is away for a moment is waited for."""

        async def look(tx: Transaction) -> tuple[RunRow, Sequence[Call]]:
            return await self._load(tx), await load_calls_of_run(tx, self.run_id)

        return self._outcome(*await self._database.statement(look))

    async def status(self) -> RunStatus:
        """The run's status now; a database that is away for a moment is waited for."""
        return (await self._database.statement(self._load)).status

    async def _load(self, tx: Transaction) -> RunRow:
        run = await load_run(tx, self.run_id)
        if run is None:
            raise NotFoundError("There is no such run.", detail=self.run_id)
        return run

    async def result(self, timeout: float | None = None) -> RunOutcome[OutputT]:
        """Wait for the end. A failed run is an outcome, not an exception.

        Args:
            timeout: Seconds to wait; for ever when None.

        Raises:
            TimeoutError: The time is over. The run goes on.
        """
        async with asyncio.timeout(timeout):
            # Told before it looks, so that an end between the two is not missed.
            with self._told(self.run_id) as ended:
                look = _OWN_LOOK_SECONDS if self._own else _FIRST_LOOK_SECONDS
                while await self.status() in OPEN_RUN:
                    with suppress(TimeoutError):
                        # Not `wait_for`: in Python 3.11 it can lose a cancellation.
                        async with asyncio.timeout(look):
                            await ended.wait()
                    ended.clear()
                    look = min(look * 1.5, _LONGEST_LOOK_SECONDS)
            return await self.outcome()

    def _outcome(self, run: RunRow, calls: Sequence[Call]) -> RunOutcome[OutputT]:
        error = run.error
        return RunOutcome(
            run_id=run.run_id,
            session_id=run.session_id,
            status=run.status,
            output=self._parse(run.output) if run.status is RunStatus.COMPLETED else None,
            error=RunFailure(error["code"], error["error"], error.get("detail")) if error else None,
            usage=run.usage,
            steps=run.steps_used,
            rescues=run.rescues,
            calls=tuple(_report(call) for call in calls),
        )


def _report(call: Call) -> CallReport:
    answer = call.answer
    return CallReport(
        tool_name=call.tool_name,
        arguments=call.arguments,
        dispatch_id=call.dispatch_id,
        tool_call_id=call.tool_call_id,
        replay=call.replay.value,
        bodies=call.bodies,
        outcome=answer.outcome if answer else None,
        reason=answer.reason if answer else None,
        result=answer.result if answer else None,
    )
