"""Who is alive, which runs are lost, and who brings them on: each trap that the design names."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from dbos import DBOSClient

from helix_dbos.agents import AgentRegistry, ProcessDependencies
from helix_dbos.engine.enqueue import QueueAddress, enqueue_turn
from helix_dbos.engine.port import Engine, StrandedCause, StrandedRun
from helix_dbos.engine.rows import find_lost_runs
from helix_dbos.faults import unreached
from helix_dbos.process import app_version, turn_queue
from helix_dbos.settings import Settings
from helix_dbos.store.database import Database, Transaction
from helix_dbos.workflows.rescue import rescue
from helix_dbos.workflows.runtime import Runtime
from helix_dbos.workflows.sweep import SETTLED_SECONDS
from tests.fault.backends import cut_locks, live_pids, lock_backends
from tests.fault.processes import Start, Worker, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import IN_BODY, MIXED, Kill, Script
from tests.support.waiting import poll_until, poll_until_async

LONG = ((("charge", {"n": 1, "seconds": 0.8}), ("put", {"n": 2, "seconds": 0.8})), (("put", {"n": 3}),))
CHAIN = ((*[("chained", {"n": n, "seconds": 0.5}) for n in range(1, 8)],),)
OTHER_TURNS = {"long": LONG, "chain": CHAIN, "brief": ()}
ENDED_EARLY = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


def _script(witness: Witness, kill: Kill | None = None) -> Script:
    return Script(witness.path, MIXED, kill=kill, body_seconds=0.02, turns=OTHER_TURNS)


@pytest.fixture(scope="module")
def worker(shared_database_url: str, shared_witness: Witness) -> Iterator[Worker]:
    """The worker that is up all the time; it sweeps, and carries what it is given."""
    with Workers() as workers:
        worker = workers.start(Start(shared_database_url, _script(shared_witness)))
        worker.ask("carrying")
        poll_until(lambda: _settled(shared_database_url))
        yield worker


def _settled(database_url: str) -> bool:
    """The executors have held their locks for long enough to sweep."""
    with connect(database_url) as rows:
        return not rows.execute(
            "SELECT 1 FROM executors WHERE started_at > now() - make_interval(secs => %s)",
            (SETTLED_SECONDS + 0.1,),
        ).fetchall()


def _new_session() -> str:
    return f"s-{uuid.uuid4().hex}"  # noqa: TID251 - a name of the test's


def _execute(worker: Worker, message: str = "go") -> tuple[str, str]:
    session_id = _new_session()
    return session_id, worker.ask("execute", agent="desk", message=message, session_id=session_id)


def _set(database_url: str, statement: str, *values: Any) -> int:
    with connect(database_url) as rows:
        return rows.execute(statement, values).rowcount


def _run_row(database_url: str, run_id: str) -> dict[str, Any]:
    with connect(database_url) as rows:
        row = rows.execute("SELECT * FROM runs WHERE run_id = %s", (run_id,)).fetchone()
    assert row is not None
    return row


def _engine_row(database_url: str, run_id: str, stretch: int = 1) -> dict[str, Any]:
    with connect(database_url) as rows:
        row = rows.execute(
            "SELECT * FROM dbos.workflow_status WHERE workflow_uuid = %s", (f"helix.turn:{run_id}:{stretch}",)
        ).fetchone()
    assert row is not None
    return row


def test_a_run_without_an_engine_row_is_rescued_after_five_seconds(
    shared_database_url: str, shared_witness: Witness, worker: Worker
) -> None:
    """As after a death between the commit and the direct start; the row's age alone decides."""
    with Workers() as workers:
        other = Start(shared_database_url, _script(shared_witness, Kill("after_accept")), message="go")
        victim = workers.start(other)
        assert victim.dies() == -signal.SIGKILL
    with connect(shared_database_url) as rows:
        lost = rows.execute(
            "UPDATE runs SET queued_at = queued_at - interval '3.5 s' WHERE status = 'queued' RETURNING *"
        ).fetchone()
    assert lost is not None
    run = wait_for_end(shared_database_url, lost["session_id"])
    assert (run["status"], run["stretch_no"], run["rescues"]) == ("completed", 2, 0)
    assert 5 <= (run["queued_at"] - lost["queued_at"]).total_seconds() < 8
    Truth(shared_database_url, lost["session_id"], shared_witness).holds()


