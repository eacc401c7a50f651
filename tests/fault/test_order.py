"""The order of bodies inside one step, as the outside witness saw it, with and without a kill."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import pytest

from tests.fault.processes import Start, Worker, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import Script
from tests.support.waiting import poll_until

FOR_EVER = 30.0
PARALLEL, THREADS = 10, 4
SEED = int(os.environ.get("HELIX_TEST_SEED") or random.SystemRandom().randrange(2**32))

Calls = tuple[tuple[str, dict[str, Any]], ...]


def _numbered(*calls: tuple[str, float | None]) -> Calls:
    """Calls by tool and seconds, numbered from 1 in reply order; without seconds as their world says."""
    return tuple(
        (tool, {"n": n} if seconds is None else {"n": n, "seconds": seconds})
        for n, (tool, seconds) in enumerate(calls, 1)
    )


def _random_durations() -> list[float]:
    """Random, but far enough from each other that an answer is seen to precede another body's end."""
    choice = random.Random(SEED)
    durations = [0.4 + 0.08 * place + choice.uniform(0, 0.06) for place in range(PARALLEL)]
    choice.shuffle(durations)
    return durations


TURNS: dict[str, Calls] = {
    "parallel": _numbered(
        *(
            (("put", "charge", "solo")[place % 3], seconds)
            for place, seconds in enumerate(_random_durations())
        )
    ),
    "threads": _numbered(*(("threaded", 0.5) for _ in range(THREADS))),
    "groups": _numbered(*((f"in_{group}", 0.15) for _ in range(3) for group in "abc")),
    "mixed_groups": _numbered(
        *((tool, 0.1) for tool in ("risky_in_a", "in_b", "in_a", "risky_in_b", "risky_in_a", "in_b"))
    ),
    "chain": _numbered(
        *((tool, 0.1) for tool in ("chained", "safely_chained", "chained", "safely_chained", "chained"))
    ),
    "both": _numbered(("in_a", 0.5), ("chained", 0.2), ("both", 0.2), ("in_a", 0.3), ("chained", 0.3)),
    "failing": _numbered(("fail_in_a", 0.1), ("in_a", 0.1), ("fail_in_a", 0.1), ("risky_in_a", 0.1)),
    "timed_out": _numbered(
        ("in_b", 0.1), ("brief_in_b", FOR_EVER), ("in_b", 0.1), ("risky_in_b", 0.1), ("in_a", 0.1)
    ),
}

SAFE, UNSAFE = (
    ("in_a", "in_b", "in_c", "safely_chained"),
    ("risky_in_a", "risky_in_b", "risky_in_c", "chained"),
)
LANES = len(SAFE)
"""Three groups and the chain."""


def _in_lanes(second: tuple[str, ...], third: tuple[str, ...]) -> Calls:
    """Three calls in each lane; the second takes as long as the process's world makes it."""
    return _numbered(*((tool, 0.02) for tool in SAFE), *((tool, None) for tool in second + third))


INTERRUPTED: dict[str, tuple[Calls, tuple[str | None, int], tuple[str | None, int]]] = {
    "all_safe": (_in_lanes(SAFE, SAFE), (None, 2), (None, 1)),
    "interrupted_unsafe": (_in_lanes(UNSAFE, SAFE), ("outcome_unknown", 1), ("outcome_unknown", 0)),
    "waiting_unsafe": (_in_lanes(SAFE, UNSAFE), (None, 2), (None, 1)),
}
"""What a kill in each lane's second call makes of that call and of the one behind: reason and bodies."""


@pytest.fixture(scope="module")
def worker(shared_database_url: str, shared_witness: Witness) -> Iterator[Worker]:
    """A healthy process with an agent for each script; it takes the turns and rescues the killed ones."""
    every = TURNS | {name: calls for name, (calls, _, _) in INTERRUPTED.items()}
    scripts = [Script(shared_witness.path, (calls,), agent=name) for name, calls in every.items()]
    with Workers() as workers:
        yield workers.start(Start(shared_database_url, scripts[0], also=tuple(scripts[1:])))


@dataclass(frozen=True)
class Body:
    """One body that ran to its end, by the witness's clock."""

    start: float
    end: float
    pid: int


@dataclass(frozen=True)
class Seen:
    """A turn that has ended: its calls and its bodies by number."""

    truth: Truth
    calls: dict[int, dict[str, Any]]
    bodies: dict[int, Body]

    def ends(self) -> dict[int, tuple[str | None, int]]:
        """Each call's reason and the bodies that the witness saw start."""
        counted = self.truth.witness.bodies(self.truth.session_id)
        return {n: (call["reason"], counted[call["dispatch_id"]]) for n, call in self.calls.items()}

    def answered_at(self, n: int) -> float:
        """When the transaction that answered the call began."""
        with connect(self.truth.database_url) as rows:
            answer = rows.execute(
                "SELECT created_at FROM answers WHERE dispatch_id = %s", (self.calls[n]["dispatch_id"],)
            ).fetchone()
        assert answer is not None
        return answer["created_at"].timestamp()

    def one_after_the_other(self, *numbers: int) -> bool:
        """Whether each was answered, and only then the next one started."""
        return all(
            self.bodies[ahead].end <= self.answered_at(ahead) <= self.bodies[behind].start
            for ahead, behind in pairwise(numbers)
        )

    def side_by_side(self, *numbers: int) -> bool:
        """Whether each pair of bodies ran at the same time."""
        pairs = combinations([self.bodies[n] for n in numbers], 2)
        return all(one.start < other.end and other.start < one.end for one, other in pairs)

    def most_at_once(self) -> int:
        """The most bodies that ran at one moment."""
        return max(
            sum(body.start <= moment < body.end for body in self.bodies.values())
            for moment in [body.start for body in self.bodies.values()]
        )


