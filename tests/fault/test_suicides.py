"""Turns that kill every process that carries them: each ends by its rules, and stops nobody else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from helix_dbos.faults import FaultPoint
from helix_dbos.workflows.rescue import MAX_RESCUES
from tests.fault.processes import Start, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import Kill, Script
from tests.support.waiting import poll_until

MAY_HAVE_RUN = "the tool may have run"
NOT_AGAIN = "It will not be run again automatically"
AT_ONCE, FOR_EVER, LAST_OF_ALL = 0.01, 30.0, 0.6
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)

SMALL = ((("put", {"n": 1}), ("charge", {"n": 2})),)
MORE_THAN_A_SWEEP = 120

DEADLY_SAFE = (
    (
        ("both", {"n": 1, "seconds": LAST_OF_ALL}),
        ("in_a", {"n": 2}),
        ("safely_chained", {"n": 3}),
        ("put", {"n": 4, "seconds": AT_ONCE}),
        ("charge", {"n": 5, "seconds": AT_ONCE}),
        ("fail", {"n": 6, "seconds": AT_ONCE}),
        ("charge", {"n": 7, "seconds": FOR_EVER}),
        ("solo", {"n": 8, "seconds": FOR_EVER}),
        ("in_b", {"n": 9, "seconds": AT_ONCE}),
        ("in_b", {"n": 10, "seconds": AT_ONCE}),
        ("chained", {"n": 11}),
    ),
    (("put", {"n": 12}),),
)
"""Call 1 is in a group and in the chain, and kills its process once the brief ones are answered."""

DEADLY_UNSAFE = (
    (
        ("risky_in_a", {"n": 1, "seconds": LAST_OF_ALL}),
        ("in_a", {"n": 2}),
        ("chained", {"n": 3, "seconds": FOR_EVER}),
        ("safely_chained", {"n": 4}),
        ("put", {"n": 5, "seconds": AT_ONCE}),
    ),
    (("put", {"n": 6}),),
)


@pytest.fixture
def workers() -> Iterator[Workers]:
    """All processes of a test; some live on until its last assertion, as engine rows need them."""
    with Workers() as started:
        yield started


def _carried_to_its_end(workers: Workers, start: Start, *, size: int = 2, seconds: float = 30) -> None:
    """Start the turn, and dead workers anew, until it has completed."""
    workers.start(start)
    others = replace(start, session_id=None, message=None)
    run = wait_for_end(
        start.database_url, "s", seconds=seconds, meanwhile=lambda: workers.renew(others, size)
    )
    assert run["status"] == "completed", run


def _read_by_the_model(witness: Witness, session_id: str, step: int) -> dict[str, Any]:
    """What the model was told of each call when it was asked for this step."""
    (ask,) = witness.events("ask", session_id=session_id, step=step)
    return dict(zip(ask.answered, ask.texts, strict=True))


def test_a_safe_tool_that_kills_every_process_is_given_up_after_three_bodies(
    database_url: str, witness: Witness, workers: Workers
) -> None:
    script = Script(witness.path, DEADLY_SAFE, suicidal=("both",))
    start = Start(database_url, script, session_id="s", message="go")
    _carried_to_its_end(workers, start)
    assert workers.exit_codes() == [-signal.SIGKILL] * 3
    truth = Truth(database_url, "s", witness)
    truth.holds()
    bodies = [event.pid for event in witness.events("start", tool="both")]
    assert len(bodies) == len(set(bodies)) == 3
    calls = truth.numbered()
    ends = {n: (call["reason"], witness.bodies("s")[call["dispatch_id"]]) for n, call in calls.items()}
    assert ends == {
        1: ("replay_limit_reached", 3),
        2: ("outcome_unknown", 0),
        3: ("outcome_unknown", 0),
        4: (None, 1),
        5: (None, 1),
        6: ("tool_error", 1),
        7: ("outcome_unknown", 1),
        8: ("replay_limit_reached", 3),
        9: (None, 1),
        10: (None, 1),
        11: ("outcome_unknown", 0),
        12: (None, 1),
    }
    told = _read_by_the_model(witness, "s", 1)
    assert all(NOT_AGAIN in told[calls[n]["tool_call_id"]] for n in (1, 8))
    assert all(MAY_HAVE_RUN in told[calls[n]["tool_call_id"]] for n in (2, 3, 7, 11))
    assert told[calls[4]["tool_call_id"]] == "put 4"


def test_an_unsafe_tool_that_kills_its_process_has_one_body(
    database_url: str, witness: Witness, workers: Workers
) -> None:
    script = Script(witness.path, DEADLY_UNSAFE, suicidal=("risky_in_a",))
    start = Start(database_url, script, session_id="s", message="go")
    _carried_to_its_end(workers, start)
    assert workers.exit_codes() == [-signal.SIGKILL]
    truth = Truth(database_url, "s", witness)
    truth.holds()
    calls = truth.numbered()
    ends = {n: (call["reason"], witness.bodies("s")[call["dispatch_id"]]) for n, call in calls.items()}
    assert ends == {
        1: ("outcome_unknown", 1),
        2: ("outcome_unknown", 0),
        3: ("outcome_unknown", 1),
        4: ("outcome_unknown", 0),
        5: (None, 1),
        6: (None, 1),
    }
    told = _read_by_the_model(witness, "s", 1)
    assert all(MAY_HAVE_RUN in told[calls[n]["tool_call_id"]] for n in (1, 2, 3, 4))


def test_a_turn_that_kills_every_process_without_progress_is_given_up(
    database_url: str, witness: Witness, workers: Workers
) -> None:
    first = Script(witness.path, SMALL, kill=Kill(FaultPoint.BEFORE_MODEL_REQUEST, nth=2))
    always = Script(witness.path, SMALL, kill=Kill(FaultPoint.BEFORE_MODEL_REQUEST))
    workers.start(Start(database_url, first, session_id="s", message="go"))
    poll_until(lambda: witness.events("signal"))
    others = Start(database_url, always)
    run = wait_for_end(database_url, "s", seconds=60, meanwhile=lambda: workers.renew(others, 2))
    assert (run["status"], run["error"]["code"]) == ("failed", "rescue_limit_reached")
    attaches, deaths = witness.events("attach", run_id=run["run_id"]), witness.events("signal")
    assert len(attaches) == len(deaths) == run["stretch_no"] == MAX_RESCUES + 1
    assert witness.asks("s") == {0: 1}
    assert all(call["outcome"] == "returned" for call in Truth(database_url, "s", witness).calls())
    taken_up = _stretches_made(database_url, run["run_id"])[1:]
    until = [*taken_up[1:], run["ended_at"].timestamp()]
    gaps = [later - earlier for earlier, later in zip(taken_up, until, strict=True)]
    assert all(gap >= pause - 0.01 for gap, pause in zip(gaps, PAUSES_SECONDS, strict=True)), gaps
    _a_new_turn_completes(workers, Start(database_url, Script(witness.path, SMALL)), witness)


def _stretches_made(database_url: str, run_id: str) -> list[float]:
    """When each stretch of the run was enqueued or started, in order."""
    with connect(database_url) as rows:
        made = rows.execute(
            "SELECT created_at FROM dbos.workflow_status WHERE split_part(workflow_uuid, ':', 2) = %s"
            " ORDER BY split_part(workflow_uuid, ':', 3)::int",
            (run_id,),
        )
        return [row["created_at"] / 1000 for row in made]


def _a_new_turn_completes(workers: Workers, healthy: Start, witness: Witness) -> None:
    workers.end_all()
    worker = workers.start(replace(healthy, session_id="s", message="again"))
    poll_until(lambda: any(event.pid == worker.pid for event in witness.events("accepted")))
    run = wait_for_end(healthy.database_url, "s")
    assert run["status"] == "completed", run
    Truth(healthy.database_url, "s", witness).holds()


def test_giving_up_answers_every_open_call(database_url: str, witness: Witness, workers: Workers) -> None:
    steps = ((("put", {"n": 1}), ("charge", {"n": 2}), ("chained", {"n": 3}), ("chained", {"n": 4})),)
    slow = Script(witness.path, steps, body_seconds=FOR_EVER)
    victim = workers.start(Start(database_url, slow, session_id="s", message="go"))
    poll_until(lambda: len(witness.events("start")) == 3)
    victim.end()
    with connect(database_url) as rows:
        rows.execute("UPDATE runs SET rescues = %s", (MAX_RESCUES,))
    workers.start(Start(database_url, Script(witness.path, steps)))
    run = wait_for_end(database_url, "s")
    assert (run["status"], run["error"]["code"]) == ("failed", "rescue_limit_reached")
    calls = Truth(database_url, "s", witness).numbered()
    assert {call["reason"] for call in calls.values()} == {"outcome_unknown"}
    assert {call["origin"] for call in calls.values()} == {"failure"}
    assert {n: call["bodies"] for n, call in calls.items()} == {1: 1, 2: 1, 3: 1, 4: 0}
    assert len(witness.events("start")) == 3
    _a_new_turn_completes(workers, Start(database_url, Script(witness.path, steps)), witness)
    told = _read_by_the_model(witness, "s", 1)
    assert all(MAY_HAVE_RUN in text for text in told.values())


def test_rescues_are_forgiven_by_progress(database_url: str, witness: Witness, workers: Workers) -> None:
    steps = tuple((("put", {"n": n}),) for n in range(MAX_RESCUES + 2))
    script = Script(witness.path, steps, kill=Kill(FaultPoint.AFTER_SAVE))
    start = Start(database_url, script, session_id="s", message="go")
    _carried_to_its_end(workers, start, size=3, seconds=60)
    assert workers.exit_codes() == [-signal.SIGKILL] * len(steps)
    assert len(witness.events("signal")) == len(steps)
    truth = Truth(database_url, "s", witness)
    truth.holds()
    assert set(witness.bodies("s").values()) == {1}
    assert all(call["outcome"] == "returned" for call in truth.calls())


def _killed_in_a_body(workers: Workers, witness: Witness, database_url: str, session_id: str) -> None:
    script = Script(witness.path, SMALL, kill=Kill(FaultPoint.AFTER_BODY, about="put"), body_seconds=0.1)
    victim = workers.start(Start(database_url, script, session_id=session_id, message="go"))
    assert victim.dies() == -signal.SIGKILL


def test_a_poisoned_run_fails_alone(database_url: str, witness: Witness, workers: Workers) -> None:
    for session_id in ("bad", "good"):
        _killed_in_a_body(workers, witness, database_url, session_id)
    with connect(database_url) as rows:
        rows.execute("UPDATE messages SET content = '{\"from\": \"nobody\"}' WHERE session_id = 'bad'")
    workers.start(Start(database_url, Script(witness.path, SMALL)))
    assert wait_for_end(database_url, "good")["status"] == "completed"
    bad = wait_for_end(database_url, "bad")
    Truth(database_url, "good", witness).holds()
    assert (bad["status"], bad["error"]["code"]) == ("failed", "run_internal_error")
    calls = Truth(database_url, "bad", witness).calls()
    assert {(call["state"], call["reason"]) for call in calls} == {("answered", "outcome_unknown")}
    assert {event.attempt for event in witness.events("start", session_id="bad")} == {1}


def test_runs_that_cannot_be_read_do_not_keep_the_sweeper_from_others(
    database_url: str, witness: Witness, workers: Workers
) -> None:
    _killed_in_a_body(workers, witness, database_url, "good")
    with connect(database_url) as rows:
        rows.execute(
            "INSERT INTO sessions (session_id, agent)"
            " SELECT 'bad-' || n, 'desk' FROM generate_series(1, %s) n",
            (MORE_THAN_A_SWEEP,),
        )
        rows.execute(
            "INSERT INTO runs (run_id, session_id, entry, status, workflow_id, step_index, queue, priority,"
            " usage, queued_at) SELECT session_id, session_id, 'turn', 'queued', session_id, -1, 'q', 1,"
            " '{\"from\": \"nobody\"}', now() - interval '1 minute' FROM sessions WHERE session_id <> 'good'"
        )
    workers.start(Start(database_url, Script(witness.path, SMALL)))
    assert wait_for_end(database_url, "good")["status"] == "completed"
    Truth(database_url, "good", witness).holds()
