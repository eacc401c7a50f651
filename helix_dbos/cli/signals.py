"""Signals that end a command."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

__all__ = ["on_stop_signal", "terminated_as_interrupted"]

_STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_stop_signal(react: Callable[[], object]) -> Generator[None]:
    """Inside, the first SIGTERM or SIGINT only calls `react`; a second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def forget() -> None:
        for number in _STOPPING:
            loop.remove_signal_handler(number)

    def first() -> None:
        forget()
        react()

    for number in _STOPPING:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        forget()


@contextmanager
def terminated_as_interrupted() -> Generator[None]:
    """Inside, SIGTERM does what Ctrl-C does, so that what was opened is closed again."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
