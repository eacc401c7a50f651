"""Calls and their answers: the ledger of which body may have run, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.states import CallKind, CallState, Origin, Outcome, Reason, Replay
from helix_dbos.store.database import Row, Transaction

__all__ = [
    "claim_bodies",
    "insert_answers",
    "load_answers",
    "load_calls_of_run",
    "load_open_calls",
    "load_step_calls",
    "mark_answered",
    "take_ownership",
]

_CALLS: LiteralString = (
    "SELECT c.dispatch_id, c.step_index, c.call_index, c.tool_call_id, c.tool_name, c.arguments, c.kind,"
    " c.replay, c.concurrency_group, c.sequential, c.generation, c.bodies, c.state,"
    " a.outcome, a.reason, a.result, a.origin"
    " FROM calls c LEFT JOIN answers a ON a.dispatch_id = c.dispatch_id AND a.superseded_by IS NULL"
    " WHERE c.superseded_by IS NULL AND "
)


def _answer(row: Row) -> Answer | None:
    if row["outcome"] is None:
        return None
    reason = Reason(row["reason"]) if row["reason"] else None
    return Answer(Outcome(row["outcome"]), reason, row["result"], Origin(row["origin"]))


def _call(row: Row) -> Call:
    return Call(
        dispatch_id=row["dispatch_id"],
        call_index=row["call_index"],
        tool_call_id=row["tool_call_id"],
        tool_name=row["tool_name"],
        arguments=row["arguments"],
        kind=CallKind(row["kind"]),
        replay=Replay(row["replay"]),
        concurrency_group=row["concurrency_group"],
        sequential=row["sequential"],
        generation=row["generation"],
        bodies=row["bodies"],
        state=CallState(row["state"]),
        answer=_answer(row),
    )


async def insert_answers(
    tx: Transaction, run_id: str, generation: int, answers: Iterable[tuple[str, Answer]]
) -> None:
    """Insert the current answer of each call; the database refuses a second one."""
    await tx.many(
        "INSERT INTO answers (dispatch_id, n, outcome, reason, result, origin, run_id, generation)"
        " SELECT %s, coalesce(max(n), 0) + 1, %s, %s, %s, %s, %s, %s FROM answers WHERE dispatch_id = %s",
        [
            (
                dispatch_id,
                answer.outcome.value,
                answer.reason.value if answer.reason else None,
                Jsonb(answer.result),
                answer.origin.value,
                run_id,
                generation,
                dispatch_id,
            )
            for dispatch_id, answer in answers
        ],
    )


async def mark_answered(tx: Transaction, dispatch_ids: Sequence[str]) -> None:
    """These calls have their answer."""
    await tx.send(
        "UPDATE calls SET state = 'answered', answered_at = now() WHERE dispatch_id = ANY(%s)",
        (list(dispatch_ids),),
    )


async def claim_bodies(tx: Transaction, dispatch_ids: Sequence[str], generation: int) -> None:
    """Claim one more body of each call for this generation; only after this commits may it start."""
    if dispatch_ids:
        await tx.send(
            "UPDATE calls SET bodies = bodies + 1, generation = %s WHERE dispatch_id = ANY(%s)",
            (generation, list(dispatch_ids)),
        )


async def load_step_calls(tx: Transaction, session_id: str, step_index: int) -> list[Call]:
    """The current calls of one step with their answers, in reply order."""
    rows = await tx.rows(
        _CALLS + "c.session_id = %s AND c.step_index = %s ORDER BY c.call_index", (session_id, step_index)
    )
    return [_call(row) for row in rows]


async def load_open_calls(tx: Transaction, session_id: str) -> list[Call]:
    """Every current call of the session that has no answer, oldest step first."""
    rows = await tx.rows(
        _CALLS + "c.session_id = %s AND c.state <> 'answered' ORDER BY c.step_index, c.call_index",
        (session_id,),
    )
    return [_call(row) for row in rows]


async def load_answers(tx: Transaction, session_id: str) -> dict[str, Answer]:
    """The current answer of every answered call of the session, by its `tool_call_id`."""
    rows = await tx.rows(
        _CALLS + "c.session_id = %s AND c.state = 'answered'",
        (session_id,),
    )
    return {row["tool_call_id"]: answer for row in rows if (answer := _answer(row)) is not None}


async def load_calls_of_run(tx: Transaction, run_id: str) -> list[Call]:
    """The current calls that this run saved, in order, for showing them."""
    rows = await tx.rows(_CALLS + "c.run_id = %s ORDER BY c.step_index, c.call_index", (run_id,))
    return [_call(row) for row in rows]


async def take_ownership(tx: Transaction, session_id: str, run_id: str) -> None:
    """This run is the one that may answer the session's unanswered calls."""
    values: tuple[Any, ...] = (run_id, session_id, run_id)
    await tx.execute(
        "UPDATE calls SET owner_run_id = %s"
        " WHERE session_id = %s AND state <> 'answered' AND superseded_by IS NULL AND owner_run_id <> %s",
        values,
    )
