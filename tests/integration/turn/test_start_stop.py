"""Starting and stopping an app: what is refused, what is undone, what is given back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from dbos import DBOS
from pydantic import SecretStr
from sqlalchemy import make_url

from helix_dbos import Agent, Helix, Reason, RunStatus, SchemaError, Settings, StoreError, ToolContext, tool
from helix_dbos.testing import ScriptedModel, call, calls, say
from tests.integration.turn.looks import scripted
from tests.integration.turn.started import PATIENCE, small_settings, started, turn
from tests.support.waiting import poll_until


def _desk() -> Agent[Any, Any, Any]:
    return Agent(name="desk", model=ScriptedModel([say("done")]))


def _ours(connection: psycopg.Connection) -> list[Any]:
    """The connections to this database but this one, and its advisory locks."""
    rows = connection.execute(
        "SELECT application_name, state FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " UNION ALL SELECT locktype, mode FROM pg_locks WHERE locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return rows.fetchall()


def _nothing_is_left(connection: psycopg.Connection) -> None:
    try:
        poll_until(lambda: not _ours(connection), seconds=5)
    except AssertionError:
        raise AssertionError(_ours(connection)) from None
    names = {thread.name for thread in threading.enumerate()}
    assert not [name for name in names if name.startswith(("helix-tool", "queue-worker"))]


async def _works(settings: Settings, **more: Any) -> None:
    desk = _desk()
    async with started([desk], settings, **more) as helix:
        assert (await turn(helix, desk)).output == "done"


async def test_the_loop_is_given_back_as_it_was(database_url: str, connection: psycopg.Connection) -> None:
    desk = _desk()
    async with started([desk], small_settings(database_url)) as helix:
        assert await asyncio.to_thread(lambda: 1) == 1
        await turn(helix, desk)
        assert _ours(connection)
    assert await asyncio.to_thread(lambda: 2) == 2
    assert (await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80))[0]
    _nothing_is_left(connection)
    assert connection.execute("SELECT count(*) FROM executors WHERE stopped_at IS NULL").fetchone() == (0,)


async def test_an_app_can_be_started_again_and_again(
    database_url: str, connection: psycopg.Connection
) -> None:
    desk = _desk()
    helix = Helix([desk], settings=small_settings(database_url))
    for _ in range(2):
        async with helix:
            assert (await turn(helix, desk)).output == "done"
            alive = "SELECT count(*) FROM executors WHERE stopped_at IS NULL"
            assert connection.execute(alive).fetchone() == (1,)
    assert connection.execute("SELECT count(*) FROM executors").fetchone() == (2,)
    _nothing_is_left(connection)


async def test_a_second_app_at_the_same_time_is_refused_and_does_no_harm(
    database_url: str, connection: psycopg.Connection
) -> None:
    desk = _desk()
    settings = small_settings(database_url)
    async with started([desk], settings) as helix:
        before = len(_ours(connection))
        with pytest.raises(StoreError) as refused:
            async with Helix([_desk()], settings=settings):
                raise AssertionError("it started")
        assert refused.value.code == "engine_already_launched"
        poll_until(lambda: len(_ours(connection)) <= before)
        assert (await turn(helix, desk)).output == "done"
        alive = "SELECT count(*) FROM executors WHERE stopped_at IS NULL"
        assert connection.execute(alive).fetchone() == (1,)
    _nothing_is_left(connection)


async def test_entering_a_started_app_again_is_refused_and_does_no_harm(
    database_url: str, connection: psycopg.Connection
) -> None:
    desk = _desk()
    async with started([desk], small_settings(database_url)) as helix:
        with pytest.raises(StoreError) as refused:
            async with helix:
                raise AssertionError("it started twice")
        assert refused.value.code == "engine_already_launched"
        assert (await turn(helix, desk)).output == "done"
    _nothing_is_left(connection)


async def test_an_unmigrated_database_names_the_command(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        with pytest.raises(SchemaError) as refused:
            async with Helix([_desk()], settings=small_settings(empty_database_url)):
                raise AssertionError("it started")
        assert "helix-dbos migrate" in str(refused.value)
        assert refused.value.code == "store_schema_mismatch"
        _nothing_is_left(connection)
        schemas = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname IN ('helix', 'dbos')")
        assert schemas.fetchone() == (0,), "a check creates nothing"
        await _works(small_settings(empty_database_url, migrate="apply"))
        await _works(small_settings(empty_database_url))
        _nothing_is_left(connection)


def _another_schema(settings: Settings) -> Settings:
    return settings.model_copy(update={"schema_name": "elsewhere"})


def _no_engine_tables(settings: Settings) -> Settings:
    return settings.model_copy(update={"dbos_schema": "elsewhere"})


def _closed_port(settings: Settings) -> Settings:
    assert settings.database_url is not None
    url = make_url(settings.database_url.get_secret_value()).set(host="127.0.0.1", port=1, query={})
    return settings.model_copy(update={"database_url": SecretStr(url.render_as_string(hide_password=False))})


def _no_lock(settings: Settings) -> Settings:
    closed = _closed_port(settings)
    return settings.model_copy(update={"direct_database_url": closed.database_url})


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_another_schema, "store_schema_mismatch"),
        (_no_engine_tables, "engine_launch_failed"),
        (_closed_port, "store_unavailable"),
        (_no_lock, "store_unavailable"),
    ],
)
async def test_a_start_that_fails_half_way_leaves_nothing_behind(
    database_url: str, connection: psycopg.Connection, spoil: Callable[[Settings], Settings], code: str
) -> None:
    settings = small_settings(database_url)
    with pytest.raises(StoreError) as refused:
        async with Helix([_desk()], settings=spoil(settings)):
            raise AssertionError("it started")
    assert refused.value.code == code
    assert "password" not in str(refused.value)
    _nothing_is_left(connection)
    assert await asyncio.to_thread(lambda: 1) == 1
    await _works(settings)
    _nothing_is_left(connection)


async def test_another_app_does_not_get_a_schema_that_is_taken(
    database_url: str, connection: psycopg.Connection
) -> None:
    settings = small_settings(database_url)
    await _works(settings)
    with pytest.raises(StoreError) as refused:
        async with Helix([_desk()], name="another", settings=settings):
            raise AssertionError("it started")
    assert refused.value.code == "store_schema_taken"
    assert "helix" in (refused.value.detail or "")
    _nothing_is_left(connection)
    await _works(settings)


async def test_two_apps_in_one_database_share_nothing(
    database_url: str, connection: psycopg.Connection
) -> None:
    await _works(small_settings(database_url))
    other = small_settings(database_url, schema_name="second", migrate="apply")
    await _works(other, name="second")
    for schema in ("helix", "second"):
        rows = connection.execute(f"SELECT turn_queue, app_version FROM {schema}.engine").fetchone()
        name = "helix" if schema == "helix" else "second"
        assert rows == (f"helix-turns-{name}", f"helix-dbos/1@{name}")
        assert connection.execute(f"SELECT count(*) FROM {schema}.runs").fetchone() == (1,)


@pytest.mark.parametrize(
    ("failure", "seen"), [(OSError, StoreError), (asyncio.CancelledError, asyncio.CancelledError)]
)
async def test_a_start_that_fails_after_the_engines_launch_leaves_nothing_behind(
    database_url: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    failure: type[BaseException],
    seen: type[BaseException],
) -> None:
    async def fail(*_given: object, **_more: object) -> None:
        raise failure

    settings = small_settings(database_url)
    with monkeypatch.context() as patched:
        patched.setattr(DBOS, "register_queue_async", fail)
        with pytest.raises(seen):
            async with Helix([_desk()], settings=settings):
                raise AssertionError("it started")
    _nothing_is_left(connection)
    await _works(settings)


async def test_a_stop_right_after_an_accept_is_quick_and_loses_nothing(
    database_url: str, connection: psycopg.Connection
) -> None:
    desk = _desk()
    settings = small_settings(database_url)
    runs: list[str] = []
    for direct in (True, False):
        settings = small_settings(database_url, direct_start=direct)
        async with Helix([desk], settings=settings) as helix:
            runs += [(await helix.execute(desk, "go")).run_id for _ in range(5)]
            began = time.monotonic()
        assert time.monotonic() - began < 5
    async with started([desk], settings) as helix:
        for run_id in runs:
            run = await helix.get_run(run_id)
            assert (await run.result(timeout=PATIENCE)).output == "done"
    _nothing_is_left(connection)


async def test_a_stop_without_grace_leaves_a_running_body_to_the_next_process(
    database_url: str, connection: psycopg.Connection
) -> None:
    entered, aborted = asyncio.Event(), asyncio.Event()
    attempts: list[tuple[str, int]] = []

    async def hold(ctx: ToolContext, name: str) -> str:
        attempts.append((name, ctx.attempt))
        if ctx.attempt == 1:
            if len(attempts) == 2:
                entered.set()
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                if ctx.abort.is_set():
                    aborted.set()
        return name

    @tool(replay="safe")
    async def safe(ctx: ToolContext) -> str:
        return await hold(ctx, "safe")

    @tool
    async def unsafe(ctx: ToolContext) -> str:
        return await hold(ctx, "unsafe")

    desk, told = scripted([calls(call("safe"), call("unsafe")), say("done")], tools=[safe, unsafe])
    async with Helix([desk], settings=small_settings(database_url, drain_seconds=0)) as helix:
        run = await helix.execute(desk, "go")
        await asyncio.wait_for(entered.wait(), PATIENCE)
    await asyncio.wait_for(aborted.wait(), PATIENCE)
    _nothing_is_left(connection)
    async with started([desk], small_settings(database_url, sweep_seconds=0.1)) as helix:
        outcome = await (await helix.get_run(run.run_id)).result(timeout=PATIENCE)
    assert outcome.status is RunStatus.COMPLETED
    assert [(report.bodies, report.reason) for report in outcome.calls] == [
        (2, None),
        (1, Reason.OUTCOME_UNKNOWN),
    ]
    assert attempts == [("safe", 1), ("unsafe", 1), ("safe", 2)]
    assert len(told) == 2
