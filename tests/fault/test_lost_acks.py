"""Commits that happened without anybody being told, and commits that did not happen at all.

Every transaction is tried again and recognises itself: nothing is done twice, nothing is lost,
and the model is not asked again for what it said before.
"""

from __future__ import annotations

import os
import random
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from helix_dbos.embedded import EmbeddedServer, start_embedded, temporary_server
from helix_dbos.engine.dbos_engine import migrate_dbos
from helix_dbos.store.migration import apply_migrations
from helix_dbos.workflows.sweep import SETTLED_SECONDS
from tests.fault.backends import live_pids
from tests.fault.processes import Start, Worker, Workers
from tests.fault.proxy_thread import DBOS, HELIX, Loss, Proxy
from tests.fault.truth import Truth, connect, wait_for_end
from tests.fault.witness import Witness
from tests.fault.world import MIXED, Script
from tests.support.waiting import poll_until

COMMITS_OF_A_TURN = 13
"""Accept, attach, save, seven answers, save, answer, end."""

_CLAIM = re.compile(r"UPDATE .*workflow_status SET .*rate_limited=", re.DOTALL)

ONE_IN = 20
TURNS = 20


@dataclass(frozen=True)
class Stage:
    """A worker behind a proxy."""

    database_url: str
    witness: Witness
    proxy: Proxy
    worker: Worker

    def accepts(self, session_id: str) -> str:
        return self.worker.ask("execute", agent="desk", message="go", session_id=session_id, request_key="k")

    def ends_well(self, session_id: str, run_id: str) -> dict[str, Any]:
        """The turn completed once and everything in it happened once."""
        run = wait_for_end(self.database_url, session_id)
        assert (run["run_id"], run["status"]) == (run_id, "completed"), "the run that was returned"
        with connect(self.database_url) as rows:
            counts = rows.execute(
                "SELECT (SELECT count(*) FROM runs WHERE session_id = %(s)s) AS runs,"
                " (SELECT count(*) FROM messages WHERE session_id = %(s)s AND kind = 'user') AS turns,"
                " (SELECT count(*) FROM checkpoints WHERE session_id = %(s)s AND kind = 'end') AS ends",
                {"s": session_id},
            ).fetchone()
        assert counts == {"runs": 1, "turns": 1, "ends": 1}
        Truth(self.database_url, session_id, self.witness).holds()
        bodies = self.witness.bodies(session_id)
        assert len(bodies) == 8
        assert set(bodies.values()) == {1}, "no body ran twice, not even a safe one"
        return run


@pytest.fixture(scope="module")
def stage(shared_database_url: str, shared_witness: Witness) -> Iterator[Stage]:
    """Nobody sweeps here: whatever a lost commit leaves behind stays there to be seen."""
    script = Script(shared_witness.path, MIXED, body_seconds=0.01)
    with Proxy(shared_database_url) as proxy, Workers() as workers:
        worker = workers.start(Start(proxy.url, script, settings={"sweep_seconds": 60}))
        worker.ask("carrying")
        yield Stage(shared_database_url, shared_witness, proxy, worker)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("nth", range(1, COMMITS_OF_A_TURN + 1))
def test_a_turn_survives_the_loss_of_a_commit(loss: Loss, nth: int, stage: Stage) -> None:
    stage.proxy.arm(lambda whose, number, _: loss if (whose, number) == (HELIX, nth) else None)
    session_id = _new_session()
    run = stage.ends_well(session_id, stage.accepts(session_id))
    assert run["stretch_no"] == 1
    assert [(lost, whose) for lost, whose, _ in stage.proxy.losses] == [(loss, HELIX)]
    assert stage.proxy.commits[HELIX] >= COMMITS_OF_A_TURN + (loss is Loss.COMMIT)


@pytest.mark.parametrize("statement", ["FROM messages", "FROM answers", "FROM session_state"])
def test_a_turn_survives_a_cut_while_it_reads(statement: str, stage: Stage) -> None:
    stage.proxy.arm(cut_before=statement)
    session_id = _new_session()
    run = stage.ends_well(session_id, stage.accepts(session_id))
    assert run["stretch_no"] == 1
    assert stage.proxy.cut


