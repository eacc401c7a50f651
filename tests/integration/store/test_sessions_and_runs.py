"""Sessions and runs: what is written is what is read, and what each function leaves alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from helix_dbos.core.messages import Usage
from helix_dbos.core.states import RunStatus
from helix_dbos.ids import turn_workflow_id
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.hot import write_reply
from helix_dbos.store.runs import (
    RunRow,
    end_run,
    insert_run,
    load_run,
    lock_and_load,
    mark_attached,
    next_stretch,
)
from helix_dbos.store.sessions import (
    SessionRow,
    ensure_session,
    load_session,
    load_state,
    lock_session,
    raise_generation,
    set_current_run,
)
from tests.integration.store.store_rows import (
    calling,
    mint,
    new_session,
    queued_run,
    running_run,
    session_rows,
)


async def read_session(database: Database, session_id: str) -> SessionRow | None:
    async with database.read() as tx:
        return await load_session(tx, session_id)


async def read_run(database: Database, run_id: str) -> RunRow:
    async with database.read() as tx:
        run = await load_run(tx, run_id)
    assert run is not None
    return run


async def test_a_new_session_is_read_as_it_was_written(database: Database):
    session_id, metadata = mint("session"), {"plan": "gold", "tags": [1, None]}
    await database.transaction(lambda tx: ensure_session(tx, session_id, "desk", "ada", metadata))
    assert await read_session(database, session_id) == SessionRow(
        session_id, "desk", 0, None, "ada", {"plan": "gold", "tags": [1, None]}
    )
    async with database.read() as tx:
        assert await load_state(tx, session_id) == {}


async def test_an_existing_session_stays_as_it_is(database: Database, look: psycopg.Connection):
    session_id = await new_session(database)
    before = session_rows(look, session_id)
    await database.transaction(lambda tx: ensure_session(tx, session_id, "other", "eve", {"a": 1}))
    assert session_rows(look, session_id) == before


async def test_of_many_who_make_the_same_session_one_does(database: Database, look: psycopg.Connection):
    session_id = mint("session")

    async def make(agent: str) -> str:
        async def work(tx: Transaction) -> str:
            await ensure_session(tx, session_id, agent, None, {})
            session = await lock_session(tx, session_id)
            assert session is not None
            return session.agent

        return await database.transaction(work)

    found = await asyncio.gather(*(make(f"agent-{n}") for n in range(8)))
    assert len(set(found)) == 1
    counted = {table: len(rows) for table, rows in session_rows(look, session_id).items() if rows}
    assert counted == {"sessions": 1, "session_state": 1, "session_counters": 1}


async def test_what_is_not_there_is_none(database: Database):
    async with database.read() as tx:
        assert await load_session(tx, "nobody") is None
        assert await load_run(tx, "nobody") is None
        assert await load_state(tx, "nobody") == {}
    assert await database.transaction(lambda tx: lock_session(tx, "nobody")) is None
    assert await database.transaction(lambda tx: lock_and_load(tx, "nobody")) is None


async def test_the_generation_only_rises(database: Database):
    session_id = await new_session(database)
    other = await new_session(database)
    for _ in range(3):
        await database.transaction(lambda tx: raise_generation(tx, session_id))
    for name, generation in ((session_id, 3), (other, 0)):
        session = await read_session(database, name)
        assert session is not None
        assert session.generation == generation


@pytest.mark.parametrize(
    ("given", "kept"), [(None, {"a": 1}), ({}, {}), ({"b": 2}, {"b": 2})], ids=["none", "empty", "other"]
)
async def test_the_current_run_and_its_metadata(
    database: Database, given: dict[str, Any] | None, kept: dict[str, Any]
):
    session_id = mint("session")
    await database.transaction(lambda tx: ensure_session(tx, session_id, "desk", None, {"a": 1}))
    _, run_id = await queued_run(database, session_id)
    await database.transaction(lambda tx: set_current_run(tx, session_id, run_id, given))
    session = await read_session(database, session_id)
    assert session is not None
    assert (session.current_run_id, session.metadata) == (run_id, kept)


async def test_a_new_run_waits_in_the_queue(database: Database):
    session_id, run_id = await queued_run(database)
    run = await read_run(database, run_id)
    now = datetime.now(UTC)
    assert timedelta(0) <= now - run.created_at < timedelta(minutes=5)
    assert run == RunRow(
        run_id=run_id,
        session_id=session_id,
        entry="turn",
        status=RunStatus.QUEUED,
        generation=0,
        workflow_id=turn_workflow_id(run_id, 1),
        stretch_no=1,
        rescues=0,
        executor_id=None,
        step_index=-1,
        steps_used=0,
        queue="turns",
        priority=10,
        output=None,
        error=None,
        usage=Usage(),
        created_at=run.created_at,
        started_at=None,
        ended_at=None,
    )


async def test_a_second_open_run_is_refused_and_one_after_the_end_is_not(database: Database):
    session_id, first = await queued_run(database)
    with pytest.raises(psycopg.errors.UniqueViolation, match="runs_one_open_per_session"):
        await queued_run(database, session_id)
    await database.transaction(lambda tx: end_run(tx, first, RunStatus.INTERRUPTED))
    await queued_run(database, session_id)


async def test_lock_and_load_reads_both(database: Database):
    session_id, run_id = await queued_run(database)
    found = await database.transaction(lambda tx: lock_and_load(tx, run_id))
    assert found == (await read_session(database, session_id), await read_run(database, run_id))


async def test_attach_keeps_the_first_start(database: Database):
    _, run_id = await queued_run(database)
    await database.transaction(lambda tx: mark_attached(tx, run_id, 1, "executor-1"))
    first = await read_run(database, run_id)
    assert (first.status, first.generation, first.executor_id) == (RunStatus.RUNNING, 1, "executor-1")
    assert first.started_at is not None
    await database.transaction(lambda tx: mark_attached(tx, run_id, 2, "executor-2"))
    second = await read_run(database, run_id)
    assert (second.generation, second.executor_id) == (2, "executor-2")
    assert second.started_at == first.started_at


@pytest.mark.parametrize("pause_seconds", [0, 0.0, 1.5, 3600])
async def test_the_next_stretch(database: Database, look: psycopg.Connection, pause_seconds: float):
    holder = await running_run(database)
    queued = "SELECT queued_at, next_rescue_at FROM runs WHERE run_id = %s"
    ((before, _),) = look.execute(queued, (holder.run_id,)).fetchall()
    workflow_id = turn_workflow_id(holder.run_id, 2)
    await database.transaction(
        lambda tx: next_stretch(
            tx,
            holder.run_id,
            generation=5,
            workflow_id=workflow_id,
            rescues=3,
            pause_seconds=pause_seconds,
        )
    )
    run = await read_run(database, holder.run_id)
    assert (run.status, run.generation, run.executor_id) == (RunStatus.QUEUED, 5, None)
    assert (run.workflow_id, run.stretch_no, run.rescues) == (workflow_id, 2, 3)
    ((after, next_rescue_at),) = look.execute(queued, (holder.run_id,)).fetchall()
    assert after > before
    assert next_rescue_at - after == timedelta(seconds=pause_seconds)


ENDS: list[tuple[RunStatus, Any, dict[str, Any] | None]] = [
    (RunStatus.COMPLETED, "text", None),
    (RunStatus.COMPLETED, {"n": [1, 2]}, None),
    (RunStatus.COMPLETED, None, None),
    (RunStatus.FAILED, None, {"code": "model_error", "error": "No.", "detail": None}),
    (RunStatus.INTERRUPTED, None, None),
    (RunStatus.SUPERSEDED, None, None),
]


@pytest.mark.parametrize(("status", "output", "error"), ENDS)
async def test_every_end(database: Database, status: RunStatus, output: Any, error: dict[str, Any] | None):
    holder = await running_run(database)
    await database.transaction(lambda tx: end_run(tx, holder.run_id, status, output=output, error=error))
    run = await read_run(database, holder.run_id)
    assert (run.status, run.output, run.error) == (status, output, error)
    assert run.ended_at is not None


async def test_a_failed_run_needs_its_error(database: Database):
    holder = await running_run(database)
    with pytest.raises(psycopg.errors.CheckViolation, match="runs_error"):
        await database.transaction(lambda tx: end_run(tx, holder.run_id, RunStatus.FAILED))


async def test_usage_survives(database: Database):
    holder = await running_run(database)
    usage = Usage(requests=1, input_tokens=2, output_tokens=3, cache_read_tokens=4, cache_write_tokens=5)
    reply = calling(usage=usage)
    await database.statement(lambda tx: write_reply(tx, holder, reply))
    assert (await read_run(database, holder.run_id)).usage == usage


async def test_a_run_of_a_session_that_is_not_there_is_refused(database: Database):
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await database.transaction(
            lambda tx: insert_run(
                tx,
                run_id=mint("run"),
                session_id="nobody",
                entry="turn",
                workflow_id=mint("workflow"),
                step_index=-1,
                queue="turns",
                priority=1,
            )
        )
