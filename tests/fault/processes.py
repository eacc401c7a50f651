"""Real worker processes for the crash tests, forked from a server that has imported everything.

Forking from a prepared process takes milliseconds where a fresh interpreter takes seconds;
what runs is the same: its own process, event loop, connections, lock, and death.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Any, Self

from helix_dbos.settings import Role
from tests.fault.world import Script

__all__ = ["OrderFailed", "Start", "Worker", "Workers"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.fault.worker"])


@dataclass(frozen=True)
class Start:
    """How a worker starts.

    Args:
        message: A turn it accepts itself once it is up.
        settings: Overrides of `Settings` fields.
        also: Further agents of the process, each from a script of its own; only `script` kills.
        store_format: The store's format that this deployment writes, when it is another one.
    """

    database_url: str
    script: Script
    role: Role = "worker"
    app: str = "helix"
    session_id: str | None = None
    message: str | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    also: tuple[Script, ...] = ()
    store_format: int | None = None


class OrderFailed(Exception):
    """What a worker was asked to do raised there; the text says what."""


class Worker:
    """One started process, which dies with the test process too: it watches its end of a pipe."""

    def __init__(self, start: Start) -> None:
        from tests.fault.worker import main

        self._pipe, theirs = _context.Pipe()
        self._orders, self._replies = 0, dict[int, tuple[bool, Any]]()
        self.process: ForkServerProcess = _context.Process(target=main, args=(start, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ask(self, what: str, *, seconds: float = 20, **arguments: Any) -> Any:
        """Have the process do something, once it is up, and wait for the reply; see `worker.obey`."""
        return self.reply(self.order(what, **arguments), seconds=seconds)

    def order(self, what: str, **arguments: Any) -> int:
        """Have the process do something; the number to ask for the reply with."""
        self._orders += 1
        try:
            self._pipe.send((self._orders, what, arguments))
        except OSError as problem:
            raise OrderFailed("the process is gone") from problem
        return self._orders

    def reply(self, number: int, *, seconds: float = 20) -> Any:
        """What came of an order.

        Raises:
            OrderFailed: It raised there, the process is gone, or there was no reply in time.
        """
        deadline = time.monotonic() + seconds
        while number not in self._replies:
            if not self._pipe.poll(max(0.0, deadline - time.monotonic())):
                raise OrderFailed(f"no reply within {seconds} s")
            try:
                done, well, value = self._pipe.recv()
            except (EOFError, OSError) as problem:
                raise OrderFailed("the process is gone") from problem
            self._replies[done] = well, value
        well, value = self._replies.pop(number)
        if not well:
            raise OrderFailed(value)
        return value

    def dies(self, seconds: float = 20) -> int:
        """Wait until the process is gone; its exit code, negative for a signal."""
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, "the process outlived its deadline"
        return code

    def end(self) -> None:
        """Make sure that it is gone."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.process.join(10)


class Workers:
    """Starts workers and ends every one of them, whatever happens."""

    def __init__(self) -> None:
        self._all: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()

    def end_all(self) -> None:
        """End every worker started so far."""
        for worker in self._all:
            worker.end()

    def renew(self, start: Start, size: int) -> None:
        """Start workers until so many are alive: a supervisor's one look."""
        alive = sum(worker.process.is_alive() for worker in self._all)
        for _ in range(alive, size):
            self.start(start)

    def exit_codes(self) -> list[int]:
        """How those ended that have ended; negative for a signal."""
        return [code for worker in self._all if (code := worker.process.exitcode) is not None]

    def start(self, start: Start) -> Worker:
        worker = Worker(start)
        self._all.append(worker)
        return worker
