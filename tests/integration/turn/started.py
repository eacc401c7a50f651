"""Started apps for tests, with pools small enough for many of them on one server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, LiteralString

from pydantic import SecretStr

from helix_dbos import Agent, Helix, RunOutcome, Settings
from helix_dbos.faults import Reach, unreached
from helix_dbos.settings import Role
from helix_dbos.workflows.runtime import Runtime
from tests.support.waiting import poll_until_async

__all__ = ["PATIENCE", "runtime_of", "small_settings", "started", "turn"]

PATIENCE = 20.0
"""How long a turn of a scripted model may take on a busy machine."""


def small_settings(database_url: str, **more: Any) -> Settings:
    """Settings of one database with small pools."""
    return Settings(**{"database_url": SecretStr(database_url), "pool_size": 4, "dbos_pool_size": 4, **more})


@asynccontextmanager
async def started(
    agents: Sequence[Agent[Any, Any, Any]],
    settings: Settings,
    *,
    name: str = "helix",
    role: Role = "worker",
    reach: Reach = unreached,
) -> AsyncGenerator[Helix]:
    """The app of these agents, started; it is stopped once its last stretch is over.

    A stop that finds a live stretch waits in DBOS's whole seconds; tests have no time for that.
    """
    async with Helix(agents, name=name, settings=settings, role=role, reach=reach) as helix:
        yield helix
        runtime = runtime_of(helix)

        async def quiet() -> bool:
            return not runtime.live

        await poll_until_async(quiet, seconds=PATIENCE)
        with suppress(AssertionError):  # DBOS writes its own end of a workflow a moment later
            await poll_until_async(lambda: _dbos_is_quiet(runtime), seconds=0.5)


async def _dbos_is_quiet(runtime: Runtime) -> bool:
    pending: LiteralString = (
        "SELECT count(*) AS pending FROM dbos.workflow_status WHERE status = 'PENDING' AND executor_id = %s"
    )
    async with runtime.database.read() as tx:
        row = await tx.one(pending, (runtime.executor_id,))
    return row is not None and row["pending"] == 0


async def turn(
    helix: Helix, agent: Agent[Any, Any, Any] | str, message: str = "go", **more: Any
) -> RunOutcome[Any]:
    """One whole turn: accepted, carried, and its outcome."""
    run = await helix.execute(agent, message, **more)
    return await run.result(timeout=PATIENCE)


def runtime_of(helix: Helix) -> Runtime:
    """The app's inner parts, for tests that reach into a running process."""
    return helix._process.runtime
