"""The abort signal, from both sides: event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helix_dbos.agents import AbortSignal

DEADLINE = 5.0


async def test_unset_until_set_and_then_set_for_good():
    signal = AbortSignal()
    assert not signal.is_set()
    signal.set()
    signal.set()
    assert signal.is_set()
    await asyncio.wait_for(signal.wait(), DEADLINE)


async def test_set_on_the_loop_wakes_every_async_waiter():
    signal = AbortSignal()
    waiters = [asyncio.create_task(signal.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    signal.set()
    await asyncio.wait_for(asyncio.gather(*waiters), DEADLINE)


async def test_set_on_the_loop_wakes_a_thread():
    signal = AbortSignal()
    entered = threading.Event()

    def body() -> bool:
        entered.set()
        return signal.wait_sync(DEADLINE)

    with ThreadPoolExecutor(1) as pool:
        waiting = asyncio.get_running_loop().run_in_executor(pool, body)
        await asyncio.to_thread(entered.wait, DEADLINE)
        signal.set()
        assert await waiting is True


async def test_set_in_a_thread_wakes_the_loop():
    signal = AbortSignal()
    waiter = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    await asyncio.to_thread(signal.set)
    await asyncio.wait_for(waiter, DEADLINE)


async def test_a_cancelled_waiter_leaves_nothing_behind():
    signal = AbortSignal()
    waiter = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    signal.set()
    await asyncio.wait_for(signal.wait(), DEADLINE)


def test_a_waiter_of_a_closed_loop_does_not_disturb_the_others():
    signal, loop = AbortSignal(), asyncio.new_event_loop()
    signal._waiting.append(loop.create_future())
    loop.close()
    signal.set()
    assert signal.is_set()


def test_a_wait_in_a_thread_ends_at_its_timeout():
    assert AbortSignal().wait_sync(0.001) is False


async def test_a_blocking_wait_on_the_loop_is_refused():
    with pytest.raises(RuntimeError, match="await abort"):
        AbortSignal().wait_sync(0.001)
