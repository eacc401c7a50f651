"""Enqueue in the deciding transaction: the workflow exists if and only if that one commits."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from helix_dbos.engine.enqueue import TURN_WORKFLOW, QueueAddress, enqueue_turn
from helix_dbos.store.database import Database, Transaction
from tests.integration.engine.engine_rows import APPLICATION, VERSION, mint

TO = QueueAddress(dbos_schema="dbos", queue="helix-turns-shop", app_version=VERSION, application=APPLICATION)


class ChangedMind(Exception):
    pass


def engine_row(look: psycopg.Connection, workflow_id: str) -> dict[str, Any] | None:
    with look.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SELECT * FROM dbos.workflow_status WHERE workflow_uuid = %s", (workflow_id,))
        return cursor.fetchone()


async def enqueue(tx: Transaction, workflow_id: str, **more: Any) -> None:
    known: dict[str, Any] = {"run_id": "run-1", "priority": 10, "delay_seconds": 0.0}
    await enqueue_turn(tx, TO, workflow_id=workflow_id, **(known | more))


async def test_the_workflow_comes_with_the_commit(database: Database, look: psycopg.Connection):
    workflow_id = mint("workflow")

    async def work(tx: Transaction) -> None:
        await enqueue(tx, workflow_id, run_id="run-7", priority=3)
        await tx.one("SELECT 1")
        assert engine_row(look, workflow_id) is None

    await database.transaction(work)
    row = engine_row(look, workflow_id)
    assert row is not None
    expected = {
        "name": TURN_WORKFLOW,
        "status": "ENQUEUED",
        "queue_name": TO.queue,
        "priority": 3,
        "application_version": VERSION,
        "application_name": APPLICATION,
        "serialization": "portable_json",
        "executor_id": None,
        "delay_until_epoch_ms": None,
        "deduplication_id": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert abs(row["created_at"] / 1000 - time.time()) < 300
    inputs = look.execute("SELECT inputs FROM dbos.workflow_input WHERE workflow_uuid = %s", (workflow_id,))
    assert [json.loads(text) for (text,) in inputs.fetchall()] == [
        {"positionalArgs": ["run-7"], "namedArgs": {}}
    ]


async def test_without_a_commit_there_is_no_workflow(database: Database, look: psycopg.Connection):
    workflow_id = mint("workflow")

    async def work(tx: Transaction) -> None:
        await enqueue(tx, workflow_id)
        await tx.one("SELECT 1")
        raise ChangedMind

    with pytest.raises(ChangedMind):
        await database.transaction(work)
    assert engine_row(look, workflow_id) is None
    assert look.execute("SELECT count(*) FROM dbos.workflow_input").fetchone() == (0,)


@pytest.mark.parametrize("delay_seconds", [2, 0.5, 3600.25])
async def test_a_delay(database: Database, look: psycopg.Connection, delay_seconds: float):
    workflow_id = mint("workflow")
    await database.transaction(lambda tx: enqueue(tx, workflow_id, delay_seconds=delay_seconds))
    row = engine_row(look, workflow_id)
    assert row is not None
    assert row["status"] == "DELAYED"
    assert row["delay_until_epoch_ms"] - row["created_at"] == pytest.approx(delay_seconds * 1000, abs=1)


@pytest.mark.parametrize("delay_seconds", [0, 0.0, -1.0])
async def test_no_delay(database: Database, look: psycopg.Connection, delay_seconds: float):
    workflow_id = mint("workflow")
    await database.transaction(lambda tx: enqueue(tx, workflow_id, delay_seconds=delay_seconds))
    row = engine_row(look, workflow_id)
    assert row is not None
    assert (row["status"], row["delay_until_epoch_ms"]) == ("ENQUEUED", None)


@pytest.mark.parametrize("ended", [False, True], ids=["still there", "ended"])
async def test_a_used_id_is_silently_nothing(database: Database, look: psycopg.Connection, ended: bool):
    """The trap: no error and no new workflow. Hence the stretch number, raised under the session's lock."""
    workflow_id = mint("workflow")
    await database.transaction(lambda tx: enqueue(tx, workflow_id, run_id="first", priority=1))
    if ended:
        look.execute("UPDATE dbos.workflow_status SET status = 'SUCCESS'")
    before = engine_row(look, workflow_id)
    assert before is not None
    await database.transaction(lambda tx: enqueue(tx, workflow_id, run_id="second", priority=9))
    after = engine_row(look, workflow_id)
    assert after is not None
    assert before | {"updated_at": 0} == after | {"updated_at": 0}
    assert "first" in str(look.execute("SELECT inputs FROM dbos.workflow_input").fetchall())


async def test_it_travels_with_the_other_statements(database: Database, look: psycopg.Connection):
    ids = [mint("workflow") for _ in range(3)]

    async def work(tx: Transaction) -> None:
        async with tx.together():
            for workflow_id in ids:
                await enqueue(tx, workflow_id)

    await database.transaction(work)
    assert all(engine_row(look, workflow_id) for workflow_id in ids)
