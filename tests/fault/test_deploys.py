"""A deploy between the crash and the recovery makes recovery more careful, and strands nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.fault.processes import Start, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import Script
from tests.support.waiting import poll_until

FOR_EVER = 30.0

STEPS = (
    (
        ("put", {"n": 1}),
        ("charge", {"n": 2}),
        ("safely_chained", {"n": 3}),
        ("safely_chained", {"n": 4}),
        ("risky_in_a", {"n": 5}),
        ("in_a", {"n": 6}),
        ("in_b", {"n": 7}),
        ("risky_in_b", {"n": 8}),
    ),
)
STARTED_AT_ONCE = {1, 2, 3, 5, 7}

UNCHANGED = {
    1: (None, 2),
    2: ("outcome_unknown", 1),
    3: (None, 2),
    4: (None, 1),
    5: ("outcome_unknown", 1),
    6: ("outcome_unknown", 0),
    7: (None, 2),
    8: (None, 1),
}
"""What recovery makes of each call in the world it was saved in: its reason and its bodies."""

WORLDS: dict[str, tuple[dict[str, Any], dict[int, tuple[str | None, int]]]] = {
    "unchanged": ({}, {}),
    "removed": (
        {"without": ("put", "safely_chained", "risky_in_b")},
        {n: ("outcome_unknown", bodies) for n, bodies in ((1, 1), (3, 1), (4, 0), (8, 0))},
    ),
    "stricter": ({"strict": True}, {1: ("outcome_unknown", 1)}),
    "turned_unsafe": (
        {"changed": ("put", "safely_chained", "in_b")},
        {n: ("outcome_unknown", bodies) for n, bodies in ((1, 1), (3, 1), (4, 0), (7, 1), (8, 0))},
    ),
    "turned_safe": ({"eased": ("charge", "risky_in_a", "risky_in_b")}, {}),
}
"""Each deploy's world, and where recovery ends differently in it."""


def _agent(world: str) -> str:
    return f"desk-{world}"


@pytest.fixture(scope="module")
def deployed(shared_database_url: str, shared_witness: Witness) -> Iterator[None]:
    """The next deployment: one process, in which the agent of each world has changed in its way."""
    scripts = [
        Script(shared_witness.path, STEPS, agent=_agent(world), **changes)
        for world, (changes, _) in WORLDS.items()
    ]
    with Workers() as workers:
        workers.start(Start(shared_database_url, scripts[0], also=tuple(scripts[1:])))
        yield


@pytest.fixture
def workers() -> Iterator[Workers]:
    """All processes of a test; some live on until its last assertion, as engine rows need them."""
    with Workers() as started:
        yield started


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.usefixtures("deployed")
def test_recovery_in_the_next_deployment(
    world: str, shared_database_url: str, shared_witness: Witness, workers: Workers
) -> None:
    witness = shared_witness
    before = Script(witness.path, STEPS, agent=_agent(world), body_seconds=FOR_EVER)
    victim = workers.start(Start(shared_database_url, before, session_id=world, message="go"))
    poll_until(lambda: {event.n for event in witness.events("start", session_id=world)} == STARTED_AT_ONCE)
    victim.end()
    assert wait_for_end(shared_database_url, world)["status"] == "completed"
    truth = Truth(shared_database_url, world, witness)
    truth.holds()
    bodies, calls = witness.bodies(world), truth.numbered()
    ends = {n: (call["reason"], bodies[call["dispatch_id"]]) for n, call in calls.items()}
    assert ends == UNCHANGED | WORLDS[world][1]
    (ask,) = witness.events("ask", session_id=world, step=1)
    told = dict(zip(ask.answered, ask.texts, strict=True))
    for n, (reason, _) in ends.items():
        expected = f"{calls[n]['tool_name']} {n}" if reason is None else "the tool may have run"
        assert expected in told[calls[n]["tool_call_id"]]


OLD_FORMAT, OLD_VERSION, VERSION = 0, "helix-dbos/0@helix", "helix-dbos/1@helix"
TWO_STEPS = ((("put", {"n": 1}),), (("put", {"n": 2}),))


def _stretches(database_url: str, run_id: str) -> list[dict[str, Any]]:
    with connect(database_url) as rows:
        return rows.execute(
            "SELECT application_version, status, created_at FROM dbos.workflow_status"
            " WHERE split_part(workflow_uuid, ':', 2) = %s"
            " ORDER BY split_part(workflow_uuid, ':', 3)::int",
            (run_id,),
        ).fetchall()


def _versions(database_url: str, run_id: str) -> list[tuple[str, str]]:
    return [(row["application_version"], row["status"]) for row in _stretches(database_url, run_id)]


def test_what_waits_for_a_version_without_a_worker_is_moved(
    database_url: str, witness: Witness, workers: Workers
) -> None:
    """A process that only accepts turns is alive all the time, and serves no version."""
    script = Script(witness.path, TWO_STEPS)
    accepting = Start(database_url, script, role="api", store_format=OLD_FORMAT)
    api = workers.start(accepting)
    run_id = api.ask("execute", agent="desk", message="go", session_id="s")
    assert _versions(database_url, run_id) == [(OLD_VERSION, "ENQUEUED")]
    workers.start(Start(database_url, script))
    run = wait_for_end(database_url, "s")
    assert (run["status"], run["rescues"], run["stretch_no"]) == ("completed", 0, 2)
    Truth(database_url, "s", witness).holds()
    assert _versions(database_url, run_id) == [(OLD_VERSION, "CANCELLED"), (VERSION, "SUCCESS")]
    assert set(witness.bodies("s").values()) == {1}
    assert api.process.is_alive()


