"""Accept a turn: everything it needs, and the workflow that will carry it, in one transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from helix_dbos.agents.erased import AnyAgent
from helix_dbos.core.entry import EntryDecision, decide_new_turn
from helix_dbos.core.messages import UserContent
from helix_dbos.errors import ConflictError, RequestError
from helix_dbos.faults import FaultPoint
from helix_dbos.ids import new_run_id, new_session_id, turn_workflow_id
from helix_dbos.store.database import Transaction
from helix_dbos.store.messages import append_message
from helix_dbos.store.requests import insert_request, run_of_request
from helix_dbos.store.runs import RunRow, insert_run, load_run
from helix_dbos.store.sessions import SessionRow, ensure_session, lock_session, set_current_run
from helix_dbos.workflows.runtime import Runtime
from helix_dbos.workflows.stretch import TURN_PRIORITY

__all__ = ["Accepted", "TurnRequest", "accept_turn", "check_ids"]

_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A user message for a session.

    Args:
        session_id: A new session when None.
        request_key: The same key on a session returns the run it made the first time.
        metadata: Replaces the session's when given.
    """

    agent: AnyAgent
    message: UserContent
    session_id: str | None = None
    request_key: str | None = None
    user_id: str | None = None
    metadata: Mapping[str, JsonValue] | None = None

    def body_hash(self) -> str:
        """A digest of what the request asks for; two requests of one key must agree on it."""
        body = [self.agent.name, self.message.model_dump(mode="json"), self.user_id, self.metadata]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The run that answers a request: a new one, or the one its key made before.

    Args:
        started_here: Whether this process started its first stretch without the queue.
    """

    run_id: str
    session_id: str
    started_here: bool


async def accept_turn(runtime: Runtime, request: TurnRequest) -> Accepted:
    """Commit session, message, run and the enqueue of its first stretch together.

    A process that carries turns and has a free slot starts the stretch itself right after the
    commit, without the queue; if it dies in between, the sweeper finds a run without an engine
    row. Repeatable: the run's id is minted before, and an existing run is recognised.

    Raises:
        ConflictError: The session is busy, another agent's or another user's, or the request
            key was used with another body.
        StoreError: The database is out of reach.
    """
    session_id = request.session_id or new_session_id()
    run_id = new_run_id()
    workflow_id = turn_workflow_id(run_id, 1)
    direct = _has_a_free_slot(runtime)
    again = False

    async def work(tx: Transaction) -> tuple[str, bool]:
        nonlocal again
        if again and await load_run(tx, run_id):
            return run_id, True  # our own commit, whose acknowledgement was lost
        again = True
        await ensure_session(tx, session_id, request.agent.name, request.user_id, request.metadata or {})
        session = await lock_session(tx, session_id)
        assert session is not None, "the statement before has made sure of it"
        _require_owner(session, request)
        if request.request_key and (
            known := await run_of_request(tx, session_id, request.request_key, request.body_hash())
        ):
            return known, False
        previous = await _gate(tx, session)
        await insert_run(
            tx,
            run_id=run_id,
            session_id=session_id,
            entry="turn",
            workflow_id=workflow_id,
            step_index=previous.step_index if previous else -1,
            queue=runtime.queue,
            priority=TURN_PRIORITY,
        )
        async with tx.together():
            await append_message(tx, session_id, run_id, request.message)
            await set_current_run(tx, session_id, run_id, request.metadata)
            if request.request_key:
                await insert_request(tx, session_id, request.request_key, request.body_hash(), run_id)
            if not direct:
                await runtime.engine.enqueue(
                    tx, run_id=run_id, workflow_id=workflow_id, priority=TURN_PRIORITY
                )
        runtime.reach(FaultPoint.BEFORE_ACCEPT_COMMIT, run_id)
        return run_id, True

    accepted_run, fresh = await runtime.database.transaction(work, patience_seconds=_PATIENCE_SECONDS)
    runtime.reach(FaultPoint.AFTER_ACCEPT, run_id)
    started = direct and fresh
    if started:
        await runtime.engine.start(run_id, workflow_id)
    return Accepted(accepted_run, session_id, started)


def _has_a_free_slot(runtime: Runtime) -> bool:
    """Whether this process may start one more stretch without the queue."""
    if not runtime.settings.direct_start or not runtime.carries_turns or runtime.draining:
        return False
    return len(runtime.live) + runtime.engine.starting < runtime.settings.concurrency


def _require_owner(session: SessionRow, request: TurnRequest) -> None:
    if session.agent != request.agent.name:
        raise ConflictError(
            "This session belongs to another agent.",
            code="state_agent_mismatch",
            detail=f"it is {session.agent!r}'s",
        )
    if session.user_id != request.user_id and request.user_id is not None:
        raise ConflictError("This session belongs to another user.", code="state_user_mismatch")


async def _gate(tx: Transaction, session: SessionRow) -> RunRow | None:
    """The session's previous run when a new turn may start behind it."""
    previous = await load_run(tx, session.current_run_id) if session.current_run_id else None
    if decide_new_turn(previous.status if previous else None) is EntryDecision.BUSY:
        raise ConflictError(
            "The session is busy with another turn.",
            detail=f"run {session.current_run_id} is open",
        )
    return previous


def check_ids(session_id: str | None, request_key: str | None, user_id: str | None) -> None:
    """Refuse ids that the store could not hold.

    Raises:
        RequestError: An id is empty, too long, or holds what Postgres cannot.
    """
    ids = {"session_id": session_id, "request_key": request_key, "user_id": user_id}
    for name, value in ids.items():
        if value is not None and not (0 < len(value) <= 256 and value.isprintable()):
            raise RequestError(f"The {name} must be 1 to 256 printable characters.")
    if request_key is not None and session_id is None:
        raise RequestError("A request_key needs a session_id: keys are per session.")
