"""The two worker processes of the demo: started, killed for real, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from helix_dbos.cli.demo.stage import Stage
from helix_dbos.errors import RunError

__all__ = ["WorkerProcess", "Workers", "worker_processes"]

_COMMAND = (sys.executable, "-m", "helix_dbos.cli", "worker", "helix_dbos.cli.demo.app:helix")
_STOP_SECONDS = 8.0
_TAIL_LINES = 12


@dataclass(frozen=True)
class WorkerProcess:
    """One worker: `helix-dbos worker` in a process of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def kill(self) -> int:
        """SIGKILL it, wait until it is gone, and return the signal that ended it."""
        os.kill(self.pid, signal.SIGKILL)
        return -self.process.wait()

    def check(self) -> None:
        """Return while it lives.

        Raises:
            RunError: It ended by itself; the detail is the end of its log.
        """
        if self.process.poll() is not None:
            raise RunError(f"Worker {self.name} ended by itself.", code="demo_failed", detail=_tail(self.log))

    def stop(self) -> None:
        """Let it drain; kill it when it takes too long. Idempotent."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass
class Workers:
    """Starts workers and knows every one it started."""

    stage: Stage
    folder: Path
    _started: list[WorkerProcess] = field(default_factory=list[WorkerProcess])

    def start(self, name: str, *, pause_seconds: float) -> WorkerProcess:
        """Start a worker under this name; each of its bodies takes so long."""
        log = self.folder / f"worker-{name.lower()}.log"
        with log.open("wb") as written:
            process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=written,
                stderr=written,
                env=self.stage.environment(name, pause_seconds),
                # A session of its own: Ctrl-C is for the demo, which then stops its workers.
                start_new_session=True,
            )
        started = WorkerProcess(name, process, log)
        self._started.append(started)
        return started

    def stop(self) -> None:
        """Stop every worker; none survives this."""
        for started in reversed(self._started):
            started.stop()


@contextmanager
def worker_processes(stage: Stage, folder: Path) -> Generator[Workers]:
    """Workers that are all gone at the end of the block."""
    workers = Workers(stage, folder)
    try:
        yield workers
    finally:
        workers.stop()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
