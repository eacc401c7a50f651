"""The engine's port is a seam: turns run on a plain loop, in a database without any DBOS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from helix_dbos import Agent, Reason, RunStatus, ToolContext, tool
from helix_dbos.agents import AgentRegistry, ProcessDependencies
from helix_dbos.core.messages import user_content
from helix_dbos.core.states import OPEN_RUN
from helix_dbos.engine.port import Engine
from helix_dbos.faults import FaultPoint, unreached
from helix_dbos.ids import new_executor_id
from helix_dbos.models.resolve import resolve_model
from helix_dbos.store.calls import load_calls_of_run
from helix_dbos.store.database import Database
from helix_dbos.store.migration import apply_migrations
from helix_dbos.store.runs import RunRow, load_run
from helix_dbos.testing import call, calls, say, turns
from helix_dbos.workflows.accept import TurnRequest, accept_turn
from helix_dbos.workflows.rescue import rescue
from helix_dbos.workflows.runtime import Runtime
from helix_dbos.workflows.turn import run_stretch
from tests.integration.turn.looks import history_shape, scripted
from tests.integration.turn.loop_engine import LoopEngine
from tests.integration.turn.started import PATIENCE, small_settings
from tests.support.waiting import poll_until_async


@pytest.fixture
def bare_url(empty_database_url: str) -> str:
    """A database with our tables and none of DBOS's."""
    apply_migrations(empty_database_url, "helix")
    return empty_database_url


@asynccontextmanager
async def _running(url: str, *agents: Agent[Any, Any, Any], **settings: Any) -> AsyncGenerator[Runtime]:
    """A process of an app, put together by hand around the plain loop."""
    database = Database(url, "helix", pool_size=4)
    await database.open()
    engine = LoopEngine(database)
    port: Engine = engine
    models = {agent.name: resolve_model(agent.model) for agent in agents}
    with ThreadPoolExecutor(4) as threads:
        runtime = Runtime(
            database=database,
            engine=port,
            agents=AgentRegistry(agents),
            settings=small_settings(url, **settings),
            executor_id=new_executor_id(),
            queue="loop",
            process_dependencies=ProcessDependencies(),
            model_for=lambda agent: models[agent.name],
            threads=threads,
            reach=unreached,
            ended=lambda _run_id: None,
        )
        await engine.launch(
            lambda run_id, workflow_id: run_stretch(runtime, run_id, workflow_id), worker=True
        )
        try:
            yield runtime
        finally:
            await engine.close(0)
            for execution in list(runtime.live.values()):
                execution.lose()
            await database.close()


def _engine(runtime: Runtime) -> LoopEngine:
    assert isinstance(runtime.engine, LoopEngine)
    return runtime.engine


async def _accept(runtime: Runtime, agent: Agent[Any, Any, Any], message: str = "go") -> str:
    accepted = await accept_turn(
        runtime, TurnRequest(agent=agent, message=user_content(message), session_id="s")
    )
    return accepted.run_id


async def _run(runtime: Runtime, run_id: str) -> RunRow:
    async with runtime.database.read() as tx:
        run = await load_run(tx, run_id)
    assert run is not None
    return run


async def _ended(runtime: Runtime, run_id: str) -> RunRow:
    async def over() -> bool:
        return (await _run(runtime, run_id)).status not in OPEN_RUN

    await poll_until_async(over, seconds=PATIENCE)
    return await _run(runtime, run_id)


async def _reasons(runtime: Runtime, run_id: str) -> list[tuple[int, Reason | None]]:
    async with runtime.database.read() as tx:
        found = await load_calls_of_run(tx, run_id)
    return [(each.bodies, each.answer.reason if each.answer else None) for each in found]


