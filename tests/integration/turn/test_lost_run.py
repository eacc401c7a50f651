"""A run that was lost while this process works on it: it stops soon, and writes nothing more."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from helix_dbos import Helix, ModelRequest, Outcome, Reason, Run, RunStatus, ToolContext, tool
from helix_dbos.testing import call, calls, say
from helix_dbos.workflows.sweep import sweep_once
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import everything_stored, scripted
from tests.integration.turn.started import PATIENCE, runtime_of
from tests.support.waiting import poll_until_async

NOTICED_SECONDS = 2.0
"""One second is what an idle machine needs at most; a busy one gets another."""


def _take_away(connection: psycopg.Connection) -> None:
    """What another process's attach or rescue does first."""
    connection.execute("UPDATE sessions SET generation = generation + 1")


async def _stretch_over(helix: Helix) -> None:
    live = runtime_of(helix).live

    async def over() -> bool:
        return not live

    await poll_until_async(over, seconds=PATIENCE)


async def _engine_row_over(connection: psycopg.Connection) -> None:
    async def over() -> bool:
        rows = connection.execute("SELECT DISTINCT status FROM dbos.workflow_status").fetchall()
        return rows == [("SUCCESS",)]

    await poll_until_async(over, seconds=PATIENCE)


async def _rescued(helix: Helix, connection: psycopg.Connection, run: Run[Any]) -> Any:
    """The run's outcome after a sweep found that its engine row ended without it."""
    await _engine_row_over(connection)
    assert await sweep_once(runtime_of(helix)) == 1
    return await run.result(timeout=PATIENCE)


async def test_bodies_are_cancelled_and_nothing_more_is_written(
    app: StartApp, connection: psycopg.Connection
) -> None:
    started: list[str] = []
    noticed: dict[str, float] = {}
    all_in, thread_out = asyncio.Event(), threading.Event()

    def enter(name: str) -> None:
        started.append(name)
        if len(started) == 3:
            all_in.set()

    @tool
    async def unsafe(ctx: ToolContext) -> str:
        enter("unsafe")
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            noticed["cancelled"] = time.monotonic()
            assert ctx.abort.is_set() or await ctx.abort.wait() is None
            raise
        return "never"

    @tool(replay="safe")
    async def stubborn(ctx: ToolContext) -> str:
        if ctx.attempt > 1:
            return "second"
        enter("stubborn")
        with suppress(asyncio.CancelledError):
            await ctx.abort.wait()
        noticed["stubborn"] = time.monotonic()
        return "late result of a lost run"

    loop = asyncio.get_running_loop()

    @tool(replay="safe")
    def in_thread(ctx: ToolContext) -> str:
        if ctx.attempt > 1:
            return "second"
        loop.call_soon_threadsafe(enter, "thread")
        ctx.abort.wait_sync(PATIENCE)
        noticed["thread"] = time.monotonic()
        thread_out.set()
        return "late result of a lost run"

    asked = calls(call("unsafe"), call("stubborn"), call("in_thread"))
    desk, told = scripted([asked, say("done")], tools=[unsafe, stubborn, in_thread])
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")
    await asyncio.wait_for(all_in.wait(), PATIENCE)
    _take_away(connection)
    taken, stored = time.monotonic(), everything_stored(connection, ["helix"])
    await _stretch_over(helix)
    await asyncio.to_thread(thread_out.wait, PATIENCE)
    assert {name for name, at in noticed.items() if at - taken < NOTICED_SECONDS} == {
        "cancelled",
        "stubborn",
        "thread",
    }
    await _engine_row_over(connection)
    assert everything_stored(connection, ["helix"]) == stored
    assert "late result" not in stored
    assert len(told) == 1
    outcome = await _rescued(helix, connection, run)
    assert outcome.status is RunStatus.COMPLETED
    assert [(report.bodies, report.reason, report.result) for report in outcome.calls[1:]] == [
        (2, None, "second"),
        (2, None, "second"),
    ]
    assert (outcome.calls[0].bodies, outcome.calls[0].reason) == (1, Reason.OUTCOME_UNKNOWN)


async def test_an_answer_that_comes_after_the_loss_is_refused(
    app: StartApp, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence itself, without the watcher's help: the run is lost inside the body."""
    monkeypatch.setattr("helix_dbos.workflows.watch._TICK_SECONDS", 60.0)
    cancelled = asyncio.Event()

    @tool(replay="safe")
    async def lose(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            _take_away(connection)
            return "refused result"
        return "second"

    @tool(concurrency_group="g")
    async def beside(n: int) -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    asked = calls(call("beside", {"n": 1}), call("beside", {"n": 2}), call("lose"))
    desk, told = scripted([asked, say("done")], tools=[lose, beside])
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    await _stretch_over(helix)
    assert connection.execute("SELECT count(*) FROM answers").fetchone() == (0,)
    assert "refused result" not in everything_stored(connection)
    outcome = await _rescued(helix, connection, run)
    assert [(report.outcome, report.bodies) for report in outcome.calls] == [
        (Outcome.NOT_EXECUTED, 1),
        (Outcome.NOT_EXECUTED, 0),
        (Outcome.RETURNED, 2),
    ]
    assert len(told) == 2


async def test_a_model_request_is_cancelled(app: StartApp, connection: psycopg.Connection) -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()
    at: list[float] = []

    async def reply(_request: ModelRequest) -> Any:
        if asked.is_set():
            return say("done")
        asked.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            at.append(time.monotonic())
            cancelled.set()
            raise
        return say("never")

    desk, _ = scripted(reply)
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")
    await asyncio.wait_for(asked.wait(), PATIENCE)
    _take_away(connection)
    taken, stored = time.monotonic(), everything_stored(connection, ["helix"])
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    assert at[0] - taken < NOTICED_SECONDS
    await _stretch_over(helix)
    assert everything_stored(connection, ["helix"]) == stored
    assert (await _rescued(helix, connection, run)).output == "done"


@pytest.mark.parametrize("ends", [True, False], ids=["final_text", "calls"])
async def test_a_reply_that_comes_after_the_loss_is_refused(
    app: StartApp, connection: psycopg.Connection, ends: bool
) -> None:
    lost: list[bool] = []
    bodies: list[str] = []

    @tool
    async def note(text: str) -> str:
        bodies.append(text)
        return text

    def reply(request: ModelRequest) -> Any:
        if not lost:
            lost.append(True)
            _take_away(connection)
            return say("unwanted text") if ends else call("note", {"text": "unwanted"})
        return say("done") if len(request.history) > 1 else call("note", {"text": "kept"})

    desk, told = scripted(reply, tools=[note])
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")

    async def asked() -> bool:
        return bool(lost)

    await poll_until_async(asked)
    await _stretch_over(helix)
    assert bodies == []
    assert connection.execute("SELECT kind FROM messages").fetchall() == [("user",)]
    outcome = await _rescued(helix, connection, run)
    assert (outcome.output, bodies, len(told)) == ("done", ["kept"], 3)
    assert "unwanted" not in everything_stored(connection)


async def test_a_failure_after_the_loss_does_not_end_the_run(
    app: StartApp, connection: psycopg.Connection
) -> None:
    lost: list[bool] = []

    def reply(_request: ModelRequest) -> Any:
        if not lost:
            lost.append(True)
            _take_away(connection)
            raise ValueError("a bug, but not ours to report any more")
        return say("done")

    desk, _ = scripted(reply)
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")
    assert (await _rescued(helix, connection, run)).output == "done"
