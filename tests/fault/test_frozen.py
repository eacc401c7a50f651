"""A process frozen in the middle of a turn, given up, and thawed when others have finished it.

The fence decides: what the thawed process still wants to write is refused, and it works on.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import make_url

from helix_dbos.faults import FaultPoint
from tests.fault.backends import cut_all, cut_locks, is_frozen, live_pids, own_login
from tests.fault.processes import Start, Worker, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import IN_BODY, MIXED, Kill, Script
from tests.support.waiting import poll_until

SLOW_BODY = ((("put", {"n": 1, "seconds": 1.0}), ("charge", {"n": 2})),)
UNSAFE = ("charge", "chained")


def _freeze(point: str, about: str | None = None, nth: int = 1) -> Kill:
    return Kill(point, about, nth, signal=signal.SIGSTOP)


CELLS = [
    *[_freeze(IN_BODY, about=kind) for kind in ("charge", "grouped", "chained")],
    _freeze(FaultPoint.BEFORE_BODY, about="charge"),
    _freeze(FaultPoint.BEFORE_ANSWER_COMMIT, about="put"),
    _freeze(FaultPoint.BEFORE_SAVE_COMMIT, nth=2),
    *[_freeze(point, nth=2) for point in (FaultPoint.BEFORE_MODEL_REQUEST, FaultPoint.AFTER_MODEL_REQUEST)],
    _freeze(FaultPoint.AFTER_ACCEPT),
    _freeze(FaultPoint.BEFORE_ATTACH_COMMIT),
    _freeze(FaultPoint.BEFORE_END_COMMIT),
]
_UNSAVED = (
    FaultPoint.BEFORE_MODEL_REQUEST,
    FaultPoint.AFTER_MODEL_REQUEST,
    FaultPoint.BEFORE_SAVE_COMMIT,
)


def _name(kill: Kill) -> str:
    return f"{kill.point}-{kill.about or kill.nth}"


@dataclass(frozen=True)
class Victim:
    """A worker that freezes when told to, and whose connections can be told from others'."""

    worker: Worker
    database_url: str
    own_url: str

    def freezes(self, kill: Kill, session_id: str) -> int:
        """Start a turn there and wait until it stands still; the number of the order to start it."""
        self.worker.ask("arm", kill=kill)
        order = self.worker.order("execute", agent="desk", message="go", session_id=session_id)
        poll_until(lambda: is_frozen(self.worker.pid))
        return order

    def thaws(self) -> None:
        """Let it go on, and wait until it counts as alive again and carries nothing any more."""
        self.worker.send(signal.SIGCONT)
        poll_until(lambda: self.worker.pid in live_pids(self.database_url))
        poll_until(lambda: self.worker.ask("carrying") == [])


@pytest.fixture(scope="module")
def victim(shared_database_url: str, shared_witness: Witness) -> Iterator[Victim]:
    """One process that is frozen and thawed again and again."""
    with own_login(shared_database_url) as own_url, Workers() as workers:
        script = Script(shared_witness.path, MIXED, body_seconds=0.02)
        worker = workers.start(Start(own_url, script, also=(_slow(shared_witness),)))
        yield Victim(worker, shared_database_url, own_url)


@pytest.fixture(scope="module")
def rescuer(shared_database_url: str, shared_witness: Witness) -> Iterator[None]:
    """A healthy worker that is up all the time; it takes its time over the slow agent."""
    with Workers() as workers:
        also = (_slow(shared_witness, model_seconds=1.0),)
        workers.start(Start(shared_database_url, Script(shared_witness.path, MIXED), also=also))
        yield


def _slow(witness: Witness, *, model_seconds: float = 0.0) -> Script:
    return Script(witness.path, SLOW_BODY, agent="slow", model_seconds=model_seconds)


@pytest.mark.parametrize("kill", CELLS, ids=_name)
@pytest.mark.usefixtures("rescuer")
def test_a_thawed_process_writes_nothing_and_works_on(
    kill: Kill, victim: Victim, shared_database_url: str, shared_witness: Witness
) -> None:
    session_id, pid = _new_session(), victim.worker.pid
    order = victim.freezes(kill, session_id)
    assert pid in live_pids(shared_database_url), "frozen is not dead: its connections live"

    assert cut_all(victim.own_url, shared_database_url) >= 2
    _grow_old(shared_database_url, session_id)
    run = wait_for_end(shared_database_url, session_id)
    assert (run["status"], run["stretch_no"]) == ("completed", 2)
    ended = _rows_of(shared_database_url, session_id)

    victim.thaws()
    assert victim.worker.reply(order) == run["run_id"], "the accepted turn is the one that was carried"
    _carries_a_turn(victim, shared_witness)
    assert _rows_of(shared_database_url, session_id) == ended

    assert shared_witness.events("loop_error") == []
    truth = Truth(shared_database_url, session_id, shared_witness)
    truth.holds(asked_again=_asked_again(kill))
    assert len([row for row in ended["checkpoints"] if row["kind"] == "end"]) == 1
    _doubt_is_said_aloud(truth, kill)


def _grow_old(database_url: str, session_id: str) -> None:
    """Most of the time that a run without an engine row is given."""
    with connect(database_url) as rows:
        rows.execute(
            "UPDATE runs SET queued_at = queued_at - interval '4.5 s' WHERE session_id = %s", (session_id,)
        )


