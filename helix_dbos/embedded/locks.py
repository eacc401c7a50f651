"""Locks that die with their holder, and waiting for a condition. Knows nothing of PostgreSQL."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

__all__ = ["FileLock", "until"]

T = TypeVar("T")


class FileLock:
    """A held `flock`; the kernel drops it when the last process that shares its descriptor is gone.

    It is only ever closed, never unlocked: an unlock would also take it from a child that inherited it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def attempt(cls, path: Path, *, shared: bool = False) -> FileLock | None:
        """Take the lock at once, or return None; the file is made when missing and never removed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def close(self) -> None:
        """Let go of this process's part of the lock; idempotent."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def until(look: Callable[[], T], *, deadline: float, pause_seconds: float = 0.01) -> T:
    """What `look` returns once it is true, or its last answer after `deadline` (of `time.monotonic`)."""
    idle = threading.Event()
    while True:
        found = look()
        if found or time.monotonic() >= deadline:
            return found
        idle.wait(pause_seconds)
