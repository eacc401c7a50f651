"""Which runs the engine will not bring any further: every cause, and what only looks like one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from dbos._sys_db import WorkflowStatusString

from helix_dbos.engine.port import StrandedCause, StrandedRun
from helix_dbos.engine.rows import find_claims, find_leftovers, find_lost_runs
from helix_dbos.store.database import Database
from helix_dbos.store.migration import apply_migrations
from tests.integration.engine.engine_rows import (
    APPLICATION,
    Executors,
    mint,
    session_with_run,
    workflow_row,
)

TERMINAL = {"SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"}
WAITING = {"ENQUEUED", "DELAYED"}


async def lost(database: Database, limit: int = 100) -> dict[str, StrandedRun]:
    found = await database.transaction(lambda tx: find_lost_runs(tx, "dbos", limit))
    return {run.run_id: run for run in found}


async def causes(database: Database) -> dict[str, str]:
    return {run_id: run.cause.value for run_id, run in (await lost(database)).items()}


def test_every_status_of_dbos_is_known():
    """A status that a new DBOS adds must be given a cause before the pin is raised."""
    assert {status.value for status in WorkflowStatusString} == TERMINAL | WAITING | {"PENDING"}


# (a) claimed by an executor that is dead


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_claimed_by_a_dead_executor(
    database: Database, look: psycopg.Connection, executors: Executors, status: str
):
    """Queued too: the kill may have come between DBOS's claim and our attach."""
    dead = executors.add(live=False)
    run_id, workflow_id = session_with_run(look, status=status, generation=4)
    workflow_row(look, workflow_id, "PENDING", executor_id=dead, started_seconds_ago=1)
    found = (await lost(database))[run_id]
    assert (found.workflow_id, found.generation, found.status) == (workflow_id, 4, status)
    assert found.cause is StrandedCause.DEAD_EXECUTOR
    owner = look.execute("SELECT session_id FROM runs WHERE run_id = %s", (run_id,)).fetchone()
    assert owner == (found.session_id,)


@pytest.mark.parametrize("status", ["queued", "running"])
@pytest.mark.parametrize("role", ["worker", "api"])
async def test_claimed_by_a_live_executor(
    database: Database, look: psycopg.Connection, executors: Executors, status: str, role: str
):
    live = executors.add(role=role)
    _, workflow_id = session_with_run(look, status=status)
    workflow_row(look, workflow_id, "PENDING", executor_id=live, started_seconds_ago=1)
    assert await causes(database) == {}
    executors.kill(live)
    assert list((await causes(database)).values()) == ["dead_executor"]


@pytest.mark.parametrize("executor_id", ["never-registered", None])
async def test_claimed_by_nobody_we_know(
    database: Database, look: psycopg.Connection, executors: Executors, executor_id: str | None
):
    executors.add()
    run_id, workflow_id = session_with_run(look)
    workflow_row(look, workflow_id, "PENDING", executor_id=executor_id)
    assert await causes(database) == {run_id: "dead_executor"}


async def test_an_executor_that_stopped_in_order_is_dead_while_its_lock_lingers(
    database: Database, look: psycopg.Connection, executors: Executors
):
    stopped = executors.add()
    look.execute("UPDATE executors SET stopped_at = now()")
    run_id, workflow_id = session_with_run(look)
    workflow_row(look, workflow_id, "PENDING", executor_id=stopped)
    assert await causes(database) == {run_id: "dead_executor"}


@dataclass(frozen=True)
class Reused:
    """A claim under an id that its live holder took over `holder_started` seconds ago."""

    holder_started: float
    created: float
    started: float | None
    lost: bool


REUSED = {
    "claimed before the holder started": Reused(30, created=60, started=40, lost=True),
    "claimed after the holder started": Reused(30, created=60, started=20, lost=False),
    "started directly before": Reused(30, created=40, started=None, lost=True),
    "started directly after": Reused(30, created=20, started=None, lost=False),
}