@pytest.mark.parametrize("status", ENDED_EARLY)
def test_an_open_run_whose_engine_row_has_ended_is_rescued(
    status: str, shared_database_url: str, shared_witness: Witness, worker: Worker
) -> None:
    """Even from a live execution: it finds itself fenced, and the call in doubt is not run again."""
    session_id, run_id = _execute(worker, "long")
    poll_until(lambda: len(shared_witness.events("start", session_id=session_id)) == 2)
    workflow_id = f"helix.turn:{run_id}:1"
    statement = "UPDATE dbos.workflow_status SET status = %s WHERE workflow_uuid = %s"
    assert _set(shared_database_url, statement, status, workflow_id) == 1
    run = wait_for_end(shared_database_url, session_id)
    assert (run["status"], run["stretch_no"]) == ("completed", 2)
    _set(shared_database_url, statement, "CANCELLED", workflow_id)  # what the test forged is not left open
    truth = Truth(shared_database_url, session_id, shared_witness)
    truth.holds()
    assert truth.numbered()[1]["reason"] == "outcome_unknown"
    assert shared_witness.events("loop_error") == []


@pytest.mark.parametrize("how", ["row", "client"])
@pytest.mark.parametrize("when", ["at once", "after the rescue"])
def test_the_engine_s_own_recovery_beside_the_rescue(
    when: str, how: str, shared_database_url: str, shared_witness: Witness, worker: Worker
) -> None:
    """DBOS or an operator brings the old workflow back: one of the two stretches is superseded."""
    before = len(shared_witness.events("attach"))
    with Workers() as workers:
        script = _script(shared_witness, Kill(IN_BODY, "put", nth=3))
        victim = workers.start(Start(shared_database_url, script))
        runs = dict(_start_all(victim, 3))
        assert victim.dies() == -signal.SIGKILL
    for run_id in runs.values():
        if when == "after the rescue":
            poll_until(lambda: _run_row(shared_database_url, run_id)["stretch_no"] == 2)  # noqa: B023
        _bring_back(shared_database_url, f"helix.turn:{run_id}:1", how)
    for session_id, run_id in runs.items():
        run = wait_for_end(shared_database_url, session_id)
        assert (run["run_id"], run["status"]) == (run_id, "completed")
        Truth(shared_database_url, session_id, shared_witness).holds()
        attached = [event.run_id for event in shared_witness.events("attach")[before:]].count(run_id)
        assert attached in ((2,) if when == "after the rescue" else (2, 3)), "the old stretch left quietly"


def _start_all(victim: Worker, count: int) -> Iterator[tuple[str, str]]:
    """Turns of a process that dies of the last one's call; each is accepted before."""
    victim.ask("carrying")
    orders = [(_new_session(), "") for _ in range(count)]
    numbers = [
        victim.order("execute", agent="desk", message="go", session_id=session_id) for session_id, _ in orders
    ]
    for (session_id, _), number in zip(orders, numbers, strict=True):
        yield session_id, victim.reply(number)


def _bring_back(database_url: str, workflow_id: str, how: str) -> None:
    """What DBOS's recovery writes, or what an operator asks DBOS's client for."""
    if how == "client":
        client = DBOSClient(system_database_url=database_url)
        try:
            client.resume_workflow(workflow_id, queue_name=turn_queue("helix"))
        finally:
            client.destroy()
        return
    _set(
        database_url,
        "UPDATE dbos.workflow_status SET status = 'ENQUEUED', queue_name = %s, executor_id = NULL,"
        " started_at_epoch_ms = NULL WHERE workflow_uuid = %s",
        turn_queue("helix"),
        workflow_id,
    )


def test_locks_lost_all_at_once_are_taken_again_and_the_runs_go_on(
    database_url: str, witness: Witness
) -> None:
    """For a moment everyone looks dead; nobody may trust such a look, and nobody is rescued."""
    start = Start(database_url, _script(witness), settings={"sweep_seconds": 0.05})
    with Workers() as workers:
        both = [workers.start(start) for _ in range(2)]
        poll_until(lambda: len(live_pids(database_url)) == 2)
        poll_until(lambda: _settled(database_url))
        runs = [_execute(worker, "chain") for worker in both]
        poll_until(lambda: len(witness.events("start")) >= 2)
        before = lock_backends(database_url)
        cut_locks(database_url)
        poll_until(lambda: len(live_pids(database_url)) == 2, seconds=5)
        after = lock_backends(database_url)
        assert before.keys() == after.keys(), "the same executors, under the same keys"
        assert not set(before.values()) & set(after.values())
        for session_id, _ in runs:
            run = wait_for_end(database_url, session_id)
            assert (run["status"], run["stretch_no"]) == ("completed", 1)
            Truth(database_url, session_id, witness).holds()
            assert set(witness.bodies(session_id).values()) == {1}
    assert witness.events("rescue") == []


