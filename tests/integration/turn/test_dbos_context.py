"""What users' code does with DBOS inside a turn stays its own: our workflow records nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from dbos import DBOS

from helix_dbos import Helix, Outcome, RunStatus, tool
from helix_dbos.testing import call, calls, say
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import scripted
from tests.integration.turn.started import PATIENCE, turn
from tests.support.waiting import poll_until_async

ran: list[str] = []


@DBOS.step(name="users.step")
async def users_step(text: str) -> str:
    ran.append(f"step {text}")
    return f"step {text}"


@DBOS.step(name="users.sync_step")
def users_sync_step(text: str) -> str:
    ran.append(f"sync step {text}")
    return f"sync step {text}"


@DBOS.workflow(name="users.workflow")
async def users_workflow(text: str) -> str:
    return "workflow " + await users_step(text)


@DBOS.workflow(name="users.sync_workflow")
def users_sync_workflow(text: str) -> str:
    return "workflow " + users_sync_step(text)


Rows = list[tuple[Any, ...]]


def _ours(connection: psycopg.Connection) -> Rows:
    """The steps DBOS holds of our workflows, in order."""
    return connection.execute(
        "SELECT o.function_id, o.function_name FROM dbos.operation_outputs o"
        " JOIN dbos.workflow_status w USING (workflow_uuid) WHERE w.name = 'helix.turn'"
        " ORDER BY w.created_at, o.function_id"
    ).fetchall()


async def _all_over(connection: psycopg.Connection) -> None:
    async def over() -> bool:
        rows = connection.execute("SELECT DISTINCT status FROM dbos.workflow_status").fetchall()
        return rows == [("SUCCESS",)]

    await poll_until_async(over, seconds=PATIENCE)


async def test_bodies_that_use_dbos_record_nothing_in_our_workflow(
    app: StartApp, connection: psycopg.Connection
) -> None:
    @tool
    async def step() -> str:
        assert DBOS.workflow_id is None
        assert DBOS.step_id is None
        return await users_step("a")

    @tool
    async def workflow() -> str:
        return await users_workflow("b")

    @tool
    async def background() -> str:
        handle = await DBOS.start_workflow_async(users_workflow, "c")
        return await handle.get_result(polling_interval_sec=0.05)

    @tool
    def sync_step() -> str:
        assert DBOS.workflow_id is None
        return users_sync_step("d")

    @tool
    def sync_workflow() -> str:
        return users_sync_workflow("e")

    tools = [step, workflow, background, sync_step, sync_workflow]
    asked = calls(*(call(each.name) for each in tools))
    desk, _ = scripted([asked, asked, say("done")], tools=tools)
    helix = await app(desk)
    outcome = await turn(helix, desk)
    assert outcome.status is RunStatus.COMPLETED
    assert [report.result for report in outcome.calls] == [
        "step a",
        "workflow step b",
        "workflow step c",
        "sync step d",
        "workflow sync step e",
    ] * 2
    await _all_over(connection)
    assert _ours(connection) == [(n, "helix.model_step") for n in (1, 2, 3)]
    users = connection.execute(
        "SELECT name, count(*), count(parent_workflow_id) FROM dbos.workflow_status"
        " WHERE name LIKE 'users.%' GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert users == [("users.sync_workflow", 2, 0), ("users.workflow", 4, 0)], "nobody's children"


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
async def test_dependencies_and_instructions_that_use_dbos_record_nothing_in_our_workflow(
    app: StartApp, connection: psycopg.Connection, record: bool
) -> None:
    @asynccontextmanager
    async def deps(_info: object) -> AsyncIterator[str]:
        yield await users_step("deps") + await users_workflow("deps")
        await users_step("closing")

    async def process_deps() -> str:
        return await users_step("process") + await users_workflow("process")

    async def instructions(_context: object) -> str:
        return await users_step("instructions") + await users_workflow("instructions")

    desk, told = scripted(
        [call("nope"), say("done")], deps=deps, process_deps=process_deps, instructions=instructions
    )
    outcome = await turn(await app(desk, record_model_steps=record), desk)
    assert outcome.status is RunStatus.COMPLETED, outcome.error
    assert told.last.instructions == "step instructionsworkflow step instructions"
    await _all_over(connection)
    assert _ours(connection) == ([(1, "helix.model_step"), (2, "helix.model_step")] if record else [])


async def test_a_body_that_starts_another_agents_turn(app: StartApp, connection: psycopg.Connection) -> None:
    apps: list[Helix] = []

    @tool
    async def ask(question: str) -> str:
        run = await apps[0].execute("expert", question, session_id="consultation")
        outcome = await run.result(timeout=PATIENCE)
        return str(outcome.unwrap())

    desk, _ = scripted([call("ask", {"question": "why"}), say("done")], tools=[ask])
    expert, heard = scripted([say("because")], name="expert")
    apps.append(await app(desk, expert))
    outcome = await turn(apps[0], desk)
    assert outcome.calls[0].outcome is Outcome.RETURNED
    assert outcome.calls[0].result == "because"
    assert heard.last.session_id == "consultation"
    await _all_over(connection)
    assert {name for _, name in _ours(connection)} == {"helix.model_step"}
    parents = connection.execute("SELECT count(parent_workflow_id) FROM dbos.workflow_status").fetchone()
    assert parents == (0,)


async def test_a_turn_started_inside_a_users_workflow_is_not_its_child(
    app: StartApp, connection: psycopg.Connection
) -> None:
    desk, _ = scripted([say("done")])
    helix = await app(desk)
    started: list[str] = []

    @DBOS.workflow(name="users.turn")
    async def starts_a_turn() -> str:
        run = await helix.execute(desk, "go")
        started.append(run.run_id)
        return str((await run.result(timeout=PATIENCE)).output)

    assert await starts_a_turn() == "done"
    await _all_over(connection)
    assert len(started) == 1
    assert _ours(connection) == [(1, "helix.model_step")]
    parents = connection.execute("SELECT count(parent_workflow_id) FROM dbos.workflow_status").fetchone()
    assert parents == (0,)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "queued"])
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
async def test_everything_dbos_stores_is_json(
    app: StartApp, connection: psycopg.Connection, direct: bool, record: bool
) -> None:
    @tool
    async def echo(n: int) -> int:
        return n

    desk, _ = scripted([call("echo", {"n": 1}), say("done")], tools=[echo])
    helix = await app(desk, direct_start=direct, record_model_steps=record)
    outcome = await turn(helix, desk)
    await _all_over(connection)
    assert _ours(connection) == ([(1, "helix.model_step"), (2, "helix.model_step")] if record else [])
    found = 0
    for table in ("workflow_status", "workflow_input", "workflow_output", "operation_outputs"):
        rows = connection.execute(f"SELECT to_jsonb(t) FROM dbos.{table} t").fetchall()
        for (row,) in rows:
            found += 1
            if "serialization" in row:
                assert row["serialization"] == "portable_json", (table, row)
    assert found >= 1 + (2 if record else 0)
    (status,) = connection.execute("SELECT to_jsonb(w) FROM dbos.workflow_status w").fetchone() or ({},)
    assert status["application_name"] == "helix"
    assert status["application_version"] == "helix-dbos/1@helix"
    assert outcome.output == "done"
