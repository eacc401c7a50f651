"""What a turn costs in statements, commits and round trips, ours and DBOS's. Run with `-s` to read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy
from pydantic import SecretStr
from sqlalchemy import event

from helix_dbos import Helix, tool
from helix_dbos import process as process_module
from helix_dbos.engine.dbos_engine import DbosEngine
from helix_dbos.faults import FaultPoint
from helix_dbos.store.database import Database
from helix_dbos.testing import call, say
from helix_dbos.workflows import watch
from tests.integration.turn.looks import scripted
from tests.integration.turn.started import PATIENCE, small_settings, started
from tests.integration.turn.wire import Cost, Meter, Phases
from tests.support.proxy import DatabaseProxy
from tests.support.waiting import poll_until_async

Point = FaultPoint

WARM, TURNS = 3, 6


@dataclass
class EngineCount:
    """DBOS's own statements and transactions, seen by SQLAlchemy, which only DBOS uses in a turn."""

    proxy: DatabaseProxy
    statements: int = 0
    commits: int = 0

    def watch(self) -> None:
        event.listen(sqlalchemy.Engine, "before_cursor_execute", self._execute)
        event.listen(sqlalchemy.Engine, "commit", self._commit)

    def unwatch(self) -> None:
        event.remove(sqlalchemy.Engine, "before_cursor_execute", self._execute)
        event.remove(sqlalchemy.Engine, "commit", self._commit)

    def _execute(self, *_given: object) -> None:
        self.statements += 1

    def _commit(self, *_given: object) -> None:
        self.commits += 1

    def now(self) -> Cost:
        return Cost(self.statements, self.commits, self.proxy.round_trips)


@dataclass
class Costs:
    """Both meters, and where both kinds of connections go."""

    phases: Phases
    engine: EngineCount
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def reach(self, point: FaultPoint, about: str) -> None:
        self.phases.reach(point, about)
        if point is Point.AFTER_END:
            self.ended.set()


@contextmanager
def _proxies(database_url: str, count: int) -> Iterator[list[DatabaseProxy]]:
    """Proxies on a loop of their own: DBOS connects while it blocks the test's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxies")
    thread.start()
    proxies = [DatabaseProxy(database_url) for _ in range(count)]
    try:
        for proxy in proxies:
            asyncio.run_coroutine_threadsafe(proxy.open(), loop).result(PATIENCE)
        yield proxies
        for proxy in proxies:
            asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(PATIENCE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


@pytest.fixture
async def costs(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Costs]:
    """Our pool goes through one proxy, DBOS through another, and nobody else speaks."""
    monkeypatch.setattr(watch, "_TICK_SECONDS", 60.0)
    with _proxies(database_url, 2) as (ours, theirs):

        def our_database(_url: str, *given: Any, **more: Any) -> Database:
            return Database(ours.url, *given, **more)

        def their_engine(_url: str, *given: Any, **more: Any) -> DbosEngine:
            return DbosEngine(theirs.url, *given, **more)

        monkeypatch.setattr(process_module, "Database", our_database)
        monkeypatch.setattr(process_module, "DbosEngine", their_engine)
        engine = EngineCount(theirs)
        engine.watch()
        try:
            yield Costs(Phases(Meter(ours)), engine)
        finally:
            engine.unwatch()


async def _one_turn(helix: Helix, costs: Costs, agent: Any, session_id: str) -> Cost:
    """A turn that nobody asks about meanwhile; what DBOS spent on it."""
    before = costs.engine.now()
    costs.ended.clear()
    costs.phases.begin()
    await helix.execute(agent, "go", session_id=session_id)
    await asyncio.wait_for(costs.ended.wait(), PATIENCE)
    live = helix._process.runtime.live

    async def quiet() -> bool:
        return not live

    await poll_until_async(quiet, seconds=PATIENCE)
    last = None
    while last != costs.engine.now():  # DBOS records the workflow's end after ours
        last = costs.engine.now()
        await asyncio.sleep(0.05)
    return costs.engine.now() - before


def _phases(phases: Phases) -> dict[str, list[Cost]]:
    return {
        "accept": phases.between(None, Point.AFTER_ACCEPT),
        "attach": phases.between(Point.BEFORE_ATTACH, Point.AFTER_ATTACH),
        "load": phases.between(Point.AFTER_ATTACH, Point.BEFORE_MODEL_REQUEST),
        "save": phases.between(Point.AFTER_MODEL_REQUEST, Point.AFTER_SAVE),
        "answer": phases.between(Point.AFTER_BODY, Point.AFTER_ANSWER),
        "end": phases.between(Point.AFTER_MODEL_REQUEST, Point.AFTER_END)[-1:],
    }


LIMITS = {
    "accept": Cost(statements=7, transactions=1, round_trips=3),
    "attach": Cost(statements=5, transactions=1, round_trips=2),
    "load": Cost(statements=4, transactions=4, round_trips=4),
    "save": Cost(statements=1, transactions=1, round_trips=1),
    "answer": Cost(statements=1, transactions=1, round_trips=1),
    "end": Cost(statements=1, transactions=1, round_trips=1),
}
"""Upper bounds; accept, attach, every save, every answer and the end are one transaction each."""


@tool
async def echo(n: int) -> int:
    return n


def _within(phase: str, cost: Cost) -> bool:
    limit = LIMITS[phase]
    return (
        cost.statements <= limit.statements
        and cost.transactions <= limit.transactions
        and cost.round_trips <= limit.round_trips
    )


def _least(costs: list[Cost]) -> Cost:
    """The cost without the polls that happened to fall into a turn."""
    return Cost(
        min(each.statements for each in costs),
        min(each.transactions for each in costs),
        min(each.round_trips for each in costs),
    )


@pytest.mark.parametrize(
    ("direct", "record"),
    [(True, True), (True, False), (False, True)],
    ids=["direct", "direct_unrecorded", "queued"],
)
async def test_the_costs_of_a_turn(database_url: str, costs: Costs, direct: bool, record: bool) -> None:
    short, _ = scripted([say("done")], name="short")
    long, _ = scripted([*(call("echo", {"n": n}) for n in range(3)), say("done")], name="long", tools=[echo])
    settings = small_settings(
        database_url,
        direct_database_url=SecretStr(database_url),
        pool_size=2,
        sweep_seconds=60,
        direct_start=direct,
        record_model_steps=record,
        queue_poll_seconds=10 if direct else 0.1,
    )
    engine: dict[str, Cost] = {}
    async with started([short, long], settings, reach=costs.reach) as helix:
        for agent in (short, long):
            found = [await _one_turn(helix, costs, agent, f"s-{agent.name}") for _ in range(TURNS)]
            engine[agent.name] = _least(found[WARM:])
        phases = _phases(costs.phases)
        await _one_turn(helix, costs, long, "new")
        phases["accept"] += costs.phases.between(None, Point.AFTER_ACCEPT)
    for phase, seen in phases.items():
        print(f"{phase:7}", *seen)
        assert seen, phase
        assert [cost for cost in seen if not _within(phase, cost)] == [], phase
    assert [len(phases[phase]) for phase in phases] == [2, 1, 1, 3, 3, 1]
    per_reply = Cost(*((many - one) / 3 for one, many in zip(engine["short"], engine["long"], strict=True)))
    print(f"DBOS: {engine['short']} for a turn of one reply, {per_reply} for each reply more")
    if direct:
        assert per_reply.transactions <= (2 if record else 0)
        assert per_reply.statements <= (4 if record else 0)
        assert engine["short"].transactions <= (3 if record else 1)
