"""DBOS runs a workflow of ours again, by its own recovery or by an operator's hand."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from helix_dbos import Outcome, Reason, RunStatus, ToolContext, tool
from helix_dbos.process import turn_queue
from helix_dbos.testing import call, calls, say
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import history_shape, scripted
from tests.integration.turn.started import PATIENCE, runtime_of, turn
from tests.support.waiting import poll_until_async


def _run_again(connection: psycopg.Connection) -> None:
    """What DBOS's recovery does with a PENDING row."""
    touched = connection.execute(
        "UPDATE dbos.workflow_status SET status = 'ENQUEUED', queue_name = %s, started_at_epoch_ms = NULL"
        " WHERE name = 'helix.turn'",
        (turn_queue("helix"),),
    )
    assert touched.rowcount == 1


def _generation(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT generation FROM sessions").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
async def test_a_live_workflow_run_again_takes_over_and_the_run_ends_once(
    app: StartApp, connection: psycopg.Connection, record: bool
) -> None:
    bodies: list[str] = []
    cancelled: list[str] = []
    waiting = asyncio.Event()

    @tool(replay="safe")
    async def first(ctx: ToolContext) -> str:
        bodies.append(f"first {ctx.attempt}")
        return "first"

    @tool(replay="safe")
    async def safe(ctx: ToolContext) -> str:
        bodies.append(f"safe {ctx.attempt}")
        return await held(ctx, "safe")

    @tool
    async def unsafe(ctx: ToolContext) -> str:
        bodies.append(f"unsafe {ctx.attempt}")
        return await held(ctx, "unsafe")

    async def held(ctx: ToolContext, name: str) -> str:
        if ctx.attempt == 1:
            if {"safe 1", "unsafe 1"} <= set(bodies):
                waiting.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                cancelled.append(name)
                raise
        return name

    script = [call("first", id="a"), calls(call("safe", id="b"), call("unsafe", id="c")), say("done")]
    desk, told = scripted(script, tools=[first, safe, unsafe])
    helix = await app(desk, sweep_seconds=60, record_model_steps=record)
    run = await helix.execute(desk, "go", session_id="s")
    await asyncio.wait_for(waiting.wait(), PATIENCE)
    before = _generation(connection)
    _run_again(connection)
    outcome = await run.result(timeout=PATIENCE)
    assert outcome.status is RunStatus.COMPLETED
    assert bodies == ["first 1", "safe 1", "unsafe 1", "safe 2"], "no envelope of old was trusted"
    assert [(report.bodies, report.reason) for report in outcome.calls] == [
        (1, None),
        (2, None),
        (1, Reason.OUTCOME_UNKNOWN),
    ]
    assert len(told) == 3, "the saved steps were not asked for again"
    assert history_shape(told.last) == ["user:go", "calls:a", "answers:a", "calls:b,c", "answers:b,c"]
    assert _generation(connection) == before + 2, "one attach, one end"

    async def all_cancelled() -> bool:
        return sorted(cancelled) == ["safe", "unsafe"]

    await poll_until_async(all_cancelled, seconds=PATIENCE)
    ends = connection.execute("SELECT count(*) FROM checkpoints WHERE kind = 'end'").fetchone()
    assert ends == (1,)
    assert connection.execute("SELECT count(*) FROM answers").fetchone() == (3,)


async def test_bodies_stay_bounded_however_often_it_is_run_again(
    app: StartApp, connection: psycopg.Connection
) -> None:
    bodies: list[str] = []

    async def again(ctx: ToolContext, name: str) -> str:
        bodies.append(f"{name} {ctx.attempt}")
        await asyncio.sleep(PATIENCE)
        return "never"

    @tool(replay="safe")
    async def safe(ctx: ToolContext) -> str:
        return await again(ctx, "safe")

    @tool
    async def unsafe(ctx: ToolContext) -> str:
        return await again(ctx, "unsafe")

    desk, told = scripted([calls(call("safe"), call("unsafe")), say("done")], tools=[safe, unsafe])
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")
    for expected in (2, 3, 4):

        async def running(count: int = expected) -> bool:
            return len(bodies) == count

        await poll_until_async(running, seconds=PATIENCE)
        _run_again(connection)
    outcome = await run.result(timeout=PATIENCE)
    assert outcome.output == "done"
    assert bodies == ["safe 1", "unsafe 1", "safe 2", "safe 3"]
    assert [(report.bodies, report.reason) for report in outcome.calls] == [
        (3, Reason.REPLAY_LIMIT_REACHED),
        (1, Reason.OUTCOME_UNKNOWN),
    ]
    assert len(told) == 2


async def test_the_old_executions_bodies_are_cancelled_soon(
    app: StartApp, connection: psycopg.Connection
) -> None:
    """Also in this very process, where the new execution carries the same run."""
    waiting, cancelled, finish = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def hold(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            waiting.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                cancelled.set()
                raise
        await finish.wait()
        return "held"

    desk, _ = scripted([call("hold"), say("done")], tools=[hold])
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")
    await asyncio.wait_for(waiting.wait(), PATIENCE)
    _run_again(connection)
    try:
        await asyncio.wait_for(cancelled.wait(), 3)
        assert await run.status() is RunStatus.RUNNING
    finally:
        finish.set()
    assert (await run.result(timeout=PATIENCE)).output == "done"


async def test_a_finished_workflow_run_again_changes_nothing(
    app: StartApp, connection: psycopg.Connection
) -> None:
    bodies: list[str] = []

    @tool(replay="safe")
    async def note(ctx: ToolContext) -> str:
        bodies.append(ctx.dispatch_id)
        return "noted"

    desk, told = scripted([call("note"), say("done")], tools=[note])
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    before = connection.execute("SELECT * FROM runs").fetchall(), _generation(connection)

    async def over() -> bool:
        rows = connection.execute("SELECT DISTINCT status FROM dbos.workflow_status").fetchall()
        return rows == [("SUCCESS",)]

    await poll_until_async(over, seconds=PATIENCE)
    steps = connection.execute("SELECT count(*) FROM dbos.operation_outputs").fetchone()
    _run_again(connection)
    await poll_until_async(over, seconds=PATIENCE)
    assert (connection.execute("SELECT * FROM runs").fetchall(), _generation(connection)) == before
    assert connection.execute("SELECT count(*) FROM dbos.operation_outputs").fetchone() == steps
    assert (len(bodies), len(told)) == (1, 2)
    assert (await (await helix.get_run(outcome.run_id)).result(timeout=PATIENCE)).output == "done"


async def test_a_superseded_stretch_run_again_leaves_quietly(
    app: StartApp, connection: psycopg.Connection
) -> None:
    """An old stretch that DBOS starts while a later one carries the run."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def reply(_request: Any) -> Any:
        entered.set()
        await release.wait()
        return say("done")

    desk, told = scripted(reply)
    helix = await app(desk, sweep_seconds=60)
    run = await helix.execute(desk, "go")
    await asyncio.wait_for(entered.wait(), PATIENCE)
    generation = _generation(connection)
    runtime = runtime_of(helix)
    old = f"helix.turn:{run.run_id}:0"
    connection.execute(
        "SELECT dbos.enqueue_workflow(workflow_name => 'helix.turn', queue_name => %s,"
        " positional_args => ARRAY[to_json(%s::text)], workflow_id => %s,"
        " app_version => (SELECT app_version FROM engine), application_name => 'helix')",
        (turn_queue("helix"), run.run_id, old),
    )

    async def left() -> bool:
        row = connection.execute(
            "SELECT status FROM dbos.workflow_status WHERE workflow_uuid = %s", (old,)
        ).fetchone()
        return row == ("SUCCESS",)

    await poll_until_async(left, seconds=PATIENCE)
    assert _generation(connection) == generation
    assert len(runtime.live) == 1
    release.set()
    outcome = await run.result(timeout=PATIENCE)
    assert outcome.output == "done"
    assert all(report.outcome is Outcome.RETURNED for report in outcome.calls)
    assert len(told) == 1