TakeTurn = Callable[[str], Seen]


def _look(truth: Truth) -> Seen:
    truth.holds()
    of_session = {"session_id": truth.session_id}
    starts = {(event.n, event.attempt): event.at for event in truth.witness.events("start", **of_session)}
    bodies = {
        event.n: Body(starts[event.n, event.attempt], event.at, event.pid)
        for event in truth.witness.events("end", **of_session)
    }
    return Seen(truth, truth.numbered(), bodies)


@pytest.fixture
def take_turn(worker: Worker, shared_database_url: str, shared_witness: Witness) -> TakeTurn:
    """Has the agent of this name take its one turn, and looks at it."""

    def take(name: str) -> Seen:
        worker.ask("execute", agent=name, message="go", session_id=name)
        assert wait_for_end(shared_database_url, name)["status"] == "completed"
        return _look(Truth(shared_database_url, name, shared_witness))

    return take


def test_parallel_calls_overlap_and_each_is_answered_as_it_ends(take_turn: TakeTurn) -> None:
    seen = take_turn("parallel")
    assert len(seen.bodies) == PARALLEL
    assert seen.most_at_once() >= 8, f"HELIX_TEST_SEED={SEED}"
    last_end = max(body.end for body in seen.bodies.values())
    before = [n for n in seen.bodies if seen.answered_at(n) < last_end]
    assert len(before) >= PARALLEL / 2, f"HELIX_TEST_SEED={SEED}"


def test_threads_overlap(take_turn: TakeTurn) -> None:
    seen = take_turn("threads")
    assert seen.side_by_side(*range(1, THREADS + 1))


def test_groups_go_one_at_a_time_and_side_by_side_with_others(take_turn: TakeTurn) -> None:
    seen = take_turn("groups")
    for first in (1, 2, 3):
        assert seen.one_after_the_other(first, first + 3, first + 6)
    assert seen.side_by_side(1, 2, 3)
    assert seen.most_at_once() == 3


def test_a_group_may_hold_tools_of_any_policy(take_turn: TakeTurn) -> None:
    seen = take_turn("mixed_groups")
    assert seen.one_after_the_other(1, 3, 5)
    assert seen.one_after_the_other(2, 4, 6)
    assert seen.side_by_side(1, 2)


def test_the_chain_is_strictly_sequential(take_turn: TakeTurn) -> None:
    seen = take_turn("chain")
    assert seen.one_after_the_other(1, 2, 3, 4, 5)


def test_a_call_in_a_group_and_in_the_chain_waits_for_both(take_turn: TakeTurn) -> None:
    seen = take_turn("both")
    assert seen.side_by_side(1, 2)
    assert seen.one_after_the_other(1, 3, 4)
    assert seen.one_after_the_other(2, 3, 5)
    assert seen.side_by_side(4, 5)


def test_a_failing_call_does_not_stop_those_behind_it(take_turn: TakeTurn) -> None:
    seen = take_turn("failing")
    assert seen.ends() == {1: ("tool_error", 1), 2: (None, 1), 3: ("tool_error", 1), 4: (None, 1)}
    assert seen.one_after_the_other(1, 2, 3, 4)


def test_an_unsafe_call_that_timed_out_stops_those_behind_it(take_turn: TakeTurn) -> None:
    seen = take_turn("timed_out")
    doubt = "outcome_unknown"
    assert seen.ends() == {1: (None, 1), 2: (doubt, 1), 3: (doubt, 0), 4: (doubt, 0), 5: (None, 1)}
    assert len({seen.answered_at(n) for n in (2, 3, 4)}) == 1, "the doubt did not spread at once"
    assert 2 not in seen.bodies, "the body was not cancelled"


@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_kill_in_the_second_call_of_each_lane(
    name: str, worker: Worker, shared_database_url: str, shared_witness: Witness
) -> None:
    calls, second, third = INTERRUPTED[name]
    slow = Script(shared_witness.path, (calls,), agent=name, body_seconds=FOR_EVER)
    firsts, seconds = range(1, LANES + 1), range(LANES + 1, 2 * LANES + 1)
    with Workers() as victims:
        victim = victims.start(Start(shared_database_url, slow, session_id=name, message="go"))
        poll_until(lambda: len(shared_witness.events("start", session_id=name)) == 2 * LANES)
        victim.end()
    assert wait_for_end(shared_database_url, name)["status"] == "completed"
    seen = _look(Truth(shared_database_url, name, shared_witness))
    assert seen.ends() == {
        **dict.fromkeys(firsts, (None, 1)),
        **dict.fromkeys(seconds, second),
        **{n + LANES: third for n in seconds},
    }
    assert {seen.bodies[n].pid for n in firsts} == {victim.pid}
    assert {body.pid for n, body in seen.bodies.items() if n not in firsts} <= {worker.pid}
    for n in firsts:
        started = [n, n + LANES, n + 2 * LANES] if second[0] is None else [n]
        assert seen.one_after_the_other(*started)