def test_what_waits_for_a_version_with_a_worker_is_left_alone(
    database_url: str, witness: Witness, workers: Workers
) -> None:
    """The old worker has one slot, so that turns are queued for it while the new one sweeps."""
    script = Script(witness.path, TWO_STEPS, body_seconds=0.6)
    old = Start(database_url, script, store_format=OLD_FORMAT, settings={"concurrency": 1})
    old_pid = workers.start(old).pid
    workers.start(Start(database_url, script, settings={"concurrency": 1}))
    api = workers.start(replace(old, role="api"))
    poll_until(lambda: len(witness.events("up")) == 3)
    turns = range(4)
    for n in turns:
        api.ask("execute", agent="desk", message="go", session_id=f"s-{n}")
    for n in turns:
        run = wait_for_end(database_url, f"s-{n}")
        assert (run["status"], run["stretch_no"]) == ("completed", 1)
        Truth(database_url, f"s-{n}", witness).holds()
    assert {event.pid for event in witness.events("start")} == {old_pid}


@pytest.mark.parametrize("deploy", [signal.SIGTERM, signal.SIGKILL], ids=["drained", "killed"])
def test_a_deploy_of_another_format_strands_nothing(
    deploy: signal.Signals, database_url: str, witness: Witness, workers: Workers
) -> None:
    slow = Script(witness.path, TWO_STEPS, body_seconds=0.5)
    old = Start(database_url, slow, store_format=OLD_FORMAT)
    workers.start(replace(old, role="api"))
    leaving = workers.start(replace(old, session_id="s", message="go"))
    poll_until(lambda: witness.events("start"))
    leaving.send(deploy)
    drained = deploy is signal.SIGTERM
    assert leaving.dies() == (0 if drained else -signal.SIGKILL)
    new_pid = workers.start(Start(database_url, Script(witness.path, TWO_STEPS))).pid
    run = wait_for_end(database_url, "s")
    assert (run["status"], run["rescues"]) == ("completed", 0)
    truth = Truth(database_url, "s", witness)
    truth.holds()
    versions = [version for version, _ in _versions(database_url, run["run_id"])]
    assert versions == ([OLD_VERSION, OLD_VERSION, VERSION] if drained else [OLD_VERSION, VERSION])
    bodies = {n: witness.bodies("s")[call["dispatch_id"]] for n, call in truth.numbered().items()}
    assert bodies == ({1: 1, 2: 1} if drained else {1: 2, 2: 1})
    assert witness.asks("s") == {0: 1, 1: 1, 2: 1}
    assert {event.pid for event in witness.events("start", n=2)} == {new_pid}


def test_an_old_worker_never_takes_a_new_agent_s_turn(
    database_url: str, witness: Witness, workers: Workers
) -> None:
    old_agent, new_agent = (Script(witness.path, TWO_STEPS, agent=name) for name in ("desk", "new-desk"))
    api = workers.start(Start(database_url, new_agent, role="api", also=(old_agent,)))
    new_run = api.ask("execute", agent="new-desk", message="go", session_id="new")
    old_worker = workers.start(Start(database_url, old_agent))
    waiting = poll_until(lambda: _put_back(database_url, new_run, times=2))
    assert (waiting["status"], waiting["rescues"], waiting["executor_id"]) == ("queued", 0, None)
    assert witness.events("attach") == witness.events("ask") == witness.events("start") == []
    api.ask("execute", agent="desk", message="go", session_id="old")
    assert wait_for_end(database_url, "old")["status"] == "completed"
    new_worker = workers.start(Start(database_url, new_agent))
    poll_until(lambda: any(event.pid == new_worker.pid for event in witness.events("up")))
    old_worker.send(signal.SIGTERM)  # while both are up, it is a matter of luck which takes the stretch
    run = wait_for_end(database_url, "new")
    assert (run["status"], run["rescues"]) == ("completed", 0)
    for session_id, worker in (("old", old_worker), ("new", new_worker)):
        Truth(database_url, session_id, witness).holds()
        assert {event.pid for event in witness.events("ask", session_id=session_id)} == {worker.pid}
        assert set(witness.bodies(session_id).values()) == {1}
    assert len(witness.events("attach", run_id=new_run)) == 1
    put_back = [row["created_at"] for row in _stretches(database_url, new_run)][1:]
    pauses = [later - earlier for earlier, later in pairwise(put_back)]
    assert all(pause >= 1000 for pause in pauses), pauses


def _put_back(database_url: str, run_id: str, *, times: int) -> dict[str, Any] | None:
    with connect(database_url) as rows:
        return rows.execute(
            "SELECT * FROM runs WHERE run_id = %s AND stretch_no > %s", (run_id, times)
        ).fetchone()
