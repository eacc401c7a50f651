"""One live execution of a run: what it holds in memory, and the fence around its writes."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import JsonValue

from helix_dbos.agents import AbortSignal
from helix_dbos.agents.erased import AnyAgent
from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.messages import Usage
from helix_dbos.core.states import CallKind, RunStatus
from helix_dbos.store.calls import load_answers, load_open_calls, load_step_calls
from helix_dbos.store.database import Transaction
from helix_dbos.store.hot import Holder
from helix_dbos.store.messages import MessageContent, load_messages
from helix_dbos.store.runs import RunRow, lock_and_load
from helix_dbos.store.sessions import SessionRow, load_state
from helix_dbos.workflows.runtime import Runtime

__all__ = ["Execution", "Refused", "contained", "fence", "fence_end"]

T = TypeVar("T")


class Refused(Exception):
    """This execution lost its run: it cancels its tasks, writes nothing more, and returns."""


@contextmanager
def contained(what: str) -> Generator[None]:
    """Users' code fails like any other when it exits the process or is cancelled by nobody.

    asyncio hands a `SystemExit` on to the loop, and a stray `CancelledError` would end the
    workflow's task with the run still open under a live process, where no sweeper looks.
    """
    try:
        yield
    except SystemExit as failure:
        raise RuntimeError(f"{what} tried to exit the process") from failure
    except asyncio.CancelledError as failure:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(f"{what} was cancelled from within") from failure


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    with contained("the request"):
        return await work


@dataclass
class Execution:
    """A run as the process that attached to it carries it.

    Everything here can be rebuilt from the store. Only this generation may write while the
    fence holds, so what it wrote itself need not be read again.

    Args:
        step_index: The last saved step of the session; -1 before the first.
        calls: The current step's calls with what is known of their answers.
        answers: The current answers of the session by `tool_call_id`.
        rescued: Whether rescues were counted since the last progress.
        dependencies: What the agent's factory made for this stretch.
        aborts: The abort signals of the bodies under way.
        workflow_context: The engine's, in which it finds the workflow that a step belongs to.
    """

    runtime: Runtime
    agent: AnyAgent
    session: SessionRow
    run_id: str
    workflow_id: str
    generation: int
    step_index: int
    steps_used: int
    usage: Usage
    rescued: bool
    messages: list[MessageContent] = field(default_factory=list["MessageContent"])
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    calls: tuple[Call, ...] = ()
    state: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    dependencies: Any = None
    lost: bool = False
    aborts: list[AbortSignal] = field(default_factory=list[AbortSignal])
    workflow_context: contextvars.Context = field(default_factory=contextvars.copy_context)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])

    @property
    def holder(self) -> Holder:
        """Who this execution is to the fence."""
        return Holder(self.session.session_id, self.run_id, self.generation)

    @property
    def session_id(self) -> str:
        """The session this run belongs to."""
        return self.session.session_id

    @property
    def waiting_finish(self) -> Call | None:
        """The current step's first unanswered finish call, when nothing else is unanswered."""
        open_calls = [call for call in self.calls if call.answer is None]
        finishing = all(call.kind is CallKind.FINISH for call in open_calls)
        return open_calls[0] if open_calls and finishing else None

    async def load(self) -> None:
        """Read the session's history, answers, state and unanswered calls. Attach has committed."""
        # Repeated when a connection breaks: a run just attached to shall not be given up for that.
        await self.runtime.database.statement(self._load)

    async def _load(self, tx: Transaction) -> None:
        self.messages = [row.content for row in await load_messages(tx, self.session_id)]
        self.answers = await load_answers(tx, self.session_id)
        self.state = await load_state(tx, self.session_id)
        open_calls = await load_open_calls(tx, self.session_id)
        self.calls = tuple(await load_step_calls(tx, self.session_id, self.step_index)) if open_calls else ()

    def know(self, calls: tuple[Call, ...]) -> None:
        """Take over a step's calls as just committed."""
        self.calls = calls
        self.answers.update({call.tool_call_id: call.answer for call in calls if call.answer is not None})

    def require_hold(self) -> None:
        """Raise at once when the run is known to be lost.

        Raises:
            Refused: It is.
        """
        if self.lost:
            raise Refused

    def lose(self) -> None:
        """The run is somebody else's: cancel everything this execution still does."""
        self.lost = True
        for abort in self.aborts:
            abort.set()  # before its body is cancelled, which may look at it in a `finally`
        # Not the task that found out: it still has a transaction to roll back.
        current = asyncio.current_task()
        for task in [task for task in self._tasks if task is not current]:
            task.cancel()

    async def outside_workflow(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something apart from the engine's workflow, which then records nothing of it."""
        return await asyncio.create_task(work, context=self.runtime.clean_context.copy())

    async def inside_workflow(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something of the engine's own."""
        return await asyncio.create_task(work, context=self.workflow_context.copy())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that stops when the run is lost, outside DBOS's workflow context."""
        task = asyncio.create_task(work, context=self.runtime.clean_context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.lost:
            task.cancel()
        return task

    async def until_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something, or stop awaiting it when the run is lost.

        Raises:
            Refused: The run was lost meanwhile.
        """
        task = self.spawn(_contained(work))
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if self.lost:
                raise Refused from None
            raise


async def fence(tx: Transaction, execution: Execution) -> RunRow:
    """Lock the session and let only the generation that holds the run pass.

    Raises:
        Refused: A later generation exists or the run is not running any more.
    """
    _, run = await _lock_and_look(tx, execution, passing=0)
    if run.status is not RunStatus.RUNNING:
        execution.lose()
        raise Refused
    return run


async def fence_end(tx: Transaction, execution: Execution) -> RunRow | None:
    """Like `fence`, for a terminal transaction: None when its own earlier commit is there already.

    Raises:
        Refused: The run was lost.
    """
    generation, run = await _lock_and_look(tx, execution, passing=1)
    if run.status is RunStatus.RUNNING and generation == execution.generation:
        return run
    if run.ended_at is not None and generation == execution.generation + 1:
        return None  # ended in our generation: by us, unless a stop came first, which is an end too
    execution.lose()
    raise Refused


async def _lock_and_look(tx: Transaction, execution: Execution, *, passing: int) -> tuple[int, RunRow]:
    if execution.lost:
        raise Refused
    found = await lock_and_load(tx, execution.run_id)
    if found is not None:
        session, run = found
        ahead = session.generation - execution.generation
        if 0 <= ahead <= passing and run.generation == execution.generation:
            return session.generation, run
    execution.lose()
    raise Refused
