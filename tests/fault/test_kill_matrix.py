"""SIGKILL at every fault point of a turn, for every kind of call; the truth must survive.

The matrix is parametrised over the enum itself: a point that no route reaches fails the test.
"""

from __future__ import annotations

import signal

import pytest

from helix_dbos.faults import FaultPoint
from helix_dbos.ids import new_session_id
from tests.fault.processes import Start, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import MIXED, Kill, Script
from tests.support.waiting import poll_until

KINDS = ("charge", "put", "fail", "grouped", "chained")

PER_CALL = (
    FaultPoint.BEFORE_BODY,
    FaultPoint.AFTER_BODY,
    FaultPoint.BEFORE_ANSWER_COMMIT,
    FaultPoint.AFTER_ANSWER,
)
PER_STEP = (
    FaultPoint.BEFORE_MODEL_REQUEST,
    FaultPoint.AFTER_MODEL_REQUEST,
    FaultPoint.BEFORE_SAVE_COMMIT,
    FaultPoint.AFTER_SAVE,
)
ONCE = (
    FaultPoint.AFTER_ACCEPT,
    FaultPoint.BEFORE_ATTACH,
    FaultPoint.BEFORE_ATTACH_COMMIT,
    FaultPoint.AFTER_ATTACH,
    FaultPoint.BEFORE_END_COMMIT,
    FaultPoint.AFTER_END,
)

CELLS = [
    *[Kill(point, about=kind) for point in PER_CALL for kind in KINDS],
    *[Kill(point, nth=step + 1) for point in PER_STEP for step in (0, 1)],
    *[Kill(point) for point in ONCE],
]

# Points of the process that takes over, or of one that is told to stop.
SECOND = (
    FaultPoint.BEFORE_RESCUE_COMMIT,
    FaultPoint.AFTER_RESCUE,
    FaultPoint.BEFORE_RECOVERY_COMMIT,
    FaultPoint.AFTER_RECOVERY,
)
DRAINING = (FaultPoint.BEFORE_HANDOVER_COMMIT, FaultPoint.AFTER_HANDOVER)
UNACCEPTED = (FaultPoint.BEFORE_ACCEPT_COMMIT,)
QUEUED = (FaultPoint.AFTER_ACCEPT, FaultPoint.BEFORE_ATTACH, FaultPoint.BEFORE_ATTACH_COMMIT)

# A reply that was not saved is asked for again; the step it was for depends on the cell.
_UNSAVED = {
    FaultPoint.AFTER_MODEL_REQUEST,
    FaultPoint.BEFORE_SAVE_COMMIT,
}


def _name(kill: Kill) -> str:
    return f"{kill.point.value}-{kill.about or kill.nth}"


@pytest.mark.parametrize("kill", CELLS, ids=_name)
@pytest.mark.usefixtures("standing_rescuer")
def test_truth_survives_a_kill(kill: Kill, shared_database_url: str, shared_witness: Witness) -> None:
    session_id = new_session_id()
    script = Script(shared_witness.path, MIXED, kill=kill, body_seconds=0.02)
    with Workers() as workers:
        victim = workers.start(Start(shared_database_url, script, session_id=session_id, message="go"))
        assert victim.dies() == -signal.SIGKILL
        assert [event.pid for event in shared_witness.events("signal")].count(victim.pid) == 1
        run = wait_for_end(shared_database_url, session_id)
    assert run["status"] == "completed", run
    Truth(shared_database_url, session_id, shared_witness).holds(asked_again=_steps_asked_again(kill))


def _steps_asked_again(kill: Kill) -> frozenset[int]:
    if kill.point in _UNSAVED:
        return frozenset({kill.nth - 1})
    return frozenset({2}) if kill.point is FaultPoint.BEFORE_END_COMMIT else frozenset()


def test_every_fault_point_has_a_test() -> None:
    covered = {kill.point for kill in CELLS} | {*SECOND, *DRAINING, *UNACCEPTED}
    assert covered == set(FaultPoint)


@pytest.mark.parametrize("point", SECOND)
def test_truth_survives_the_death_of_the_rescuer_too(
    point: FaultPoint, database_url: str, witness: Witness
) -> None:
    first = Kill(FaultPoint.AFTER_BODY, about="put")
    with Workers() as workers:
        for kill, message in ((first, "go"), (Kill(point), None)):
            script = Script(witness.path, MIXED, kill=kill, body_seconds=0.02)
            start = Start(database_url, script, session_id="s", message=message)
            assert workers.start(start).dies() == -signal.SIGKILL
        workers.start(Start(database_url, Script(witness.path, MIXED)))
        run = wait_for_end(database_url, "s")
        assert run["status"] == "completed", run
        Truth(database_url, "s", witness).holds()


@pytest.mark.parametrize("point", DRAINING)
@pytest.mark.usefixtures("standing_rescuer")
def test_truth_survives_a_kill_while_draining(
    point: FaultPoint, shared_database_url: str, shared_witness: Witness
) -> None:
    session_id = new_session_id()
    script = Script(shared_witness.path, MIXED, kill=Kill(point), body_seconds=0.3)
    with Workers() as workers:
        victim = workers.start(Start(shared_database_url, script, session_id=session_id, message="go"))
        poll_until(lambda: shared_witness.events("start", session_id=session_id))
        victim.send(signal.SIGTERM)
        assert victim.dies() == -signal.SIGKILL
        run = wait_for_end(shared_database_url, session_id)
    assert run["status"] == "completed", run
    truth = Truth(shared_database_url, session_id, shared_witness)
    truth.holds()
    assert {call["reason"] for call in truth.calls()} <= {None, "tool_error"}, "the bodies had their grace"


@pytest.mark.parametrize("point", UNACCEPTED)
def test_a_turn_that_was_not_accepted_leaves_nothing(
    point: FaultPoint, database_url: str, witness: Witness
) -> None:
    with Workers() as workers:
        script = Script(witness.path, MIXED, kill=Kill(point))
        start = Start(database_url, script, session_id="s", message="go")
        assert workers.start(start).dies() == -signal.SIGKILL
        with connect(database_url) as rows:
            assert rows.execute("SELECT 1 FROM sessions").fetchall() == []
        workers.start(Start(database_url, Script(witness.path, MIXED), session_id="s", message="go"))
        assert wait_for_end(database_url, "s")["status"] == "completed"
        Truth(database_url, "s", witness).holds()


@pytest.mark.parametrize("point", QUEUED)
def test_truth_survives_a_kill_of_the_queue_s_worker(
    point: FaultPoint, database_url: str, witness: Witness
) -> None:
    """The trap that once lost 4 of 100 runs: dead between the engine's claim and our attach."""
    settings = {"direct_start": False}
    with Workers() as workers:
        script = Script(witness.path, MIXED, kill=Kill(point))
        start = Start(database_url, script, session_id="s", message="go", settings=settings)
        assert workers.start(start).dies() == -signal.SIGKILL
        workers.start(Start(database_url, Script(witness.path, MIXED), settings=settings))
        run = wait_for_end(database_url, "s")
        assert run["status"] == "completed", run
        assert run["rescues"] == 0
        Truth(database_url, "s", witness).holds()
