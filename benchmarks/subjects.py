"""What is measured: one subject, one cell, in a process of its own.

Every subject does the same outward work: `turns` turns of `calls` one-call steps and a final
reply, with a model and tools that take no time, at most `concurrency` turns at once.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from dbos import DBOS, DBOSPortableJSONSerializer
from pydantic import SecretStr

from helix_dbos import Agent, Helix, Settings, tool
from helix_dbos.testing import ScriptedModel, call, say

__all__ = ["SUBJECTS", "Cell", "Measured"]

OneTurn = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    calls: int
    concurrency: int
    turns: int


@dataclass(frozen=True)
class Measured:
    """What one process measured: the client's CPU is its own user and system time."""

    turns_per_second: float
    p50_ms: float
    cpu_ms_per_turn: float


@DBOS.step(name="bench.step")
async def _empty_step() -> int:
    return 1


@DBOS.workflow(name="bench.turn")
async def _plain_turn(steps: int) -> int:
    return sum([await _empty_step() for _ in range(steps)])


async def plain_dbos(url: str, cell: Cell) -> Measured:
    """Plain DBOS: a workflow of K + 1 empty steps, started directly."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "application_version": "bench",
            "serializer": DBOSPortableJSONSerializer(),
            "run_migrations": False,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()

    async def turn() -> None:
        handle = await DBOS.start_workflow_async(_plain_turn, cell.calls + 1)
        await handle.get_result()

    try:
        return await _measure(turn, cell)
    finally:
        DBOS.destroy()


@tool(replay="safe")
async def nothing(n: int) -> int:
    """Do nothing."""
    return n


async def helix(url: str, cell: Cell, *, recorded: bool = True) -> Measured:
    """Helix as shipped: accept, attach, save, answer and end, with the DBOS step per model reply."""
    script = [*(call("nothing", {"n": n}) for n in range(cell.calls)), say("done")]
    agent = Agent(name="bench", model=ScriptedModel(script), tools=[nothing])
    settings = Settings(
        database_url=SecretStr(url), record_model_steps=recorded, pool_size=16, dbos_pool_size=16
    )
    async with Helix([agent], name="bench", settings=settings) as app:

        async def turn() -> None:
            run = await app.execute(agent, "go")
            outcome = await run.result(timeout=60)
            assert outcome.output == "done", outcome

        return await _measure(turn, cell)


async def helix_unrecorded(url: str, cell: Cell) -> Measured:
    """Helix with `record_model_steps=False`: the same promises without the DBOS step."""
    return await helix(url, cell, recorded=False)


async def _measure(turn: OneTurn, cell: Cell) -> Measured:
    await asyncio.gather(*(turn() for _ in range(cell.concurrency)))  # warm up
    left, took = cell.turns, list[float]()

    async def lane() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await turn()
            took.append(time.perf_counter() - began)

    cpu, began = _cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(cell.concurrency)))
    elapsed, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    return Measured(len(took) / elapsed, statistics.median(took) * 1000, cpu * 1000 / len(took))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


SUBJECTS: dict[str, Callable[[str, Cell], Awaitable[Measured]]] = {
    "plain-dbos": plain_dbos,
    "helix": helix,
    "helix-unrecorded": helix_unrecorded,
}


async def _main(name: str, url: str, cell: str) -> None:
    measured = await SUBJECTS[name](url, Cell(**json.loads(cell)))
    sys.stdout.write(json.dumps(asdict(measured)) + "\n")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