@pytest.mark.parametrize("case", REUSED)
async def test_claimed_under_an_id_that_is_used_again(
    database: Database, look: psycopg.Connection, executors: Executors, case: str
):
    """Inside an application whose DBOS id is the same after every start."""
    reused = REUSED[case]
    executors.add(dbos_id="pod-0", live=False, age_seconds=3600)
    executors.add(dbos_id="pod-0", age_seconds=reused.holder_started)
    run_id, workflow_id = session_with_run(look)
    workflow_row(
        look,
        workflow_id,
        "PENDING",
        executor_id="pod-0",
        created_seconds_ago=reused.created,
        started_seconds_ago=reused.started,
    )
    assert await causes(database) == ({run_id: "dead_executor"} if reused.lost else {})


async def test_an_id_of_our_own_is_never_used_again(
    database: Database, look: psycopg.Connection, executors: Executors
):
    """Then a claim that looks older than its holder is a matter of clocks and rounding."""
    live = executors.add(age_seconds=10)
    _, workflow_id = session_with_run(look)
    workflow_row(look, workflow_id, "PENDING", executor_id=live, created_seconds_ago=20)
    assert await causes(database) == {}


# (b) ended, though the run is not


@pytest.mark.parametrize("run_status", ["queued", "running"])
@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_the_workflow_ended_and_the_run_did_not(
    database: Database, look: psycopg.Connection, executors: Executors, status: str, run_status: str
):
    live = executors.add()
    run_id, workflow_id = session_with_run(look, status=run_status)
    workflow_row(look, workflow_id, status, executor_id=live)
    assert await causes(database) == {run_id: "ended"}


@pytest.mark.parametrize("run_status", ["suspended", "completed", "interrupted", "superseded"])
@pytest.mark.parametrize("status", [*sorted(TERMINAL), "PENDING", "ENQUEUED", None])
async def test_a_run_that_needs_no_workflow_is_not_lost(
    database: Database, look: psycopg.Connection, executors: Executors, status: str | None, run_status: str
):
    executors.add(version="another")
    _, workflow_id = session_with_run(look, status=run_status)
    if status:
        workflow_row(look, workflow_id, status, executor_id="dead")
    assert await causes(database) == {}


# (c) enqueued for a version that no live worker serves


@pytest.mark.parametrize("status", sorted(WAITING))
async def test_enqueued_for_a_version_that_is_served(
    database: Database, look: psycopg.Connection, executors: Executors, status: str
):
    executors.add()
    executors.add(version="newer")
    _, workflow_id = session_with_run(look, status="queued")
    workflow_row(look, workflow_id, status)
    assert await causes(database) == {}


@pytest.mark.parametrize("status", sorted(WAITING))
@pytest.mark.parametrize("others", ["nobody", "an api process", "a dead worker"])
async def test_enqueued_for_a_version_that_no_live_worker_serves(
    database: Database, look: psycopg.Connection, executors: Executors, status: str, others: str
):
    executors.add(version="newer")
    if others != "nobody":
        executors.add(role="api" if others == "an api process" else "worker", live=others != "a dead worker")
    run_id, workflow_id = session_with_run(look, status="queued")
    workflow_row(look, workflow_id, status)
    assert await causes(database) == {run_id: "no_worker"}


async def test_enqueued_without_a_version(database: Database, look: psycopg.Connection, executors: Executors):
    executors.add()
    run_id, workflow_id = session_with_run(look, status="queued")
    workflow_row(look, workflow_id, "ENQUEUED", version=None)
    assert await causes(database) == {run_id: "no_worker"}


@pytest.mark.parametrize("api", [False, True], ids=["nobody", "an api process"])
async def test_enqueued_while_no_worker_lives_at_all(
    database: Database, look: psycopg.Connection, executors: Executors, api: bool
):
    """Nobody could take another stretch either; the first worker will take this one."""
    executors.add(live=False)
    if api:
        executors.add(role="api")
    _, workflow_id = session_with_run(look, status="queued")
    workflow_row(look, workflow_id, "ENQUEUED")
    assert await causes(database) == {}


