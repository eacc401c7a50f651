"""A storm: workers are killed and frozen at random moments under a stream of turns.

The short form belongs to the suite; the long one runs with `-m storm`. `HELIX_STORM_TURNS` and
`HELIX_STORM_SEED` set its size and its course (the seed decides who is hit when, not how fast the
machine is).
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fault.backends import cut_all, cut_locks, own_login
from tests.fault.processes import OrderFailed, Start, Worker, Workers
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Event, Witness
from tests.fault.world import MIXED, Script, Steps

LONGER: Steps = (
    (("put", {"n": 1}), ("charge", {"n": 2})),
    (("grouped", {"n": 3}), ("grouped", {"n": 4}), ("in_a", {"n": 5}), ("risky_in_a", {"n": 6})),
    (("fail", {"n": 7}), ("chained", {"n": 8}), ("safely_chained", {"n": 9}), ("chained", {"n": 10})),
    (("charge", {"n": 11}), ("put", {"n": 12}), ("both", {"n": 13}), ("in_a", {"n": 14})),
    (("put", {"n": 15}),),
)
TURNS: dict[str, Steps] = {"mixed": MIXED, "longer": LONGER, "brief": ((("charge", {"n": 1}),),)}

PROCESSES = 3
AT_A_TIME = 10
PAUSE_SECONDS = (0.2, 0.9)
FROZEN_SECONDS = (0.4, 1.6)
FREEZE_ONE_IN = 10


@dataclass
class Blow:
    """What was done to a process, and when."""

    at: float
    pid: int
    frozen: bool


@dataclass
class Slot:
    """A place for one process at a time, logged in under a name of its own."""

    own_url: str
    worker: Worker


@dataclass
class Storm:
    """Hits the processes until it is over, on a thread of its own."""

    database_url: str
    witness: Witness
    workers: Workers
    chance: random.Random
    slots: list[Slot] = field(default_factory=list[Slot])
    blows: list[Blow] = field(default_factory=list[Blow])
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._rage, name="storm", daemon=True)

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
        self._supervise()

    def started(self, own_url: str) -> Worker:
        script = Script(self.witness.path, MIXED, turns=TURNS, body_seconds=0.12, model_seconds=0.05)
        return self.workers.start(Start(own_url, script))

    def _rage(self) -> None:
        try:
            while not self._over.wait(self.chance.uniform(*PAUSE_SECONDS)):
                slot = self.chance.choice(self.slots)
                if self.chance.randrange(FREEZE_ONE_IN):
                    self._kill(slot)
                else:
                    self._freeze(slot)
                self._supervise()
        except BaseException as failure:
            self.failure = failure
            raise

    def _supervise(self) -> None:
        """Start those anew that ended by themselves: cut off while they started, for example."""
        for slot in self.slots:
            if not slot.worker.process.is_alive():
                slot.worker = self.started(slot.own_url)

    def _kill(self, slot: Slot) -> None:
        self.blows.append(Blow(time.time(), slot.worker.pid, frozen=False))
        slot.worker.send(signal.SIGKILL)
        slot.worker.dies()
        slot.worker = self.started(slot.own_url)

    def _freeze(self, slot: Slot) -> None:
        """Freeze it, take its life sign or all its connections, and let it go on a while later."""
        self.blows.append(Blow(time.time(), slot.worker.pid, frozen=True))
        slot.worker.send(signal.SIGSTOP)
        try:
            if self.chance.randrange(2):
                cut_all(slot.own_url, self.database_url)
            else:
                with suppress(KeyError):  # frozen before it had its lock
                    cut_locks(self.database_url, slot.worker.pid)
            self._over.wait(self.chance.uniform(*FROZEN_SECONDS))
        finally:
            slot.worker.send(signal.SIGCONT)


@dataclass
class Outcome:
    """What came of a storm."""

    turns: int
    seed: int
    blows: list[Blow]
    violations: list[str]
    figures: dict[str, Any]

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        frozen = sum(blow.frozen for blow in self.blows)
        return (
            f"storm of {self.turns} turns, seed {self.seed}: {len(self.blows) - frozen} kills,"
            f" {frozen} freezes, {told}; {len(self.violations)} violations"
        )


def _weather(database_url: str, witness: Witness, *, turns: int, seed: int) -> Outcome:
    chance = random.Random(seed)
    with ExitStack() as stack:
        logins = [stack.enter_context(own_login(database_url)) for _ in range(PROCESSES)]
        workers = stack.enter_context(Workers())
        storm = Storm(database_url, witness, workers, random.Random(seed + 1))
        storm.slots = [Slot(own_url, storm.started(own_url)) for own_url in logins]
        with storm:
            sessions = _all_turns(storm, turns, chance)
        assert storm.failure is None, storm.failure
        violations = list(_violations(storm, sessions))
    return Outcome(turns, seed, storm.blows, violations, _figures(storm, sessions))


def _all_turns(storm: Storm, turns: int, chance: random.Random) -> list[str]:
    """Have every turn accepted by some process, a few at a time; return once all have ended."""
    sessions, waiting = list[str](), list[str]()
    for _ in range(turns):
        session_id = f"s-{uuid.uuid4().hex}"  # noqa: TID251 - a name of the test's
        _accepted(storm, session_id, chance.choice(list(TURNS)), chance)
        sessions.append(session_id)
        waiting.append(session_id)
        if len(waiting) == AT_A_TIME:
            wait_for_end(storm.database_url, waiting.pop(0), seconds=60)
    for session_id in waiting:
        wait_for_end(storm.database_url, session_id, seconds=60)
    return sessions


def _accepted(storm: Storm, session_id: str, message: str, chance: random.Random) -> None:
    """Ask one process after the other, under the same request key, until one has accepted."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        worker = chance.choice(storm.slots).worker
        with suppress(OrderFailed):
            worker.ask(
                "execute", agent="desk", message=message, session_id=session_id, request_key="k", seconds=1
            )
            return
    raise AssertionError("nobody accepts turns any more")


