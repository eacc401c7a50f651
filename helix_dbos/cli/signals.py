"""Signals that end a command."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

__all__ = ["on_stop_signal", "run_interruptibly", "terminated_as_interrupted"]

T = TypeVar("T")


@contextmanager
def on_stop_signal(react: Callable[[], object]) -> Generator[None]:
    """Inside, the first SIGTERM or SIGINT only calls `react`; a second one does what it did before.

    A signal that this process ignores stays ignored: a shell lets its background jobs ignore SIGINT.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    caught = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def restore() -> None:
        for number, handler in caught.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)

    def first() -> None:
        restore()
        react()

    for number in caught:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        restore()


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, or until SIGTERM or SIGINT: then everything opened is closed.

    Raises:
        KeyboardInterrupt: A signal came.
    """
    interrupted = False

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None, "this is one"

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        with on_stop_signal(interrupt):
            return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise


@contextmanager
def terminated_as_interrupted() -> Generator[None]:
    """Inside, also outside an event loop, SIGTERM does what Ctrl-C does: what was opened is closed."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
