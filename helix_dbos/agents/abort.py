"""The signal that tells a body to give up: readable from threads and from async code."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

__all__ = ["AbortSignal"]


class AbortSignal:
    """Once set, it stays set, and everyone who waits for it is woken.

    It is set when the run is lost or stopped, or when the call's time is up. It asks; it does
    not end a thread. A body that heeds it returns or raises early, and its answer is refused.
    """

    __slots__ = ("_event", "_lock", "_waiting")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        """Whether the body should give up; never blocks."""
        return self._event.is_set()

    def set(self) -> None:
        """Set the signal: idempotent, never blocks, safe from any thread and from an event loop."""
        with self._lock:
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            with suppress(RuntimeError):  # its loop is closed: nobody waits there any more
                future.get_loop().call_soon_threadsafe(_wake, future)

    async def wait(self) -> None:
        """Return once the signal is set, without holding a thread meanwhile."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._waiting.append(future)
        try:
            await future
        finally:
            with self._lock, suppress(ValueError):
                self._waiting.remove(future)

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Block this thread until the signal is set or the timeout passes; say whether it is set.

        Args:
            timeout: Seconds to wait at most; None waits without limit.

        Raises:
            RuntimeError: Called on an event loop's thread, which it would freeze; use `wait`.
        """
        if _on_event_loop():
            raise RuntimeError("AbortSignal.wait_sync would block the event loop; use `await abort.wait()`")
        return self._event.wait(timeout)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
