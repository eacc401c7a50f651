"""SIGTERM: what was begun is finished within the grace, the rest is handed over or rescued."""

from __future__ import annotations

import signal
import time
import uuid

import pytest

from tests.fault.backends import live_pids
from tests.fault.processes import Start, Worker, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import MIXED, Script
from tests.support.waiting import poll_until

LONG = ((("charge", {"n": 1, "seconds": 0.8}), ("put", {"n": 2, "seconds": 0.5})), (("put", {"n": 3}),))
TOO_LONG = ((("charge", {"n": 1, "seconds": 60}), ("put", {"n": 2, "seconds": 2.2}), ("put", {"n": 3})),)
ROUNDS, TURNS_A_ROUND = 4, 3


def _script(witness: Witness, **more: float) -> Script:
    return Script(witness.path, MIXED, turns={"long": LONG, "too long": TOO_LONG}, **more)  # type: ignore[arg-type]


def _execute(worker: Worker, message: str = "go") -> tuple[str, str]:
    session_id = f"s-{uuid.uuid4().hex}"  # noqa: TID251 - a name of the test's
    return session_id, worker.ask("execute", agent="desk", message=message, session_id=session_id)


def _terminate(worker: Worker, *, within: float) -> float:
    """Send SIGTERM and wait for an orderly end; how long that took."""
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.dies(within) == 0
    return time.monotonic() - began


@pytest.mark.parametrize("successor", ["before", "after"])
def test_bodies_end_within_the_grace_and_the_run_is_handed_over(
    successor: str, database_url: str, witness: Witness
) -> None:
    start = Start(database_url, _script(witness))
    with Workers() as workers:
        draining = workers.start(start)
        session_id, run_id = _execute(draining, "long")
        if successor == "before":
            workers.start(start)
            poll_until(lambda: len(live_pids(database_url)) == 2)
        poll_until(lambda: len(witness.events("start", session_id=session_id)) == 2)
        _terminate(draining, within=10)
        assert draining.pid not in live_pids(database_url)
        if successor == "after":
            workers.start(start)
        run = wait_for_end(database_url, session_id)
        truth = Truth(database_url, session_id, witness)
        truth.holds()
    assert (run["status"], run["stretch_no"], run["rescues"]) == ("completed", 2, 0)
    assert [event.run_id for event in witness.events("handover")] == [run_id]
    assert witness.events("rescue") == []
    assert [call["reason"] for call in truth.calls()] == [None] * 3
    carried = [event.pid == draining.pid for event in witness.events("end", session_id=session_id)]
    assert carried == [True, True, False], "what had begun ended where it began"


def test_a_body_longer_than_the_grace_is_left_to_rescue(database_url: str, witness: Witness) -> None:
    with Workers() as workers:
        draining = workers.start(Start(database_url, _script(witness), settings={"drain_seconds": 1}))
        session_id, _ = _execute(draining, "too long")
        poll_until(lambda: len(witness.events("end", session_id=session_id)) == 1)
        assert _terminate(draining, within=10) < 6
        workers.start(Start(database_url, _script(witness)))
        run = wait_for_end(database_url, session_id)
        assert (run["status"], run["stretch_no"]) == ("completed", 2)
        truth = Truth(database_url, session_id, witness)
        truth.holds()
    calls = truth.numbered()
    assert calls[1]["reason"] == "outcome_unknown"
    assert [calls[n]["bodies"] for n in (1, 2, 3)] == [1, 2, 1]
    assert witness.events("handover") == []


def test_an_idle_process_ends_at_once(database_url: str, witness: Witness) -> None:
    with Workers() as workers:
        for role in ("worker", "api"):
            idle = workers.start(Start(database_url, _script(witness), role=role))  # type: ignore[arg-type]
            idle.ask("carrying")
            took = _terminate(idle, within=10)
            print(f"an idle {role} ended in {took:.2f} s")
            assert took < 5


def test_a_model_request_is_waited_for_and_saved(database_url: str, witness: Witness) -> None:
    with Workers() as workers:
        draining = workers.start(Start(database_url, _script(witness, model_seconds=0.7)))
        session_id, _ = _execute(draining)
        poll_until(lambda: witness.events("ask", session_id=session_id))
        _terminate(draining, within=10)
        workers.start(Start(database_url, _script(witness)))
        run = wait_for_end(database_url, session_id)
        truth = Truth(database_url, session_id, witness)
        truth.holds()
    assert (run["status"], run["stretch_no"], run["rescues"]) == ("completed", 2, 0)
    assert {call["reason"] for call in truth.calls()} == {None, "tool_error"}
    assert set(witness.asks(session_id).values()) == {1}


def test_nothing_new_is_taken_while_draining(database_url: str, witness: Witness) -> None:
    with Workers() as workers:
        draining = workers.start(Start(database_url, _script(witness)))
        api = workers.start(Start(database_url, _script(witness), role="api"))
        api.ask("carrying")
        old, _ = _execute(draining, "long")
        poll_until(lambda: witness.events("start", session_id=old))
        draining.send(signal.SIGTERM)
        poll_until(lambda: draining.ask("draining"))
        new = [_execute(each)[0] for each in (api, api, api, draining, draining)]
        assert draining.dies(10) == 0
        with connect(database_url) as rows:
            stretches = rows.execute("SELECT session_id, status, stretch_no FROM runs").fetchall()
        workers.start(Start(database_url, _script(witness)))
        for session_id in (old, *new):
            assert wait_for_end(database_url, session_id)["status"] == "completed"
            Truth(database_url, session_id, witness).holds()
        assert all(
            (row["status"], row["stretch_no"]) == ("queued", 1)
            for row in stretches
            if row["session_id"] in new
        )
        for session_id in new:
            assert draining.pid not in {each.pid for each in witness.events(None, session_id=session_id)}
    assert witness.events("rescue") == []


def test_a_rolling_restart_costs_no_run_anything(database_url: str, witness: Witness) -> None:
    start = Start(database_url, _script(witness, body_seconds=0.1))
    with Workers() as workers:
        api = workers.start(Start(database_url, _script(witness), role="api"))
        standing = [workers.start(start) for _ in range(2)]
        poll_until(lambda: len(live_pids(database_url)) == 3)
        sessions: list[str] = []
        for _ in range(ROUNDS):
            workers_now = [api, *standing]
            sessions += [_execute(workers_now[n % 3])[0] for n in range(TURNS_A_ROUND)]
            standing.append(workers.start(start))
            leaving = standing.pop(0)
            leaving.send(signal.SIGTERM)
            sessions += [_execute(api)[0] for _ in range(TURNS_A_ROUND)]
            assert leaving.dies(15) == 0
        runs = [wait_for_end(database_url, session_id) for session_id in sessions]
        for session_id in sessions:
            truth = Truth(database_url, session_id, witness)
            truth.holds()
            assert {call["reason"] for call in truth.calls()} == {None, "tool_error"}
            assert set(witness.bodies(session_id).values()) == {1}
    assert {(run["status"], run["rescues"]) for run in runs} == {("completed", 0)}
    handovers, rescues = len(witness.events("handover")), len(witness.events("rescue"))
    print(f"{len(runs)} turns, {handovers} hand-overs, {rescues} rescues of runs not yet attached")
