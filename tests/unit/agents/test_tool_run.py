"""Running bodies: on the loop, in a thread, and what goes wrong in either."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from helix_dbos.agents import AbortSignal, ToolContext, tool
from helix_dbos.errors import ToolError

DEADLINE = 5.0

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")

CTX = ToolContext(
    session_id="s-1",
    run_id="r-1",
    user_id=None,
    metadata={},
    deps=None,
    state=None,
    dispatch_id="d-1",
    tool_call_id="c-1",
    attempt=1,
    abort=AbortSignal(),
)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def test_the_idempotency_key_is_scoped_to_the_session():
    assert CTX.idempotency_key == "s-1:d-1"
    assert replace(CTX, attempt=3).idempotency_key == "s-1:d-1"


async def test_an_async_body_runs_on_the_loop_with_its_context(pool):
    @tool
    async def where(ctx: ToolContext, key: str, n: int = 2) -> dict[str, Any]:
        return {"thread": threading.get_ident(), "ctx": ctx, "key": key, "n": n, "var": VARIABLE.get()}

    VARIABLE.set("mine")
    assert await where.run(CTX, where.validate({"key": "k"}), executor=pool) == {
        "thread": threading.get_ident(),
        "ctx": CTX,
        "key": "k",
        "n": 2,
        "var": "mine",
    }


async def test_a_sync_body_runs_off_the_loop_with_a_copy_of_the_variables(pool):
    loop_is_free = threading.Event()

    @tool
    def where(ctx: ToolContext, key: str) -> tuple[int, str, str]:
        # Set by the loop while this thread blocks: it would time out if the body were on the loop.
        assert loop_is_free.wait(DEADLINE)
        seen = VARIABLE.get()
        VARIABLE.set("the body's own")
        return threading.get_ident(), key, seen

    VARIABLE.set("mine")
    asyncio.get_running_loop().call_soon(loop_is_free.set)
    thread, key, seen = await where.run(CTX, {"key": "k"}, executor=pool)
    assert thread != threading.get_ident()
    assert (key, seen) == ("k", "mine")
    assert VARIABLE.get() == "mine"


async def test_bodies_without_context_are_given_none(pool):
    @tool
    def sync() -> str:
        return "sync"

    @tool
    async def on_loop() -> str:
        return "async"

    assert await sync.run(CTX, {}, executor=pool) == "sync"
    assert await on_loop.run(CTX, {}, executor=pool) == "async"


async def test_a_sync_wrapper_of_an_async_function_is_awaited(pool):
    def traced(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @tool
    @traced
    async def inner(key: str) -> str:
        return key

    assert await inner.run(CTX, {"key": "k"}, executor=pool) == "k"


def raising(error: BaseException, *, on_loop: bool):
    async def async_body() -> None:
        raise error

    def sync_body() -> None:
        raise error

    return tool(async_body if on_loop else sync_body)


class Foreign(BaseException):
    """As DBOS's own signals are: never caught, never changed."""


@pytest.mark.parametrize("on_loop", [True, False])
@pytest.mark.parametrize("error", [ToolError("no"), ValueError("no"), Foreign()], ids=repr)
async def test_errors_go_through_as_they_are(pool, on_loop, error):
    with pytest.raises(type(error)) as caught:
        await raising(error, on_loop=on_loop).run(CTX, {}, executor=pool)
    assert caught.value is error


@pytest.mark.parametrize("on_loop", [True, False])
@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), asyncio.CancelledError()], ids=repr)
async def test_errors_that_would_be_taken_for_something_else(pool, on_loop, error):
    run = raising(error, on_loop=on_loop).run(CTX, {}, executor=pool)
    with pytest.raises(RuntimeError) as caught:
        await asyncio.wait_for(run, DEADLINE)
    assert caught.value.__cause__ is error


async def test_a_cancelled_future_of_the_body_s_own_is_no_cancelled_run(pool):
    error = concurrent.futures.CancelledError()
    with pytest.raises(concurrent.futures.CancelledError) as caught:
        await asyncio.wait_for(raising(error, on_loop=False).run(CTX, {}, executor=pool), DEADLINE)
    assert caught.value is error


async def test_cancelling_ends_an_async_body(pool):
    entered, cleaned = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    running = asyncio.create_task(slow.run(CTX, {}, executor=pool))
    await asyncio.wait_for(entered.wait(), DEADLINE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned.is_set()


async def test_cancelling_leaves_a_thread_to_its_abort_signal(pool):
    entered, left = threading.Event(), threading.Event()

    @tool
    def slow(ctx: ToolContext) -> None:
        entered.set()
        ctx.abort.wait_sync(DEADLINE)
        left.set()

    ctx = replace(CTX, abort=AbortSignal())
    running = asyncio.create_task(slow.run(ctx, {}, executor=pool))
    assert await asyncio.to_thread(entered.wait, DEADLINE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not left.is_set()
    ctx.abort.set()
    assert await asyncio.to_thread(left.wait, DEADLINE)
