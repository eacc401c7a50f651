"""Dependencies: every form of factory, opened once, closed in reverse, errors as they are."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from helix_dbos.agents import Agent, ProcessDependencies, RunInfo, run_dependencies

DEADLINE = 5.0

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


def info(process: Any = None) -> RunInfo[Any]:
    return RunInfo(session_id="s-1", run_id="r-1", user_id=None, metadata={}, process=process)


def agent(**options: Any) -> Agent[Any, Any, Any]:
    return Agent(name="a", model="m", **options)


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def plain(self, *_: object) -> str:
        return "value"

    async def later(self, *_: object) -> str:
        await asyncio.sleep(0)
        return "value"

    @contextmanager
    def managed(self, *_: object):
        self.events.append("open")
        yield "value"
        self.events.append("close")

    @asynccontextmanager
    async def managed_async(self, *_: object):
        self.events.append("open")
        yield "value"
        self.events.append("close")


FORMS = [("plain", []), ("later", []), ("managed", ["open"]), ("managed_async", ["open"])]


@pytest.mark.parametrize(("form", "opened"), FORMS)
async def test_run_dependencies_of_every_form(form, opened):
    log = Log()
    async with run_dependencies(agent(deps=getattr(log, form)), info()) as deps:
        assert deps == "value"
        assert log.events == opened
    assert log.events == [*opened, *(["close"] if opened else [])]


@pytest.mark.parametrize(("form", "opened"), FORMS)
async def test_process_dependencies_of_every_form(form, opened):
    log = Log()
    process = ProcessDependencies()
    it = agent(process_deps=getattr(log, form))
    assert await asyncio.gather(process.get(it), process.get(it)) == ["value", "value"]
    assert log.events == opened
    await process.aclose()
    await process.aclose()
    assert log.events == [*opened, *(["close"] if opened else [])]


async def test_the_factory_is_given_the_run_and_the_process():
    seen: list[RunInfo[Any]] = []
    async with run_dependencies(agent(deps=seen.append, process_deps=dict), info("pool")):
        assert seen == [info("pool")]


async def test_without_a_deps_factory_the_process_value_is_it():
    async with run_dependencies(agent(process_deps=dict), info("pool")) as deps:
        assert deps == "pool"
    async with run_dependencies(agent(), info()) as deps:
        assert deps is None
    assert await ProcessDependencies().get(agent()) is None


async def test_what_is_both_awaitable_and_a_context_manager_is_entered():
    class Pool:
        closed = False

        def __await__(self):
            raise AssertionError("awaited")

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            self.closed = True

    pool = Pool()
    async with run_dependencies(agent(deps=lambda info: pool), info()) as deps:
        assert deps is pool
        assert not pool.closed
    assert pool.closed


async def test_a_factory_s_error_goes_through_as_it_is():
    error = LookupError("no such secret")

    def broken(*_: object):
        raise error

    async def broken_later(*_: object):
        raise error

    for factory in (broken, broken_later):
        with pytest.raises(LookupError) as caught:
            async with run_dependencies(agent(deps=factory), info()):
                pytest.fail("entered")
        assert caught.value is error
        with pytest.raises(LookupError) as caught:
            await ProcessDependencies().get(agent(process_deps=factory))
        assert caught.value is error


async def test_a_context_manager_sees_the_stretch_s_error_but_cannot_swallow_it():
    class Foreign(BaseException):
        pass

    seen: list[BaseException | None] = []

    @contextmanager
    def swallowing(_info: object):
        with suppress(BaseException):
            try:
                yield "value"
            except BaseException as error:
                seen.append(error)
                raise

    error = Foreign()
    with pytest.raises(Foreign) as caught:
        async with run_dependencies(agent(deps=swallowing), info()):
            raise error
    assert caught.value is error
    assert seen == [error]


async def test_a_failed_opening_is_tried_again_by_the_next():
    tries: list[int] = []

    async def second_time() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return "value"

    process, it = ProcessDependencies(), agent(process_deps=second_time)
    with pytest.raises(ConnectionError):
        await process.get(it)
    assert await process.get(it) == "value"
    assert await process.get(it) == "value"
    assert len(tries) == 2
    await process.aclose()


async def test_they_close_in_reverse_and_all_of_them():
    closed: list[str] = []

    def resource(name: str):
        @asynccontextmanager
        async def factory():
            yield name
            closed.append(name)
            if name == "two":
                raise OSError(name)

        return factory

    process = ProcessDependencies()
    for name in ("one", "two", "three"):
        assert await process.get(agent(process_deps=resource(name))) == name
    with pytest.raises(OSError, match="two"):
        await process.aclose()
    assert closed == ["three", "two", "one"]
    with pytest.raises(RuntimeError, match="closed"):
        await process.get(agent(process_deps=dict))


async def test_each_agent_has_its_own():
    process = ProcessDependencies()
    one, two = agent(process_deps=object), agent(process_deps=object)
    assert await process.get(one) is await process.get(one)
    assert await process.get(one) is not await process.get(two)
    await process.aclose()


async def test_a_run_that_stops_waiting_does_not_stop_the_opening():
    go = asyncio.Event()

    async def slow() -> str:
        await go.wait()
        return "value"

    process, it = ProcessDependencies(), agent(process_deps=slow)
    first, second = asyncio.create_task(process.get(it)), asyncio.create_task(process.get(it))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go.set()
    assert await asyncio.wait_for(second, DEADLINE) == "value"
    await process.aclose()


async def test_closing_ends_an_opening_under_way():
    async def stuck() -> None:
        await asyncio.Event().wait()

    process = ProcessDependencies()
    waiting = asyncio.create_task(process.get(agent(process_deps=stuck)))
    await asyncio.sleep(0)
    await asyncio.wait_for(process.aclose(), DEADLINE)
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.wait_for(waiting, DEADLINE)


async def test_one_task_enters_and_leaves_and_knows_nothing_of_the_asking_run():
    tasks: list[Any] = []

    @asynccontextmanager
    async def owned():
        tasks.append(asyncio.current_task())
        yield VARIABLE.get()
        tasks.append(asyncio.current_task())

    VARIABLE.set("the process's")
    process, it = ProcessDependencies(), agent(process_deps=owned)
    VARIABLE.set("the run's")
    assert await process.get(it) == "the process's"
    await process.aclose()
    assert tasks[0] is tasks[1]
    assert tasks[0] is not asyncio.current_task()
