"""An agent's dependencies: opened once per process, or once per stretch of a run, and closed again."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from helix_dbos.agents.agent import Agent
from helix_dbos.agents.context import RunInfo
from helix_dbos.agents.provided import Provided, entered

__all__ = ["ProcessDependencies", "run_dependencies"]

DepsT = TypeVar("DepsT")

_CLOSED = "the process dependencies are closed"


class ProcessDependencies:
    """What the agents' `process_deps` factories gave: each opened once, when first asked for.

    Each value is opened, held and closed by one task of its own: a run that is stopped while it
    waits does not stop the opening, and a context manager is left by the task that entered it.
    For one event loop.
    """

    def __init__(self) -> None:
        # Not the asking run's context: the value outlives the run and its workflow.
        self._context = contextvars.copy_context()
        self._held: dict[Agent[Any, Any, Any], _Held] = {}
        self._closed = False

    async def get(self, agent: Agent[Any, Any, Any]) -> Any:
        """The agent's process dependency, opened now if it is not open; None without a factory.

        A factory's own error goes through as it is; the next to ask tries again.

        Raises:
            RuntimeError: The dependencies are closed.
        """
        if agent.process_deps is None:
            return None
        if self._closed:
            raise RuntimeError(_CLOSED)
        held = self._held.get(agent)
        if held is None or held.failed:
            # No await between the look and the write: two runs never open one factory twice.
            self._held.pop(agent, None)  # so that the order of the dict stays that of the opening
            held = self._held[agent] = _Held(agent.process_deps, self._context.copy())
        return await held.value()

    async def aclose(self) -> None:
        """Close everything in the reverse order of its opening, all of it even if some closing fails.

        Idempotent. An error of a closing is raised once the others are closed.
        """
        self._closed = True
        held, self._held = self._held, {}
        async with AsyncExitStack() as stack:
            for each in held.values():
                stack.push_async_callback(each.close)


class _Held:
    """One process dependency and the task that owns it."""

    def __init__(self, factory: Callable[[], Provided[Any]], context: contextvars.Context) -> None:
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._hold(factory), context=context)

    @property
    def failed(self) -> bool:
        """Whether it ended before anybody asked it to."""
        return self._task.done()

    async def _hold(self, factory: Callable[[], Provided[Any]]) -> None:
        async with entered(factory()) as value:
            self._opened.set_result(value)
            await self._leave.wait()

    async def value(self) -> Any:
        await asyncio.wait((self._opened, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._opened.done():
            return self._opened.result()
        if self._task.cancelled():
            raise RuntimeError(_CLOSED)
        return self._task.result()

    async def close(self) -> None:
        """Leave the context manager; an opening under way is cancelled."""
        if self._opened.done():
            self._leave.set()
        else:
            self._task.cancel()
        await asyncio.wait((self._task,))
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and self._opened.done():  # a failed opening was told to who asked for it
            raise error


@asynccontextmanager
async def run_dependencies(agent: Agent[DepsT, Any, Any], info: RunInfo[Any]) -> AsyncGenerator[DepsT]:
    """The dependencies of one stretch, closed at its end; without a factory, `info.process`.

    A factory's own error goes through as it is. An error of the stretch goes on after the
    closing even if the user's context manager swallows it.
    """
    if agent.deps is None:
        yield info.process
        return
    stretch_error: BaseException | None = None
    async with entered(agent.deps(info)) as deps:
        try:
            yield deps
        except BaseException as error:
            stretch_error = error
            raise
    if stretch_error is not None:
        raise stretch_error
