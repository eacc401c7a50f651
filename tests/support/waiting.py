"""Waiting in tests: poll a condition with a deadline, never sleep for a guess."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["poll_until", "poll_until_async"]

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


def poll_until(condition: Callable[[], T], *, seconds: float = 20.0) -> T:
    """The first true value of the condition.

    Raises:
        AssertionError: It did not become true in time.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds} s: {condition}"
        time.sleep(_PAUSE_SECONDS)  # noqa: TID251 - the pause of a poll with a deadline
    return value


async def poll_until_async(condition: Callable[[], Awaitable[T]], *, seconds: float = 20.0) -> T:
    """The first true value of the awaited condition.

    Raises:
        AssertionError: It did not become true in time.
    """
    deadline = time.monotonic() + seconds
    while not (value := await condition()):
        assert time.monotonic() < deadline, f"not true within {seconds} s: {condition}"
        await asyncio.sleep(_PAUSE_SECONDS)
    return value
