"""The performance: accept a turn, kill the worker inside its bodies, watch another take over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from helix_dbos.cli.demo.facts import Facts, gather, open_bodies, standing_by
from helix_dbos.cli.demo.place import Place
from helix_dbos.cli.demo.script import MESSAGE
from helix_dbos.cli.demo.stage import Stage
from helix_dbos.cli.demo.witness import Sight
from helix_dbos.cli.demo.workers import WorkerProcess, Workers
from helix_dbos.core.states import OPEN_RUN
from helix_dbos.errors import RunError
from helix_dbos.run import Run
from helix_dbos.workflows.sweep import SETTLED_SECONDS

__all__ = ["Tell", "play"]

Tell = Callable[[float, str, str], None]
"""Shows one event: seconds since the turn was accepted, what happened, and a detail."""

# A's bodies last until they are killed; B's are short.
_SLOW_BODY_SECONDS, _QUICK_BODY_SECONDS = 60.0, 0.25
_LOOK_SECONDS = 0.03
_PATIENCE_SECONDS = 45.0
_MODEL_PATIENCE_SECONDS = 120.0


async def play(place: Place, workers: Workers, tell: Tell) -> Facts:
    """One turn with a kill in its middle, and all that is known about it afterwards.

    Raises:
        RunError: Something did not come about in time, or a worker ended by itself.
    """
    stage = place.stage.played_by("demo")
    patience = _MODEL_PATIENCE_SECONDS if stage.model else _PATIENCE_SECONDS
    first = workers.start("A", pause_seconds=_SLOW_BODY_SECONDS)
    async with stage.app("api") as helix:
        run: Run[Any] = await helix.execute("refund-desk", MESSAGE, session_id="order-7")
        clock = _Clock(tell)
        clock.tell("turn accepted", f'"{MESSAGE}"')
        await _until(lambda: _inside(stage, run, first), patience, "the first worker to be inside its bodies")
        clock.tell(f"worker A (pid {first.pid}) is inside", ", ".join(sorted(_bodies_inside(stage))))
        second = workers.start("B", pause_seconds=_QUICK_BODY_SECONDS)
        await _until(lambda: _stands_by(stage, second), patience, "the second worker to stand by")
        clock.tell(f"worker B (pid {second.pid}) stands by", "another process of the same app")
        first.check()
        killed_at = time.time()
        number = first.kill()
        clock.tell(f"worker A is killed by signal {number}", "its effects are made, no result is recorded")
        await _until(lambda: _has_acted(stage, second), patience, "the second worker to take over")
        clock.tell("worker B has taken over", f"{time.time() - killed_at:.2f} s after the kill")
        await run.result(timeout=patience)
        clock.tell("turn ended", "the model was told the truth about every call")
        return await gather(stage, run.run_id, killed_at)


class _Clock:
    """Tells events with the time since it was made."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._started = tell, time.monotonic()

    def tell(self, event: str, detail: str) -> None:
        self._tell(time.monotonic() - self._started, event, detail)


async def _until(look: Callable[[], Awaitable[bool]], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > deadline:
            raise RunError(f"Waited {seconds:.0f} s in vain for {what}.", code="demo_failed")
        await asyncio.sleep(_LOOK_SECONDS)


async def _inside(stage: Stage, run: Run[Any], worker: WorkerProcess) -> bool:
    """Whether every claimed body has made its effect and not returned, an unsafe one among them."""
    worker.check()
    outcome = await run.outcome()
    if outcome.status not in OPEN_RUN:
        outcome.unwrap()
        raise RunError("The turn ended before it could be interrupted.", code="demo_failed")
    claimed = await asyncio.to_thread(open_bodies, stage, run.run_id)
    seen = {line.dispatch_id for line in stage.witness.read() if line.sight is Sight.EFFECT_MADE}
    return "unsafe" in claimed.values() and set(claimed) <= seen


def _bodies_inside(stage: Stage) -> list[str]:
    seen = stage.witness.read()
    finished = {line.dispatch_id for line in seen if line.sight is Sight.BODY_FINISHED}
    return [
        line.about for line in seen if line.sight is Sight.EFFECT_MADE and line.dispatch_id not in finished
    ]


async def _stands_by(stage: Stage, worker: WorkerProcess) -> bool:
    worker.check()
    return await asyncio.to_thread(standing_by, stage, worker.pid, SETTLED_SECONDS)


async def _has_acted(stage: Stage, worker: WorkerProcess) -> bool:
    worker.check()
    return any(line.process == worker.name for line in stage.witness.read())
