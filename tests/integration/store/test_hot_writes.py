"""The one-statement writes: all or nothing, fenced, and repeatable after a lost acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from helix_dbos.core.calls import Answer
from helix_dbos.core.messages import AssistantContent, NoticeContent, TextPart, Usage
from helix_dbos.core.states import CallState, CheckpointKind, Origin, Outcome, Reason, Replay
from helix_dbos.store.calls import load_step_calls
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.hot import Holder, Reply, write_answers, write_end, write_reply
from helix_dbos.store.messages import load_messages
from helix_dbos.store.runs import load_run
from helix_dbos.store.sessions import load_session
from tests.integration.store.store_rows import (
    RETURNED,
    blocked,
    calling,
    new_call,
    running_run,
    saved_step,
    session_rows,
)
from tests.support.waiting import poll_until_async

UNKNOWN = Answer(Outcome.NOT_EXECUTED, Reason.OUTCOME_UNKNOWN, "It may have run.", Origin.RECOVERY)
REFUSED = Answer(Outcome.NOT_EXECUTED, Reason.UNKNOWN_TOOL, "No such tool.", Origin.REPLY)

Write = Callable[[Transaction], Awaitable[bool]]


@dataclass
class Written:
    """A hot write that fits the store as it is, and whose session it writes to."""

    holder: Holder
    write: Write


def answering(holder: Holder, *answers: tuple[str, Answer], **more: Any) -> Write:
    known: dict[str, Any] = {
        "step_index": 0,
        "claims": [],
        "changed": {},
        "settled": False,
        "rescued": False,
    }
    return lambda tx: write_answers(tx, holder, answers=answers, **(known | more))


async def a_reply(database: Database) -> Written:
    holder = await running_run(database)
    reply = calling(new_call(), checkpoint=CheckpointKind.APPEND)
    return Written(holder, lambda tx: write_reply(tx, holder, reply))


async def an_answer(database: Database) -> Written:
    first, behind = new_call(0, concurrency_group="g"), new_call(1, concurrency_group="g")
    holder = await saved_step(database, first, behind, claimed=frozenset({first.dispatch_id}))
    write = answering(
        holder,
        (first.dispatch_id, RETURNED),
        claims=[behind.dispatch_id],
        changed={"seen": 1},
        settled=True,
        rescued=True,
    )
    return Written(holder, write)


async def an_end(database: Database) -> Written:
    holder = await running_run(database)
    reply = calling(checkpoint=CheckpointKind.END)
    return Written(holder, lambda tx: write_end(tx, holder, reply, "done"))


WRITES = [a_reply, an_answer, an_end]
Make = Callable[[Database], Awaitable[Written]]


def one(look: psycopg.Connection, query: str, *values: Any) -> dict[str, Any]:
    with look.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query.encode(), values).fetchone()
    assert row is not None
    return row


async def read_run(database: Database, run_id: str) -> Any:
    async with database.read() as tx:
        return await load_run(tx, run_id)


# What each write writes


async def test_a_reply_is_saved_with_everything_that_belongs_to_it(
    database: Database, look: psycopg.Connection
):
    holder = await running_run(database)
    look.execute("UPDATE runs SET rescues = 2, next_rescue_at = now() WHERE run_id = %s", (holder.run_id,))
    look.execute("UPDATE session_state SET state = '{\"a\": 1}' WHERE session_id = %s", (holder.session_id,))
    started = new_call(0, Replay.SAFE, concurrency_group="g", arguments={"amount": 7})
    behind = new_call(1, concurrency_group="g", sequential=True)
    refused = new_call(2, answer=REFUSED, state=CallState.ANSWERED)
    notice = NoticeContent(text="Mind the gap.")
    reply = calling(
        started,
        behind,
        refused,
        claimed=frozenset({started.dispatch_id}),
        notice=notice,
        checkpoint=CheckpointKind.APPEND,
        usage=Usage(requests=1, input_tokens=5),
    )
    assert await database.statement(lambda tx: write_reply(tx, holder, reply))
    async with database.read() as tx:
        calls = await load_step_calls(tx, holder.session_id, 0)
        messages = await load_messages(tx, holder.session_id)
        run = await load_run(tx, holder.run_id)
    assert run is not None
    assert (run.step_index, run.steps_used, run.usage, run.rescues) == (0, 1, reply.usage, 0)
    assert [(row.seq, row.step_index, row.content) for row in messages] == [
        (1, 0, reply.content),
        (2, None, notice),
    ]
    assert [(call.dispatch_id, call.bodies, call.generation, call.state) for call in calls] == [
        (started.dispatch_id, 1, 1, CallState.OPEN),
        (behind.dispatch_id, 0, 0, CallState.OPEN),
        (refused.dispatch_id, 0, 0, CallState.ANSWERED),
    ]
    read = calls[0]
    assert (read.replay, read.arguments, read.concurrency_group) == (Replay.SAFE, {"amount": 7}, "g")
    assert (calls[1].sequential, calls[2].answer) == (True, REFUSED)
    mark = one(look, "SELECT * FROM checkpoints WHERE session_id = %s", holder.session_id)
    assert (mark["kind"], mark["step_index"], mark["message_seq"], mark["state"]) == (
        "append",
        0,
        2,
        {"a": 1},
    )
    assert mark["run_id"] == holder.run_id
    saved_by = "SELECT run_id, owner_run_id FROM calls WHERE dispatch_id = %s"
    assert one(look, saved_by, started.dispatch_id) == {
        "run_id": holder.run_id,
        "owner_run_id": holder.run_id,
    }


async def test_a_reply_without_calls_or_mark(database: Database, look: psycopg.Connection):
    holder = await running_run(database)
    assert await database.statement(lambda tx: write_reply(tx, holder, calling()))
    rows = session_rows(look, holder.session_id)
    assert [len(rows[table]) for table in ("messages", "calls", "answers", "checkpoints")] == [1, 0, 0, 0]


async def test_an_answer_is_written_with_its_state_its_claims_and_its_mark(
    database: Database, look: psycopg.Connection
):
    written = await an_answer(database)
    holder = written.holder
    look.execute(
        'UPDATE session_state SET state = \'{"kept": 1, "seen": 0}\' WHERE session_id = %s',
        (holder.session_id,),
    )
    look.execute("UPDATE runs SET rescues = 2, next_rescue_at = now() WHERE run_id = %s", (holder.run_id,))
    assert await database.statement(written.write)
    async with database.read() as tx:
        calls = await load_step_calls(tx, holder.session_id, 0)
    assert [(call.state, call.answer, call.bodies, call.generation) for call in calls] == [
        (CallState.ANSWERED, RETURNED, 1, 1),
        (CallState.OPEN, None, 1, 1),
    ]
    state = one(look, "SELECT state, version FROM session_state WHERE session_id = %s", holder.session_id)
    assert state == {"state": {"kept": 1, "seen": 1}, "version": 1}
    mark = one(look, "SELECT kind, state FROM checkpoints WHERE session_id = %s", holder.session_id)
    assert mark == {"kind": "step_commit", "state": {"kept": 1, "seen": 1}}
    run = one(look, "SELECT rescues, next_rescue_at FROM runs WHERE run_id = %s", holder.run_id)
    assert run == {"rescues": 0, "next_rescue_at": None}


async def test_an_answer_writes_no_more_than_it_says(database: Database, look: psycopg.Connection):
    call = new_call()
    holder = await saved_step(database, call)
    look.execute("UPDATE runs SET rescues = 2 WHERE run_id = %s", (holder.run_id,))
    before = session_rows(look, holder.session_id)
    assert await database.statement(answering(holder, (call.dispatch_id, RETURNED)))
    after = session_rows(look, holder.session_id)
    assert {table for table in after if after[table] != before[table]} == {"calls", "answers"}
    assert (await read_run(database, holder.run_id)).rescues == 2


async def test_doubt_spreads_in_the_same_statement(database: Database):
    first, behind = new_call(0, concurrency_group="g"), new_call(1, concurrency_group="g")
    holder = await saved_step(database, first, behind, claimed=frozenset({first.dispatch_id}))
    answers = [(first.dispatch_id, UNKNOWN), (behind.dispatch_id, UNKNOWN)]
    assert await database.statement(answering(holder, *answers, settled=True))
    async with database.read() as tx:
        calls = await load_step_calls(tx, holder.session_id, 0)
    assert [(call.answer, call.bodies) for call in calls] == [(UNKNOWN, 1), (UNKNOWN, 0)]


@pytest.mark.parametrize("output", ["done", {"total": 7}, None], ids=["text", "object", "null"])
async def test_an_end_completes_the_run_and_raises_the_fence(
    database: Database, look: psycopg.Connection, output: Any
):
    holder = await running_run(database)
    reply = Reply(
        0,
        1,
        Usage(requests=1),
        AssistantContent(parts=(TextPart(text="Done."),)),
        checkpoint=CheckpointKind.END,
    )
    assert await database.statement(lambda tx: write_end(tx, holder, reply, output))
    async with database.read() as tx:
        run, session = await load_run(tx, holder.run_id), await load_session(tx, holder.session_id)
        messages = await load_messages(tx, holder.session_id)
    assert run is not None
    assert session is not None
    assert (run.status, run.output, run.step_index, run.steps_used) == ("completed", output, 0, 1)
    assert run.ended_at is not None
    assert session.generation == 2
    assert [row.content for row in messages] == [reply.content]
    mark = one(look, "SELECT kind, message_seq FROM checkpoints WHERE session_id = %s", holder.session_id)
    assert mark == {"kind": "end", "message_seq": 1}


# The fence


@pytest.mark.parametrize("make", WRITES)
async def test_a_stale_generation_writes_nothing(database: Database, look: psycopg.Connection, make: Make):
    written = await make(database)
    look.execute(
        "UPDATE sessions SET generation = generation + 1 WHERE session_id = %s", (written.holder.session_id,)
    )
    before = session_rows(look, written.holder.session_id)
    assert not await database.statement(written.write)
    assert session_rows(look, written.holder.session_id) == before


@pytest.mark.parametrize("make", WRITES)
async def test_a_write_that_waited_while_the_fence_was_raised_writes_nothing(
    database: Database, look: psycopg.Connection, store_url: str, make: Make
):
    written = await make(database)
    session_id = written.holder.session_id
    with psycopg.connect(store_url, options="-csearch_path=helix") as other:
        other.execute("UPDATE sessions SET generation = generation + 1 WHERE session_id = %s", (session_id,))
        waiting = asyncio.create_task(database.statement(written.write))
        await poll_until_async(lambda: asyncio.to_thread(lambda: blocked(look) == 1))
        other.commit()
    before = session_rows(look, session_id)
    assert not await waiting
    assert session_rows(look, session_id) == before


@pytest.mark.parametrize("make", WRITES)
async def test_a_session_held_without_raising_the_fence_is_waited_for(
    database: Database, look: psycopg.Connection, store_url: str, make: Make
):
    written = await make(database)
    session_id = written.holder.session_id
    with psycopg.connect(store_url, options="-csearch_path=helix") as other:
        other.execute("SELECT 1 FROM sessions WHERE session_id = %s FOR NO KEY UPDATE", (session_id,))
        waiting = asyncio.create_task(database.statement(written.write))
        await poll_until_async(lambda: asyncio.to_thread(lambda: blocked(look) == 1))
        before = session_rows(look, session_id)
        other.commit()
    assert await waiting
    assert session_rows(look, session_id) != before


# The same write twice


@pytest.mark.parametrize("make", WRITES)
async def test_a_repeated_write_writes_nothing_more(database: Database, look: psycopg.Connection, make: Make):
    written = await make(database)
    assert await database.statement(written.write)
    before = session_rows(look, written.holder.session_id)
    held = await database.statement(written.write)
    assert held is (make is an_answer), "an answer is there already; a reply and an end are looked up"
    after = session_rows(look, written.holder.session_id)
    assert _without_versions(after) == _without_versions(before)


@pytest.mark.parametrize("make", WRITES)
async def test_the_same_write_twice_at_once_writes_once(
    database: Database, look: psycopg.Connection, store_url: str, make: Make
):
    """A statement whose connection was lost may still be waiting on the server when it is repeated."""
    written = await make(database)
    session_id = written.holder.session_id
    alone = await make(database)
    assert await database.statement(alone.write)
    with psycopg.connect(store_url, options="-csearch_path=helix") as other:
        other.execute("SELECT 1 FROM sessions WHERE session_id = %s FOR NO KEY UPDATE", (session_id,))
        both = [asyncio.create_task(database.statement(written.write)) for _ in range(2)]
        await poll_until_async(lambda: asyncio.to_thread(lambda: blocked(look) == 2))
        other.commit()
    held = sorted(await asyncio.gather(*both))
    assert held == ([True, True] if make is an_answer else [False, True])
    count = {table: len(rows) for table, rows in session_rows(look, session_id).items()}
    assert count == {table: len(rows) for table, rows in session_rows(look, alone.holder.session_id).items()}
    ledger = "SELECT max(bodies) AS bodies FROM calls WHERE session_id = %s"
    assert one(look, ledger, session_id)["bodies"] in (None, 1)
    state = "SELECT version FROM session_state WHERE session_id = %s"
    assert one(look, state, session_id)["version"] == (1 if make is an_answer else 0)


async def test_a_call_keeps_the_answer_that_came_first(database: Database, look: psycopg.Connection):
    call = new_call()
    holder = await saved_step(database, call)
    assert await database.statement(answering(holder, (call.dispatch_id, RETURNED)))
    assert await database.statement(answering(holder, (call.dispatch_id, UNKNOWN), changed={"late": 1}))
    async with database.read() as tx:
        (read,) = await load_step_calls(tx, holder.session_id, 0)
    assert read.answer == RETURNED
    state = one(look, "SELECT state FROM session_state WHERE session_id = %s", holder.session_id)
    assert state == {"state": {}}, "the state of a refused answer is refused with it"


async def test_a_claim_of_an_earlier_generation_is_counted_on(database: Database, look: psycopg.Connection):
    """A call behind another that ran in a generation before: its next body is its second."""
    first = new_call(0, Replay.SAFE, concurrency_group="g")
    behind = new_call(1, Replay.SAFE, concurrency_group="g")
    holder = await saved_step(database, first, behind)
    look.execute("UPDATE sessions SET generation = 2 WHERE session_id = %s", (holder.session_id,))
    later = Holder(holder.session_id, holder.run_id, 2)
    write = answering(later, (first.dispatch_id, RETURNED), claims=[behind.dispatch_id])
    for _ in range(2):
        assert await database.statement(write)
    row = one(look, "SELECT bodies, generation FROM calls WHERE dispatch_id = %s", behind.dispatch_id)
    assert row == {"bodies": 2, "generation": 2}


@pytest.mark.parametrize("step_index", [0, 2], ids=["the same step", "a step too far"])
async def test_only_the_next_step_is_saved(database: Database, look: psycopg.Connection, step_index: int):
    holder = await saved_step(database, new_call())
    before = session_rows(look, holder.session_id)
    reply = calling(new_call(), step_index=step_index)
    assert not await database.statement(lambda tx: write_reply(tx, holder, reply))
    after = session_rows(look, holder.session_id)
    assert _without_versions(after) == _without_versions(before)


def _without_versions(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """Rows without the transaction that wrote them last: the same values may be written again."""
    return {table: sorted(row[: row.rindex("}")] for row in found) for table, found in rows.items()}