@pytest.mark.parametrize(("whose", "direct"), [({HELIX}, True), ({HELIX, DBOS}, False)], ids=["ours", "all"])
def test_turns_survive_random_losses(
    whose: set[str], direct: bool, database_url: str, witness: Witness
) -> None:
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def decide(who: str, _number: int, _statement: str) -> Loss | None:
        if who not in whose or chance.randrange(ONE_IN):
            return None
        return chance.choice(list(Loss))

    script = Script(witness.path, MIXED, body_seconds=0.01)
    with Proxy(database_url) as proxy, Workers() as workers:
        worker = workers.start(Start(proxy.url, script, settings={"direct_start": direct}))
        worker.ask("carrying")
        stage = Stage(database_url, witness, proxy, worker)
        proxy.arm(decide)
        sessions = {session_id: stage.accepts(session_id) for session_id in _new_sessions()}
        runs = [stage.ends_well(session_id, run_id) for session_id, run_id in sessions.items()]
        losses = list(proxy.losses)
    print(f"{len(losses)} losses, {sum(run['stretch_no'] - 1 for run in runs)} further stretches")
    assert {who for _, who, _ in losses} == whose


def test_a_turn_survives_the_loss_of_the_queue_s_claim(database_url: str, witness: Witness) -> None:
    """Claimed for a live process that does not know of it: nobody else would ever look there."""
    done: list[str] = []

    def decide(whose: str, _number: int, statements: str) -> Loss | None:
        if done or whose != DBOS or not _CLAIM.search(statements):
            return None
        done.append(statements)
        return Loss.ACKNOWLEDGEMENT

    script = Script(witness.path, MIXED, body_seconds=0.01)
    with Proxy(database_url) as proxy, Workers() as workers:
        worker = workers.start(Start(proxy.url, script, settings={"direct_start": False}))
        worker.ask("carrying")
        proxy.arm(decide)
        stage, session_id = Stage(database_url, witness, proxy, worker), _new_session()
        run_id = stage.accepts(session_id)
        poll_until(lambda: _age_claims(database_url))
        run = stage.ends_well(session_id, run_id)
        assert len(proxy.losses) == 1
    assert (run["stretch_no"], run["rescues"]) == (2, 0)


def _age_claims(database_url: str) -> int:
    """Let most of the time be over that a claim is given to become a start; how many there were."""
    with connect(database_url) as rows:
        return rows.execute(
            "UPDATE dbos.workflow_status SET started_at_epoch_ms = started_at_epoch_ms - 4500"
            " WHERE name = 'helix.turn' AND status = 'PENDING'"
        ).rowcount


@pytest.fixture
def own_server() -> Iterator[tuple[EmbeddedServer, str]]:
    """A server that only this test uses, with a migrated database."""
    with temporary_server() as server:
        migrate_dbos(server.url, "dbos")
        apply_migrations(server.url, "helix")
        yield server, server.url


RESTARTED = ((*[("charge", {"n": n, "seconds": n * 0.3}) for n in range(1, 9)],), (("put", {"n": 9}),))
"""Bodies that end before, during and after the outage."""


def test_turns_survive_a_crash_of_the_server(
    own_server: tuple[EmbeddedServer, str], witness: Witness
) -> None:
    server, url = own_server
    start = Start(url, Script(witness.path, RESTARTED), settings={"sweep_seconds": 0.05})
    with Workers() as workers:
        both = [workers.start(start) for _ in range(2)]
        poll_until(lambda: live_pids(url) == {worker.pid for worker in both})
        poll_until(lambda: _settled(url))
        sessions: list[str] = []
        for worker in (*both, both[0]):
            session_id = _new_session()
            worker.ask("execute", agent="desk", message="go", session_id=session_id)
            sessions.append(session_id)
        poll_until(lambda: len(witness.events("end")) >= 3)
        _crash(server)
        for session_id in sessions:
            run = wait_for_end(url, session_id)
            assert (run["status"], run["stretch_no"]) == ("completed", 1), "nobody was taken for dead"
            Truth(url, session_id, witness).holds()
            assert set(witness.bodies(session_id).values()) == {1}
    assert witness.events("rescue") == []


def _settled(url: str) -> bool:
    """The workers' locks are old enough for them to sweep."""
    with connect(url) as rows:
        return not rows.execute(
            "SELECT 1 FROM executors WHERE started_at > now() - make_interval(secs => %s)",
            (SETTLED_SECONDS + 0.2,),
        ).fetchall()


def _crash(server: EmbeddedServer) -> None:
    """An immediate shutdown, without a word to anybody, and a start at once."""
    pid = int((server.data_dir / "postmaster.pid").read_text().split("\n", 1)[0])
    os.kill(pid, signal.SIGQUIT)
    poll_until(lambda: not _exists(pid))
    start_embedded(server.data_dir.parent.parent).release()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _new_session() -> str:
    return f"s-{uuid.uuid4().hex}"  # noqa: TID251 - a name of the test's


def _new_sessions() -> list[str]:
    return [_new_session() for _ in range(TURNS)]