# (d) missing


@pytest.mark.parametrize(("age_seconds", "expected"), [(6, "missing"), (60, "missing"), (1, None)])
async def test_no_row_at_all(
    database: Database,
    look: psycopg.Connection,
    executors: Executors,
    age_seconds: float,
    expected: str | None,
):
    executors.add()
    run_id, _ = session_with_run(look, status="queued", age_seconds=age_seconds)
    assert await causes(database) == ({run_id: expected} if expected else {})


# When and how many


@pytest.mark.parametrize(("seconds", "found"), [(30, False), (-1, True)], ids=["not yet", "over"])
async def test_the_pause_after_a_rescue(
    database: Database, look: psycopg.Connection, executors: Executors, seconds: int, found: bool
):
    executors.add()
    _, workflow_id = session_with_run(look)
    workflow_row(look, workflow_id, "ERROR")
    look.execute("UPDATE runs SET next_rescue_at = now() + make_interval(secs => %s)", (seconds,))
    assert bool(await causes(database)) is found


async def test_only_the_current_stretch_counts(
    database: Database, look: psycopg.Connection, executors: Executors
):
    live = executors.add()
    run_id, workflow_id = session_with_run(look, stretch_no=2)
    workflow_row(look, f"helix.turn:{run_id}:1", "ERROR")
    workflow_row(look, workflow_id, "PENDING", executor_id=live)
    assert await causes(database) == {}


async def test_the_longest_waiting_come_first_up_to_the_limit(
    database: Database, look: psycopg.Connection, executors: Executors
):
    executors.add()
    by_age = {age: session_with_run(look, age_seconds=age)[0] for age in (20, 60, 40, 10)}
    assert list(await lost(database, 3)) == [by_age[60], by_age[40], by_age[20]]


async def test_two_apps_in_one_database_do_not_see_each_others_runs(
    database: Database, look: psycopg.Connection, executors: Executors, engine_url: str
):
    apply_migrations(engine_url, "other")
    other = Database(engine_url, "other", pool_size=2)
    await other.open()
    try:
        with psycopg.connect(engine_url, autocommit=True) as locks:
            theirs = Executors(look, locks, "other")
            shared_id = executors.add(dbos_id="pod-0", live=False)
            theirs.add(dbos_id="pod-0")
            mine, my_workflow = session_with_run(look)
            their_run, their_workflow = session_with_run(look, schema="other")
            ended, _ = session_with_run(look, schema="other")
            workflow_row(look, my_workflow, "PENDING", executor_id="pod-0", created_seconds_ago=1)
            workflow_row(look, their_workflow, "PENDING", executor_id="pod-0", created_seconds_ago=1)
            workflow_row(look, f"helix.turn:{ended}:1", "SUCCESS", executor_id="pod-0")
            assert await causes(database) == {mine: "dead_executor"}, "their live executor is not ours"
            assert await causes(other) == {ended: "ended"}
            assert shared_id
            for schema, app in (("helix", database), ("other", other)):
                leftovers = await app.transaction(lambda tx: find_leftovers(tx, "dbos", APPLICATION, 100))
                assert leftovers == [], schema
            assert their_run not in await lost(database)
    finally:
        await other.close()
        look.execute("DROP SCHEMA other CASCADE")


# Claims of one's own


async def claims(database: Database, executor_id: str, limit: int = 100) -> list[StrandedRun]:
    return list(await database.transaction(lambda tx: find_claims(tx, "dbos", executor_id, limit)))


