"""Executors and runs: who is alive, and does anything wait for somebody who is not?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from pydantic import JsonValue

from helix_dbos.cli.doctor.finding import Finding, fail, ok, warn
from helix_dbos.cli.doctor.server import Connection
from helix_dbos.engine.port import StrandedRun
from helix_dbos.engine.rows import find_lost_runs
from helix_dbos.store.database import Transaction
from helix_dbos.store.executors import LIVE_EXECUTORS

__all__ = ["look_at_executors", "look_at_runs"]

_START_WORKER = "start one: `helix-dbos worker TARGET`"
_AT_MOST = 1_000

_ALIVE = (
    f"SELECT e.executor_id, e.role, e.agents, e.version, e.host, e.pid, e.started_at"
    f" FROM ({LIVE_EXECUTORS}) live JOIN executors e USING (executor_id) ORDER BY e.started_at"
)


@dataclass(frozen=True, slots=True)
class Executor:
    """A live process of the app."""

    executor_id: str
    role: str
    agents: list[str]
    version: str
    host: str
    pid: int
    started_at: datetime

    @property
    def described(self) -> str:
        """One line for people."""
        agents = ", ".join(self.agents) or "no agents"
        return (
            f"{self.role} with {agents}: pid {self.pid} on {self.host},"
            f" since {self.started_at:%Y-%m-%d %H:%M:%S %Z}"
        )

    @property
    def data(self) -> JsonValue:
        """The same for machines."""
        return {
            "executor_id": self.executor_id,
            "role": self.role,
            "agents": cast("list[JsonValue]", self.agents),
            "version": self.version,
            "host": self.host,
            "pid": self.pid,
            "since": self.started_at.isoformat(),
        }


async def look_at_executors(connection: Connection) -> tuple[list[Executor], Finding]:
    """Every process whose lock is held, and so is alive."""
    alive = [Executor(**row) for row in await Transaction(connection).rows(_ALIVE)]
    workers = sum(executor.role == "worker" for executor in alive)
    found = f"{workers} {_plural(workers, 'worker')} and {len(alive) - workers} other processes are alive"
    data: JsonValue = [executor.data for executor in alive]
    return alive, ok("executors", found, details=tuple(each.described for each in alive), data=data)


async def look_at_runs(connection: Connection, dbos_schema: str, alive: Sequence[Executor]) -> list[Finding]:
    """How many runs are open, and which of them nobody brings further."""
    tx = Transaction(connection)
    rows = await tx.rows(
        "SELECT r.status, s.agent, count(*) AS number FROM runs r JOIN sessions s USING (session_id)"
        " WHERE r.status IN ('queued', 'running', 'suspended') GROUP BY r.status, s.agent"
    )
    counts: dict[str, int] = {"queued": 0, "running": 0, "suspended": 0}
    active: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] += row["number"]
        if row["status"] != "suspended":
            active[row["agent"]] = active.get(row["agent"], 0) + row["number"]
    stranded = await find_lost_runs(tx, dbos_schema, _AT_MOST)
    return [_open_runs(counts, active, alive), _stranded(stranded, alive)]


def _open_runs(counts: dict[str, int], active: dict[str, int], alive: Sequence[Executor]) -> Finding:
    data = cast("JsonValue", dict(counts))
    found = ", ".join(f"{number} {status}" for status, number in counts.items())
    workers = [executor for executor in alive if executor.role == "worker"]
    if active and not workers:
        return fail("open runs", f"{found}; no worker is alive", _START_WORKER, data=data)
    carried = {agent for worker in workers for agent in worker.agents}
    if orphans := sorted(set(active) - carried):
        return fail(
            "open runs",
            f"{found}; no live worker has the agent {', '.join(orphans)}",
            "start a worker whose app has it",
            data=data,
        )
    return ok("open runs", found, data=data)


def _stranded(stranded: Sequence[StrandedRun], alive: Sequence[Executor]) -> Finding:
    data = cast("JsonValue", [{"run_id": run.run_id, "cause": run.cause.value} for run in stranded])
    if not stranded:
        return ok("stranded runs", "none", data=data)
    number = len(stranded)
    causes = ", ".join(sorted({run.cause.value.replace("_", " ") for run in stranded}))
    shown = f"{number} {_plural(number, 'run')} nobody brings further ({causes})"
    if any(executor.role == "worker" for executor in alive):
        return warn(
            "stranded runs", shown, "a live worker rescues them; look again in a few seconds", data=data
        )
    return fail("stranded runs", shown, f"no worker is alive to rescue them; {_START_WORKER}", data=data)


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"