def _asked_again(kill: Kill) -> frozenset[int]:
    if kill.point in _UNSAVED:
        return frozenset({kill.nth - 1})
    return frozenset({2}) if kill.point == FaultPoint.BEFORE_END_COMMIT else frozenset()


def _doubt_is_said_aloud(truth: Truth, kill: Kill) -> None:
    """An unsafe call that was frozen with is in doubt; a safe one was run again."""
    if kill.about is None:
        return
    mine = [call for call in truth.calls() if call["tool_name"] == kill.about and call["step_index"] == 0]
    if kill.about in UNSAFE:
        assert {call["reason"] for call in mine} == {"outcome_unknown"}
    else:
        assert {call["outcome"] for call in mine} == {"returned"}
        assert mine[0]["bodies"] == 2


def _carries_a_turn(victim: Victim, witness: Witness) -> None:
    victim.worker.ask("arm", kill=None)
    session_id = _new_session()
    victim.worker.ask("execute", agent="desk", message="go", session_id=session_id)
    run = wait_for_end(victim.database_url, session_id)
    assert (run["status"], run["stretch_no"]) == ("completed", 1)
    assert {event.pid for event in witness.events("start", session_id=session_id)} == {victim.worker.pid}


@pytest.mark.usefixtures("rescuer")
def test_an_open_transaction_of_the_frozen_holds_up_its_own_session_only(
    victim: Victim, shared_database_url: str, shared_witness: Witness
) -> None:
    """Frozen between lock and commit, with only its life sign gone: the row lock outlives it."""
    frozen_session, killed_session = _new_session(), _new_session()
    victim.freezes(_freeze(FaultPoint.BEFORE_ATTACH_COMMIT), frozen_session)
    cut_locks(shared_database_url, victim.worker.pid)
    poll_until(lambda: victim.worker.pid not in live_pids(shared_database_url))
    assert _open_transactions(victim) == 1

    with Workers() as workers:
        script = Script(shared_witness.path, MIXED, kill=Kill(IN_BODY, about="put"))
        start = Start(shared_database_url, script, session_id=killed_session, message="go")
        assert workers.start(start).dies() == -signal.SIGKILL
        assert wait_for_end(shared_database_url, killed_session)["stretch_no"] == 2
    with connect(shared_database_url) as rows:
        held = rows.execute("SELECT * FROM runs WHERE session_id = %s", (frozen_session,)).fetchone()
    assert held is not None
    assert (held["status"], held["stretch_no"]) == ("queued", 1), "nobody can pass the row lock"

    cut_all(victim.own_url, shared_database_url)
    run = wait_for_end(shared_database_url, frozen_session)
    assert (run["status"], run["stretch_no"]) == ("completed", 2)
    ended = _rows_of(shared_database_url, frozen_session)
    victim.thaws()
    assert _rows_of(shared_database_url, frozen_session) == ended
    for session_id in (frozen_session, killed_session):
        Truth(shared_database_url, session_id, shared_witness).holds()


@pytest.mark.parametrize(
    ("kill", "again"),
    [
        (_freeze(FaultPoint.AFTER_MODEL_REQUEST), "ask"),
        (_freeze(FaultPoint.BEFORE_ANSWER_COMMIT, about="put"), "start"),
    ],
    ids=["asking", "in a body"],
)
@pytest.mark.usefixtures("rescuer")
def test_a_process_thawed_while_its_rescuer_does_the_same_is_refused(
    kill: Kill, again: str, victim: Victim, shared_database_url: str, shared_witness: Witness
) -> None:
    """The stale one comes first with its reply or its answer; what counts is the rescuer's."""
    session_id = _new_session()
    victim.worker.ask("arm", kill=kill)
    victim.worker.order("execute", agent="slow", message="go", session_id=session_id)
    poll_until(lambda: is_frozen(victim.worker.pid))
    cut_all(victim.own_url, shared_database_url)
    facts = {"session_id": session_id, **({"tool": "put"} if again == "start" else {})}
    poll_until(lambda: len(shared_witness.events(again, **facts)) == 2)
    victim.thaws()
    run = wait_for_end(shared_database_url, session_id)
    assert (run["status"], run["stretch_no"]) == ("completed", 2)
    asked_again = frozenset({0}) if again == "ask" else frozenset[int]()
    Truth(shared_database_url, session_id, shared_witness).holds(asked_again=asked_again)


def _open_transactions(victim: Victim) -> int:
    with connect(victim.database_url) as rows:
        return rows.execute(
            "SELECT 1 FROM pg_stat_activity WHERE xact_start IS NOT NULL AND wait_event = 'ClientRead'"
            " AND usename = %s AND application_name = 'helix-dbos'",
            (make_url(victim.own_url).username,),
        ).rowcount


def _new_session() -> str:
    return f"s-{uuid.uuid4().hex}"  # noqa: TID251 - a name of the test's


def _rows_of(database_url: str, session_id: str) -> dict[str, list[dict[str, Any]]]:
    """Everything the store holds about a session."""
    by_session = ("sessions", "session_state", "runs", "messages", "calls", "checkpoints")
    with connect(database_url) as rows:
        found = {
            table: rows.execute(
                f"SELECT * FROM {table} t WHERE session_id = %s ORDER BY t::text", (session_id,)
            ).fetchall()
            for table in by_session
        }
        found["answers"] = rows.execute(
            "SELECT a.* FROM answers a JOIN calls c USING (dispatch_id) WHERE c.session_id = %s"
            " ORDER BY dispatch_id, n",
            (session_id,),
        ).fetchall()
    return found
