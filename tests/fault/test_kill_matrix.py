"""SIGKILL at every fault point of a turn, for every kind of call; the truth must survive.

The matrix is parametrised over the enum itself: a point that no route reaches fails the test.
"""

from __future__ import annotations

import signal
import uuid

import pytest

from helix_dbos.faults import FaultPoint
from tests.fault.processes import Start, Workers
from tests.fault.truth import Truth, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import MIXED, Kill, Script

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
    session_id = f"s-{uuid.uuid4().hex}"
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