@tool
async def echo(n: int) -> int:
    return n


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "queued"])
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
async def test_whole_turns(bare_url: str, direct: bool, record: bool) -> None:
    step = calls(call("echo", {"n": 1}, id="a"), call("nope", id="b"))
    desk, told = scripted(turns([step, say("one")], [say("two")]), tools=[echo])
    async with _running(bare_url, desk, direct_start=direct, record_model_steps=record) as runtime:
        for message, output in (("first", "one"), ("second", "two")):
            run = await _ended(runtime, await _accept(runtime, desk, message))
            assert (run.status, run.output) == (RunStatus.COMPLETED, output)
            assert run.error is None
        assert _engine(runtime).records == (3 if record else 0)
    assert history_shape(told.last) == [
        "user:first",
        "calls:a,b",
        "answers:a,b",
        "assistant:one",
        "user:second",
    ]
    with psycopg.connect(bare_url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'dbos'").fetchone()
    assert found == (0,), "no DBOS was here"


async def test_a_lost_stretch_is_rescued(bare_url: str) -> None:
    entered = asyncio.Event()

    @tool
    async def unsafe() -> str:
        return await _hold()

    @tool(replay="safe")
    async def safe(ctx: ToolContext) -> str:
        return "second" if ctx.attempt == 2 else await _hold()

    held = 0

    async def _hold() -> str:
        nonlocal held
        held += 1
        if held == 2:
            entered.set()
        await asyncio.sleep(PATIENCE)
        return "never"

    desk, told = scripted([calls(call("unsafe"), call("safe")), say("done")], tools=[unsafe, safe])
    async with _running(bare_url, desk) as runtime:
        run_id = await _accept(runtime, desk)
        await asyncio.wait_for(entered.wait(), PATIENCE)
        async with runtime.database.read() as tx:
            assert await runtime.engine.find_lost(tx, 10) == []
        (task,) = _engine(runtime).carried.values()
        task.cancel()
        await asyncio.wait([task])
        assert (await _run(runtime, run_id)).status is RunStatus.RUNNING, "a death is not an end"
        async with runtime.database.read() as tx:
            (lost,) = await runtime.engine.find_lost(tx, 10)
        assert await rescue(runtime, lost)
        run = await _ended(runtime, run_id)
        assert (run.output, run.stretch_no) == ("done", 2)
        assert await _reasons(runtime, run_id) == [(1, Reason.OUTCOME_UNKNOWN), (2, None)]
    assert len(told) == 2


async def test_a_draining_process_hands_over_between_steps(bare_url: str) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        entered.set()
        await release.wait()
        return "held"

    desk, told = scripted([call("hold"), say("done")], tools=[hold])
    async with _running(bare_url, desk) as runtime:
        run_id = await _accept(runtime, desk)
        await asyncio.wait_for(entered.wait(), PATIENCE)
        runtime.draining = True
        release.set()
        poller = _engine(runtime)._poller
        assert poller is not None
        poller.cancel()

        async def handed_over() -> bool:
            return (await _run(runtime, run_id)).status is RunStatus.QUEUED

        await poll_until_async(handed_over, seconds=PATIENCE)
    assert len(told) == 1
    async with _running(bare_url, desk) as runtime:
        run = await _ended(runtime, run_id)
        assert (run.output, run.stretch_no, run.rescues) == ("done", 2, 0)
        assert await _reasons(runtime, run_id) == [(1, None)]


async def test_a_process_without_the_agent_puts_the_stretch_back(bare_url: str) -> None:
    desk, told = scripted([say("done")])
    other, _ = scripted([say("no")], name="other")
    seen: list[FaultPoint] = []
    async with _running(bare_url, other) as runtime:
        runtime.reach = lambda point, _about: seen.append(point)
        run_id = await _accept(runtime, desk)

        async def put_back() -> bool:
            return (await _run(runtime, run_id)).stretch_no == 2

        await poll_until_async(put_back, seconds=PATIENCE)
        assert (await _run(runtime, run_id)).status is RunStatus.QUEUED
    assert FaultPoint.AFTER_ATTACH not in seen
    assert told == []
    async with _running(bare_url, desk) as runtime:
        assert (await _ended(runtime, run_id)).output == "done"
