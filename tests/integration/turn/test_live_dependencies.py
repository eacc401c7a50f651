"""Dependencies in a running process: once per process, once per stretch, closed and made again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from helix_dbos import RunContext, RunInfo, RunStatus, ToolContext, tool
from helix_dbos.engine.port import StrandedCause, StrandedRun
from helix_dbos.testing import call, calls, say
from helix_dbos.workflows.rescue import rescue
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import scripted
from tests.integration.turn.started import PATIENCE, runtime_of, small_settings, started, turn
from tests.support.waiting import poll_until_async


@tool
async def which(ctx: ToolContext[Any, None]) -> Any:
    return ctx.deps


async def test_the_process_dependency_is_made_once_and_closed_at_the_stop(database_url: str) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        log.append("opened")
        yield f"pool {log.count('opened')}"
        log.append("closed")

    desk, _ = scripted([call("which"), say("done")], process_deps=pool, tools=[which])
    for n in (1, 2):
        async with started([desk], small_settings(database_url)) as helix:
            assert log == ["opened", "closed"] * (n - 1), "opened when first needed"
            outcomes = await asyncio.gather(*(turn(helix, desk) for _ in range(3)))
            assert [outcome.calls[0].result for outcome in outcomes] == [f"pool {n}"] * 3
            assert log[-1] == "opened"
        assert log == ["opened", "closed"] * n


async def test_the_run_factory_is_told_about_its_run(app: StartApp) -> None:
    infos: list[RunInfo[str]] = []
    open_now: list[str] = []

    @asynccontextmanager
    async def deps(info: RunInfo[str]) -> AsyncIterator[dict[str, Any]]:
        infos.append(info)
        open_now.append(info.run_id)
        yield {"process": info.process, "user": info.user_id, "n": len(infos)}
        open_now.remove(info.run_id)

    def instructions(context: RunContext[Any, None]) -> str:
        assert context.run_id in open_now
        return f"{context.user_id} {context.deps['n']} {context.metadata['k']}"

    desk, told = scripted(
        [call("which"), say("done")],
        process_deps=lambda: "shared",
        deps=deps,
        tools=[which],
        instructions=instructions,
    )
    helix = await app(desk)
    first = await turn(helix, desk, session_id="s", user_id="u-1", metadata={"k": [1]})
    second = await turn(helix, desk, session_id="s", user_id="u-1")
    assert [outcome.calls[0].result for outcome in (first, second)] == [
        {"process": "shared", "user": "u-1", "n": 1},
        {"process": "shared", "user": "u-1", "n": 2},
    ]
    assert [(info.session_id, info.user_id, info.metadata) for info in infos] == [
        ("s", "u-1", {"k": [1]})
    ] * 2
    assert [info.run_id for info in infos] == [first.run_id, second.run_id]
    assert told.last.instructions == "u-1 2 [1]"

    async def closed() -> bool:
        return not open_now

    await poll_until_async(closed, seconds=PATIENCE)


async def test_they_are_closed_when_the_run_fails(app: StartApp) -> None:
    log: list[str] = []

    @contextmanager
    def deps(_info: object) -> Iterator[str]:
        log.append("opened")
        try:
            yield "d"
        except BaseException as error:
            log.append(type(error).__name__)
            raise
        finally:
            log.append("closed")

    desk, _ = scripted([ValueError("port")], deps=deps)
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.FAILED

    async def closed() -> bool:
        return log[-1] == "closed"

    await poll_until_async(closed)
    assert log == ["opened", "RunError", "closed"]


async def test_a_closing_that_fails_does_not_undo_the_run(
    app: StartApp, connection: psycopg.Connection
) -> None:
    @asynccontextmanager
    async def deps(_info: object) -> AsyncIterator[str]:
        yield "d"
        raise OSError("while closing")

    desk, _ = scripted([say("done")], deps=deps)
    helix = await app(desk)
    for _ in range(2):
        outcome = await turn(helix, desk, session_id="s")
        assert (outcome.status, outcome.output) == (RunStatus.COMPLETED, "done")

    async def quiet() -> bool:
        return not runtime_of(helix).live

    await poll_until_async(quiet)
    assert connection.execute("SELECT DISTINCT status FROM runs").fetchall() == [("completed",)]


async def test_a_swallowing_context_manager_cannot_hide_a_failure(app: StartApp) -> None:
    @asynccontextmanager
    async def deps(_info: object) -> AsyncIterator[str]:
        with suppress(BaseException):
            yield "d"

    desk, _ = scripted([ValueError("port")], deps=deps)
    outcome = await turn(await app(desk), desk)
    assert outcome.error is not None
    assert outcome.error.code == "run_internal_error"


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
async def test_each_stretch_has_its_own(app: StartApp, connection: psycopg.Connection, record: bool) -> None:
    """A rescue of a live run: the old stretch's dependencies are closed, the new one's are made."""
    log: list[str] = []
    held = asyncio.Event()

    @asynccontextmanager
    async def deps(info: RunInfo[Any]) -> AsyncIterator[int]:
        mine = len(log)
        log.append(f"opened {mine}")
        try:
            yield mine
        finally:
            log.append(f"closed {mine}")

    @tool(replay="safe")
    async def wait(ctx: ToolContext[int, None]) -> int:
        if ctx.deps == 0:
            held.set()
            await asyncio.sleep(PATIENCE)
        return ctx.deps

    desk, _ = scripted([calls(call("wait")), say("done")], deps=deps, tools=[wait])
    helix = await app(desk, sweep_seconds=60, record_model_steps=record)
    run = await helix.execute(desk, "go", session_id="s")
    await asyncio.wait_for(held.wait(), PATIENCE)
    row = connection.execute("SELECT workflow_id, generation, status FROM runs").fetchone()
    assert row is not None
    seen = StrandedRun(run.run_id, "s", *row, cause=StrandedCause.DEAD_EXECUTOR)
    assert await rescue(runtime_of(helix), seen)
    assert not await rescue(runtime_of(helix), seen), "of two rescuers one does nothing"
    outcome = await run.result(timeout=PATIENCE)
    assert outcome.status is RunStatus.COMPLETED
    assert outcome.calls[0].bodies == 2
    later = outcome.calls[0].result
    assert later in (1, 2), "made after the first was, before or after that one was closed"

    async def closed() -> bool:
        return len(log) == 4

    await poll_until_async(closed)
    assert set(log) == {"opened 0", "closed 0", f"opened {later}", f"closed {later}"}
