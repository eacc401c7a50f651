"""Real `helix-dbos` processes for tests, and the app that they are given."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0

APP = '''
import asyncio
from pathlib import Path

from helix_dbos import Agent, Helix, ModelError, tool
from helix_dbos.testing.scripted import ScriptedModel, call, say

HERE = Path(__file__).parent


@tool
async def hold(name: str) -> str:
    """Start, then wait for a file."""
    (HERE / f"{name}.started").touch()
    while not (HERE / f"{name}.go").exists():
        await asyncio.sleep(0.02)
    return "held"


def reply(request):
    message = request.history[0].parts[0].text
    if message == "fail":
        raise ModelError("The model is out of order.", code="model_error", detail="on purpose")
    if message == "hold" and len(request.history) == 1:
        return call("hold", {"name": "a"})
    return say(f"You said [b]{message}[/b].")


desk = Agent(name="desk", model=ScriptedModel(reply), tools=[hold])
spare = Agent(name="spare", model=ScriptedModel(reply))
helix = Helix([desk], name="cli-app")
client = Helix([desk], name="cli-app", role="api")
other = Helix([desk], name="other-app")
two = Helix([desk, spare], name="cli-app")
nothing = 7
'''


@contextlib.contextmanager
def _sigint_as_in_a_terminal() -> Iterator[None]:
    """A test run in the background ignores SIGINT, and what it starts would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Cli:
    """Runs commands in one folder with one environment; kills what it started at the end."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("HELIX_", "DBOS"))}
        self.environment = ours | {"PYTHONPATH": str(ROOT)} | environment
        (folder / "cli_app.py").write_text(APP)
        self._started: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "helix_dbos.cli", *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def start(self, *arguments: str, log: str) -> subprocess.Popen[str]:
        """Start one command; both of its streams go to the file `log`."""
        with (self.folder / log).open("w") as written, _sigint_as_in_a_terminal():
            process = subprocess.Popen(
                [sys.executable, "-m", "helix_dbos.cli", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                text=True,
            )
        self._started.append(process)
        return process

    def worker(self, target: str = "cli_app:helix", *options: str, log: str = "worker.log"):
        """A worker that is ready."""
        process = self.start("worker", target, *options, log=log)
        self.wait_for(lambda: "worker_ready" in self.events(log), f"{log}: worker_ready")
        return process

    def text(self, log: str) -> str:
        return (self.folder / log).read_text()

    def lines(self, log: str) -> list[dict[str, Any]]:
        """The JSON lines of a log; a line that is none fails the test."""
        return [json.loads(line) for line in self.text(log).splitlines(keepends=True) if line.endswith("\n")]

    def events(self, log: str) -> list[str]:
        return [line.get("event", "") for line in self.lines(log)]

    def wait_for(self, look: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not look():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self._started[-1:]:
                    process.wait(0.05)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def cli_in(folder: Path, **environment: str) -> Iterator[Cli]:
    cli = Cli(folder, **environment)
    try:
        yield cli
    finally:
        cli.close()


def findings(finished: subprocess.CompletedProcess[str]) -> Mapping[str, dict[str, Any]]:
    """What `doctor --json` found, by name."""
    report = json.loads(finished.stdout)
    assert report["healthy"] is (finished.returncode == 0)
    return {finding["name"]: finding for finding in report["findings"]}