@dataclass(frozen=True)
class Remembered(Witness):
    """What the witness saw of one session, read once."""

    seen: tuple[Event, ...] = ()

    def events(self, what: str | None = None, **facts: Any) -> list[Event]:
        return [
            event
            for event in self.seen
            if what in (None, event.what)
            and all(event.facts.get(name) == value for name, value in facts.items())
        ]


def _violations(storm: Storm, sessions: list[str]) -> Iterator[str]:
    """Every broken promise; the workers are up and swept by nobody but themselves."""
    by_session = defaultdict[str, list[Event]](list)
    for event in storm.witness.events():
        if event.what == "loop_error":
            yield f"loop_error {event.context}"
        by_session[event.facts.get("session_id", "")].append(event)
    frozen = {blow.pid for blow in storm.blows if blow.frozen}
    every_step = frozenset(range(100))
    for session_id in sessions:
        seen = Remembered(storm.witness.path, tuple(by_session[session_id]))
        try:
            _ran_once(storm.database_url, session_id)
            Truth(storm.database_url, session_id, seen).holds(asked_again=every_step, asks=99)
            _not_asked_after_the_save(storm.database_url, session_id, seen, frozen)
        except AssertionError as violation:
            yield f"{session_id}: {violation}"


def _ran_once(database_url: str, session_id: str) -> None:
    with connect(database_url) as rows:
        runs = rows.execute("SELECT status, error FROM runs WHERE session_id = %s", (session_id,)).fetchall()
        ends = rows.execute(
            "SELECT 1 FROM checkpoints WHERE session_id = %s AND kind = 'end'", (session_id,)
        ).fetchall()
    assert [run["status"] for run in runs] == ["completed"], runs
    assert len(ends) == 1


def _not_asked_after_the_save(database_url: str, session_id: str, seen: Witness, frozen: set[int]) -> None:
    """Only a process that was frozen meanwhile may ask for a step that is saved already."""
    with connect(database_url) as rows:
        saved = rows.execute(
            "SELECT step_index, extract(epoch FROM created_at)::float8 AS at FROM messages"
            " WHERE session_id = %s AND kind = 'assistant'",
            (session_id,),
        ).fetchall()
    saved_at = {row["step_index"]: row["at"] for row in saved}
    late = [ask for ask in seen.events("ask") if ask.pid not in frozen and ask.at > saved_at[ask.step]]
    assert not late, f"asked for a saved step: {late}"


def _figures(storm: Storm, sessions: list[str]) -> dict[str, Any]:
    events = storm.witness.events()
    bodies = Counter(event.dispatch_id for event in events if event.what == "start")
    asks = sum(event.what == "ask" for event in events)
    with connect(storm.database_url) as rows:
        counted = rows.execute(
            "SELECT (SELECT count(*) FROM calls) AS calls,"
            " (SELECT count(*) FROM answers WHERE reason = 'outcome_unknown') AS in_doubt,"
            " (SELECT count(*) FROM messages WHERE kind = 'assistant') AS saved"
        ).fetchone()
    assert counted is not None
    failovers = sorted(_failovers(storm, events))
    return {
        "rescues": sum(event.what == "rescue" for event in events),
        "calls": counted["calls"],
        "in doubt": counted["in_doubt"],
        "bodies": f"{bodies.total()} (at most {max(bodies.values(), default=0)})",
        "asks/saved": f"{asks}/{counted['saved']}",
        "kill to attach": f"p50 {statistics.median(failovers):.2f} s, max {failovers[-1]:.2f} s"
        if failovers
        else "none",
    }


def _failovers(storm: Storm, events: list[Event]) -> Iterator[float]:
    """From each kill to each attach of another process to a run that the killed one carried."""
    attaches = defaultdict[str, list[Event]](list)
    for event in events:
        if event.what == "attach":
            attaches[event.run_id].append(event)
    for blow in storm.blows:
        if blow.frozen:
            continue
        for run in attaches.values():
            before = [event for event in run if event.at <= blow.at]
            after = [event for event in run if event.at > blow.at]
            if before and after and before[-1].pid == blow.pid:
                yield after[0].at - blow.at


def _seed() -> int:
    return int(os.environ.get("HELIX_STORM_SEED") or random.randrange(1_000_000))


def test_a_short_storm(database_url: str, witness: Witness) -> None:
    outcome = _weather(database_url, witness, turns=20, seed=_seed())
    print(outcome)
    assert not outcome.violations, "\n".join([str(outcome), *outcome.violations])
    assert outcome.blows


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_a_long_storm(database_url: str, witness: Witness) -> None:
    turns = int(os.environ.get("HELIX_STORM_TURNS", "300"))
    outcome = _weather(database_url, witness, turns=turns, seed=_seed())
    print(outcome)
    assert not outcome.violations, "\n".join([str(outcome), *outcome.violations])