CLAIMS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "mine for a while": ({}, {"started_seconds_ago": 6}, True),
    "started directly a while ago": ({}, {"created_seconds_ago": 6}, True),
    "queued still": ({"status": "queued"}, {"started_seconds_ago": 6}, True),
    "just claimed": ({}, {"started_seconds_ago": 1}, False),
    "somebody else's": ({}, {"executor_id": "other", "started_seconds_ago": 6}, False),
    "not claimed": ({}, {"status": "ENQUEUED"}, False),
    "ended": ({"status": "completed"}, {"started_seconds_ago": 6}, False),
    "suspended": ({"status": "suspended"}, {"started_seconds_ago": 6}, False),
}


@pytest.mark.parametrize("case", CLAIMS)
async def test_what_the_engine_says_is_mine(database: Database, look: psycopg.Connection, case: str):
    run, row, found = CLAIMS[case]
    run_id, workflow_id = session_with_run(look, **run)
    workflow_row(look, workflow_id, **({"status": "PENDING", "executor_id": "mine"} | row))
    seen = await claims(database, "mine")
    assert [(claim.run_id, claim.cause) for claim in seen] == (
        [(run_id, StrandedCause.UNKNOWN_HERE)] if found else []
    )


# Leftovers


async def leftovers(database: Database, limit: int = 100) -> set[str]:
    return set(await database.transaction(lambda tx: find_leftovers(tx, "dbos", APPLICATION, limit)))


LEFT = ["ENQUEUED", "DELAYED", "PENDING"]


@pytest.mark.parametrize("status", LEFT)
async def test_the_row_of_a_stretch_that_was_followed_by_another(
    database: Database, look: psycopg.Connection, status: str
):
    run_id, workflow_id = session_with_run(look, stretch_no=2)
    workflow_row(look, workflow_id, status)
    workflow_row(look, f"helix.turn:{run_id}:1", status)
    assert await leftovers(database) == {f"helix.turn:{run_id}:1"}


@pytest.mark.parametrize("status", LEFT)
@pytest.mark.parametrize("run_status", ["completed", "interrupted", "superseded", "suspended"])
async def test_the_row_of_a_run_that_is_not_carried_any_more(
    database: Database, look: psycopg.Connection, status: str, run_status: str
):
    _, workflow_id = session_with_run(look, status=run_status)
    workflow_row(look, workflow_id, status)
    assert await leftovers(database) == {workflow_id}


NOT_LEFT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a queued run's": ({"status": "queued"}, {"status": "ENQUEUED"}),
    "a running run's": ({}, {"status": "PENDING"}),
    "one that ended by itself": ({"status": "completed"}, {"status": "SUCCESS"}),
    "one cancelled already": ({"status": "completed"}, {"status": "CANCELLED"}),
    "another application's": ({"status": "completed"}, {"status": "PENDING", "application": "other"}),
    "nobody's": ({"status": "completed"}, {"status": "PENDING", "application": None}),
    "another workflow's": ({"status": "completed"}, {"status": "PENDING", "name": "shop.nightly"}),
    "of a run that ended just now": ({"status": "completed", "ended_seconds_ago": 1}, {"status": "PENDING"}),
    "of a run that was queued just now": ({"status": "suspended", "age_seconds": 1}, {"status": "PENDING"}),
}


@pytest.mark.parametrize("case", NOT_LEFT)
async def test_a_row_that_is_not_left_over(database: Database, look: psycopg.Connection, case: str):
    run, row = NOT_LEFT[case]
    _, workflow_id = session_with_run(look, **run)
    workflow_row(look, workflow_id, **row)
    assert await leftovers(database) == set()


async def test_a_row_of_no_run_of_ours_is_not_ours_to_cancel(database: Database, look: psycopg.Connection):
    workflow_row(look, f"helix.turn:{mint('run')}:1", "PENDING")
    workflow_row(look, "helix.turn", "PENDING")
    assert await leftovers(database) == set()


async def test_leftovers_come_in_batches(database: Database, look: psycopg.Connection):
    for _ in range(3):
        _, workflow_id = session_with_run(look, status="completed")
        workflow_row(look, workflow_id, "PENDING")
    assert len(await leftovers(database, 2)) == 2
