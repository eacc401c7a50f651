"""The order of bodies inside one step, as the outside witness saw it, with and without a kill."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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
Calls = tuple[tuple[str, dict[str, Any]], ...]


def _numbered(*calls: tuple[str, float]) -> Calls:
    """Calls by tool and seconds, numbered from 1 in reply order."""
    return tuple((tool, {"n": n, "seconds": seconds}) for n, (tool, seconds) in enumerate(calls, 1))


PARALLEL, THREADS = 10, 4
SEED = random.SystemRandom().randrange(2**32)
_choice = random.Random(SEED)
DURATIONS = [_choice.uniform(0.5, 1.0) for _ in range(PARALLEL)]

TOOLS_SIDE_BY_SIDE = ("put", "charge", "solo")
TURNS: dict[str, Calls] = {
    "parallel": _numbered(
        *((TOOLS_SIDE_BY_SIDE[place % 3], seconds) for place, seconds in enumerate(DURATIONS))
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


@pytest.fixture(scope="module")
def worker(shared_database_url: str, shared_witness: Witness) -> Iterator[Worker]:
    """One healthy process with an agent for each script; it rescues what a victim leaves, too."""
    scripts = [Script(shared_witness.path, (calls,), agent=name) for name, calls in TURNS.items()]
    scripts += [Script(shared_witness.path, (calls,), agent=name) for name, calls in INTERRUPTED.items()]
    with Workers() as workers:
        yield workers.start(Start(shared_database_url, scripts[0], also=tuple(scripts[1:])))


@dataclass(frozen=True)
class Body:
    """One body that ran to its end."""

    n: int
    start: float
    end: float


@dataclass(frozen=True)
class Seen:
    """A turn that has ended: its rows and its bodies."""

    truth: Truth
    calls: dict[int, dict[str, Any]]
    bodies: dict[int, Body]

    def reasons(self) -> dict[int, str | None]:
        return {n: call["reason"] for n, call in self.calls.items()}

    def counts(self) -> dict[int, int]:
        counted = self.truth.witness.bodies(self.truth.session_id)
        return {n: counted[call["dispatch_id"]] for n, call in self.calls.items()}

    def answered_at(self, n: int) -> float:
        """When the transaction of the answer began."""
        with connect(self.truth.database_url) as rows:
            answer = rows.execute(
                "SELECT created_at FROM answers WHERE dispatch_id = %s", (self.calls[n]["dispatch_id"],)
            ).fetchone()
        assert answer is not None
        return answer["created_at"].timestamp()

    def one_after_the_other(self, *numbers: int) -> None:
        for ahead, behind in pairwise(numbers):
            assert self.bodies[ahead].end <= self.answered_at(ahead) <= self.bodies[behind].start

    def overlap(self, *numbers: int) -> bool:
        return all(
            one.start < other.end and other.start < one.end
            for one, other in combinations([self.bodies[n] for n in numbers], 2)
        )


def _look(truth: Truth) -> Seen:
    truth.holds()
    starts = {(event.n, event.attempt): event.at for event in _events(truth, "start")}
    ends = {(event.n, event.attempt): event.at for event in _events(truth, "end")}
    bodies = {n: Body(n, starts[n, attempt], at) for (n, attempt), at in ends.items()}
    return Seen(truth, truth.numbered(), bodies)


def _events(truth: Truth, what: str) -> Sequence[Any]:
    return truth.witness.events(what, session_id=truth.session_id)


def _take_turn(worker: Worker, truth: Truth) -> Seen:
    """Have the agent of the session's name take its turn."""
    worker.ask("execute", agent=truth.session_id, message="go", session_id=truth.session_id)
    assert wait_for_end(truth.database_url, truth.session_id)["status"] == "completed"
    return _look(truth)


@pytest.fixture
def truth(request: pytest.FixtureRequest, shared_database_url: str, shared_witness: Witness) -> Truth:
    """The truth of the session whose name, and whose agent's, is the test's `turn` mark."""
    return Truth(shared_database_url, request.node.get_closest_marker("turn").args[0], shared_witness)