def test_an_executor_taken_for_dead_is_fenced(
    shared_database_url: str, shared_witness: Witness, worker: Worker
) -> None:
    with Workers() as workers:
        other = workers.start(Start(shared_database_url, _script(shared_witness)))
        session_id, _ = _execute(other, "long")
        poll_until(lambda: shared_witness.events("start", session_id=session_id))
        cut_locks(shared_database_url, other.pid)
        run = wait_for_end(shared_database_url, session_id)
        assert run["status"] == "completed"
        poll_until(lambda: other.pid in live_pids(shared_database_url))
        poll_until(lambda: other.ask("carrying") == [])
    truth = Truth(shared_database_url, session_id, shared_witness)
    truth.holds()
    in_doubt = truth.numbered()[1]["reason"] == "outcome_unknown"
    assert in_doubt == (run["stretch_no"] > 1), "rescued or not, depending on who was faster"


async def test_of_rescuers_at_the_same_moment_one_does_it(database_url: str, witness: Witness) -> None:
    with Workers() as workers:
        script = _script(witness, Kill(IN_BODY, "put"))
        victim = workers.start(Start(database_url, script, session_id="s", message="go"))
        assert victim.dies() == -signal.SIGKILL
    async with _rescuer(database_url) as runtime:
        stranded = await poll_until_async(lambda: _lost(runtime))
        assert [each.cause for each in stranded] == [StrandedCause.DEAD_EXECUTOR]
        results = await asyncio.gather(*(rescue(runtime, stranded[0]) for _ in range(8)))
        assert sorted(results) == [False] * 7 + [True]
        assert not await rescue(runtime, stranded[0]), "it has moved since it was seen"
    with connect(database_url) as rows:
        stretches = rows.execute("SELECT workflow_uuid FROM dbos.workflow_status ORDER BY 1").fetchall()
    assert [row["workflow_uuid"][-2:] for row in stretches] == [":1", ":2"]
    with Workers() as workers:
        workers.start(Start(database_url, _script(witness)))
        run = wait_for_end(database_url, "s")
        assert (run["status"], run["stretch_no"]) == ("completed", 2)
        Truth(database_url, "s", witness).holds()


async def _lost(runtime: Runtime) -> list[StrandedRun]:
    async with runtime.database.read() as tx:
        return list(await find_lost_runs(tx, "dbos", 10))


class _SqlEngine:
    """The half of the engine that is SQL: it enqueues, and runs nothing."""

    def __init__(self) -> None:
        self.address = QueueAddress("dbos", turn_queue("helix"), app_version("helix"), "helix")

    async def enqueue(self, tx: Transaction, *, delay_seconds: float = 0.0, **what: Any) -> None:
        await enqueue_turn(tx, self.address, delay_seconds=delay_seconds, **what)

    async def cancel(self, workflow_ids: list[str]) -> None:
        """Housekeeping; not needed for the truth."""


@asynccontextmanager
async def _rescuer(database_url: str) -> AsyncIterator[Runtime]:
    database = Database(database_url, "helix", pool_size=8)
    await database.open()
    threads = ThreadPoolExecutor(1)
    try:
        yield Runtime(
            database=database,
            engine=cast("Engine", _SqlEngine()),
            agents=AgentRegistry([]),
            settings=Settings(),
            executor_id="none",
            queue=turn_queue("helix"),
            process_dependencies=ProcessDependencies(),
            model_for=lambda _agent: pytest.fail("nobody asks a model"),
            threads=threads,
            reach=unreached,
            ended=lambda _run_id: None,
        )
    finally:
        threads.shutdown()
        await database.close()


def test_a_process_started_anew_alone_rescues_its_own_run(database_url: str, witness: Witness) -> None:
    with Workers() as workers:
        script = _script(witness, Kill(IN_BODY, "charge"))
        victim = workers.start(Start(database_url, script, session_id="s", message="go"))
        assert victim.dies() == -signal.SIGKILL
        workers.start(Start(database_url, _script(witness)))
        run = wait_for_end(database_url, "s")
        assert (run["status"], run["stretch_no"]) == ("completed", 2)
        Truth(database_url, "s", witness).holds()
        with connect(database_url) as rows:
            newest = rows.execute("SELECT * FROM executors ORDER BY started_at DESC LIMIT 1").fetchone()
    assert newest is not None
    assert newest["executor_id"] == run["executor_id"]
    waited = (run["queued_at"] - newest["started_at"]).total_seconds()
    assert SETTLED_SECONDS - 0.5 <= waited < SETTLED_SECONDS + 5, "not before its lock is settled"


@pytest.mark.parametrize("status", ["ENQUEUED", "PENDING"])
def test_engine_rows_left_over_are_cancelled(
    status: str, shared_database_url: str, shared_witness: Witness, worker: Worker
) -> None:
    """Of a run that has ended; for a version or an executor that is no more."""
    session_id, run_id = _execute(worker)
    wait_for_end(shared_database_url, session_id)
    poll_until(lambda: _engine_row(shared_database_url, run_id)["status"] == "SUCCESS")
    forge = (
        "UPDATE dbos.workflow_status SET status = %s, queue_name = %s, executor_id = 'gone',"
        " application_version = 'gone', completed_at = NULL WHERE workflow_uuid = %s"
    )
    assert _set(shared_database_url, forge, status, turn_queue("helix"), f"helix.turn:{run_id}:1") == 1
    age = (
        "UPDATE runs SET queued_at = queued_at - interval '1 hour', ended_at = ended_at - interval '1 hour'"
        " WHERE run_id = %s"
    )
    _set(shared_database_url, age, run_id)
    poll_until(lambda: _engine_row(shared_database_url, run_id)["status"] == "CANCELLED")
    Truth(shared_database_url, session_id, shared_witness).holds()


def test_an_api_process_accepts_and_waits_while_a_worker_carries(
    shared_database_url: str, shared_witness: Witness, worker: Worker
) -> None:
    with Workers() as workers:
        api = workers.start(Start(shared_database_url, _script(shared_witness), role="api"))
        session_id, run_id = _execute(api, "long")
        waiting = api.order("result", run_id=run_id)
        poll_until(lambda: shared_witness.events("start", session_id=session_id))
        assert api.reply(waiting) == {"status": "completed", "output": "done"}
        assert worker.ask("result", run_id=run_id)["status"] == "completed"
    pids = {event.pid for event in shared_witness.events(None, session_id=session_id)}
    assert pids == {worker.pid}
    assert _run_row(shared_database_url, run_id)["stretch_no"] == 1
    Truth(shared_database_url, session_id, shared_witness).holds()


def test_a_process_that_only_accepts_serves_no_version(database_url: str, witness: Witness) -> None:
    """An older deployment's turn moves to the new one's worker, though the old one still accepts."""
    with Workers() as workers:
        old = workers.start(Start(database_url, _script(witness), role="api", store_format=0))
        session_id, run_id = _execute(old)
        assert _engine_row(database_url, run_id)["application_version"] != app_version("helix")
        workers.start(Start(database_url, _script(witness)))
        run = wait_for_end(database_url, session_id)
        assert (run["status"], run["stretch_no"], run["rescues"]) == ("completed", 2, 0)
        assert old.pid in live_pids(database_url)
        Truth(database_url, session_id, witness).holds()


def test_who_counts_as_alive(database_url: str, witness: Witness) -> None:
    start = Start(database_url, _script(witness))
    with Workers() as workers:
        killed, stopped, stays = [workers.start(start) for _ in range(3)]
        api = workers.start(Start(database_url, _script(witness), role="api"))
        everyone = {killed.pid, stopped.pid, stays.pid, api.pid}
        poll_until(lambda: live_pids(database_url) == everyone)
        assert os.getpid() not in everyone
        killed.send(signal.SIGKILL)
        assert killed.dies() == -signal.SIGKILL
        poll_until(lambda: live_pids(database_url) == everyone - {killed.pid})
        stopped.send(signal.SIGTERM)
        assert stopped.dies() == 0
        assert live_pids(database_url) == {stays.pid, api.pid}


def test_a_direct_start_waits_for_no_queue(
    shared_database_url: str, shared_witness: Witness, worker: Worker
) -> None:
    latencies: list[float] = []
    for _ in range(30):
        session_id, run_id = _execute(worker, "brief")
        wait_for_end(shared_database_url, session_id)
        run = _run_row(shared_database_url, run_id)
        latencies.append((run["started_at"] - run["created_at"]).total_seconds())
        row = _engine_row(shared_database_url, run_id)
        assert row["queue_name"] is None, "no queue was polled"
    print(f"accept to attach: p50 {1000 * statistics.median(latencies):.1f} ms, max {max(latencies):.3f} s")
