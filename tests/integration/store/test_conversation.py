"""Messages, calls, answers, checkpoints, request keys and the app's own row."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from helix_dbos.core.calls import Answer
from helix_dbos.core.messages import (
    AssistantContent,
    CallPart,
    FilePart,
    NoticeContent,
    TextPart,
    ThinkingPart,
    UserContent,
    user_content,
)
from helix_dbos.core.states import (
    CallKind,
    CallState,
    CheckpointKind,
    Origin,
    Outcome,
    Reason,
    Replay,
    RunStatus,
)
from helix_dbos.errors import ConflictError, StoreError
from helix_dbos.store.calls import (
    claim_bodies,
    insert_answers,
    load_answers,
    load_calls_of_run,
    load_open_calls,
    load_step_calls,
    mark_answered,
    take_ownership,
)
from helix_dbos.store.checkpoints import insert_checkpoint
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.engine import claim_schema
from helix_dbos.store.hot import write_reply
from helix_dbos.store.messages import MessageContent, append_message, load_messages, message_seq
from helix_dbos.store.requests import insert_request, run_of_request
from helix_dbos.store.runs import end_run
from helix_dbos.store.sessions import lock_session
from tests.integration.store.store_rows import (
    RETURNED,
    calling,
    new_call,
    new_session,
    queued_run,
    running_run,
    saved_step,
)

CONTENTS: list[tuple[MessageContent, int | None]] = [
    (user_content("Hello, Jürgen 👋"), None),
    (
        UserContent(
            parts=(
                TextPart(text="See"),
                FilePart(media_type="image/png", url="https://example.org/a.png"),
                FilePart(media_type="text/plain", data="aGk="),
            )
        ),
        None,
    ),
    (
        AssistantContent(
            parts=(
                ThinkingPart(text="hm", details={"signature": "x"}),
                TextPart(text=""),
                CallPart(tool_call_id="a", tool_name="t", arguments={"deep": [{"n": None}]}),
                CallPart(tool_call_id="b", tool_name="t", arguments="{not json"),
            ),
            model="m",
            finish_reason="tool_call",
            details={"k": [1]},
        ),
        0,
    ),
    (AssistantContent(parts=()), 1),
    (NoticeContent(text="Not delivered."), None),
]


# Messages


async def test_messages_are_read_as_they_were_written_and_in_order(database: Database):
    session_id, run_id = await queued_run(database)

    async def work(tx: Transaction) -> None:
        for content, step_index in CONTENTS:
            await append_message(tx, session_id, run_id, content, step_index)

    await database.transaction(work)
    async with database.read() as tx:
        rows = await load_messages(tx, session_id)
        assert await message_seq(tx, session_id) == len(CONTENTS)
    assert [(row.content, row.step_index) for row in rows] == CONTENTS
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
    assert {row.run_id for row in rows} == {run_id}


async def test_a_superseded_message_is_not_read(database: Database, look: psycopg.Connection):
    session_id, run_id = await queued_run(database)

    async def work(tx: Transaction) -> None:
        for text in ("one", "two"):
            await append_message(tx, session_id, run_id, user_content(text))

    await database.transaction(work)
    look.execute(
        "UPDATE messages SET superseded_by = run_id WHERE session_id = %s AND seq = 1", (session_id,)
    )
    async with database.read() as tx:
        assert [row.seq for row in await load_messages(tx, session_id)] == [2]
        assert await message_seq(tx, session_id) == 2
        assert await message_seq(tx, "nobody") == 0


async def test_message_numbers_have_no_gap_under_load(database: Database, look: psycopg.Connection):
    """Twenty sessions and twenty writers to one session at once, a third of them rolled back."""
    shared, shared_run = await queued_run(database)
    alone = [await queued_run(database) for _ in range(20)]

    class ChangedMind(Exception):
        pass

    async def write(session_id: str, run_id: str, number: int) -> None:
        async def work(tx: Transaction) -> None:
            await lock_session(tx, session_id)
            for part in range(3):
                await append_message(tx, session_id, run_id, user_content(f"{number}.{part}"))
            if number % 3 == 2:
                raise ChangedMind

        try:
            await database.transaction(work)
        except ChangedMind:
            return

    writers = [write(shared, shared_run, number) for number in range(20)]
    writers += [write(*ids, 3 * round_) for ids in alone for round_ in range(2)]
    await asyncio.gather(*writers)
    numbers = "SELECT array_agg(seq ORDER BY seq) FROM messages WHERE session_id = %s"
    kept = sum(number % 3 != 2 for number in range(20))
    assert look.execute(numbers, (shared,)).fetchone() == (list(range(1, 3 * kept + 1)),)
    for session_id, _run_id in alone:
        assert look.execute(numbers, (session_id,)).fetchone() == ([1, 2, 3, 4, 5, 6],)
    async with database.read() as tx:
        contents = [row.content for row in await load_messages(tx, shared)]
    texts = [content.parts[0].text for content in contents if isinstance(content, UserContent)]
    assert [text.split(".")[1] for text in texts] == ["0", "1", "2"] * kept, "nobody wrote in between"


# Calls and answers


@pytest.mark.parametrize("kind", CallKind)
@pytest.mark.parametrize("replay", Replay)
async def test_a_call_is_read_as_it_was_saved(database: Database, kind: CallKind, replay: Replay):
    call = new_call(0, replay, kind=kind, arguments={"a": [1, {"b": None}]}, tool_call_id="provider's")
    holder = await saved_step(database, call)
    async with database.read() as tx:
        (read,) = await load_step_calls(tx, holder.session_id, 0)
    assert (read.bodies, read.generation) == (1, 1)
    assert (read.kind, read.replay, read.arguments) == (kind, replay, {"a": [1, {"b": None}]})
    assert (read.tool_call_id, read.tool_name, read.call_index) == ("provider's", call.tool_name, 0)


ANSWERS = [
    RETURNED,
    Answer(Outcome.RETURNED, None, None, Origin.BODY),
    Answer(Outcome.RETURNED, None, [1, "zwei", {"drei": 3.5}], Origin.CLIENT),
    *(Answer(Outcome.NOT_EXECUTED, reason, "text", Origin.RECOVERY) for reason in Reason),
    *(Answer(Outcome.RAISED, Reason.TOOL_ERROR, "text", origin) for origin in Origin),
]


async def test_every_answer_is_read_as_it_was_written(database: Database):
    calls = [new_call(index) for index in range(len(ANSWERS))]
    holder = await saved_step(database, *calls)
    given = {call.dispatch_id: answer for call, answer in zip(calls, ANSWERS, strict=True)}

    async def work(tx: Transaction) -> None:
        await insert_answers(tx, holder.run_id, 1, given.items())
        await mark_answered(tx, list(given))

    await database.transaction(work)
    async with database.read() as tx:
        read = await load_step_calls(tx, holder.session_id, 0)
        by_tool_call = await load_answers(tx, holder.session_id)
        assert await load_open_calls(tx, holder.session_id) == []
    assert [call.answer for call in read] == ANSWERS
    assert {call.state for call in read} == {CallState.ANSWERED}
    assert by_tool_call == {call.tool_call_id: given[call.dispatch_id] for call in calls}


async def test_a_second_answer_is_refused_until_the_first_is_superseded(
    database: Database, look: psycopg.Connection
):
    call = new_call()
    holder = await saved_step(database, call)

    async def answer(tx: Transaction, text: str) -> None:
        await insert_answers(
            tx, holder.run_id, 1, [(call.dispatch_id, Answer(Outcome.RETURNED, None, text, Origin.BODY))]
        )
        await mark_answered(tx, [call.dispatch_id])

    await database.transaction(lambda tx: answer(tx, "first"))
    with pytest.raises(psycopg.errors.UniqueViolation, match="answers_one_current"):
        await database.transaction(lambda tx: answer(tx, "second"))
    look.execute("UPDATE answers SET superseded_by = run_id WHERE dispatch_id = %s", (call.dispatch_id,))
    await database.transaction(lambda tx: answer(tx, "second"))
    async with database.read() as tx:
        (read,) = await load_step_calls(tx, holder.session_id, 0)
    assert read.answer is not None
    assert read.answer.result == "second"
    numbers = look.execute("SELECT n FROM answers WHERE dispatch_id = %s ORDER BY n", (call.dispatch_id,))
    assert numbers.fetchall() == [(1,), (2,)]


async def test_a_claim_counts_a_body_and_the_ledger_refuses_one_too_many(database: Database):
    safe, unsafe, other = new_call(0, Replay.SAFE), new_call(1), new_call(2)
    holder = await saved_step(database, safe, unsafe, other, claimed=frozenset())
    for generation in (1, 2, 3):
        ids = [safe.dispatch_id, unsafe.dispatch_id] if generation == 1 else [safe.dispatch_id]
        await database.transaction(lambda tx, ids=ids, g=generation: claim_bodies(tx, ids, g))
    await database.transaction(lambda tx: claim_bodies(tx, [], 3))
    for call, most in ((safe, 4), (unsafe, 2)):
        with pytest.raises(psycopg.errors.CheckViolation, match="calls_bodies"):
            await database.transaction(
                lambda tx, call=call, most=most: claim_bodies(tx, [call.dispatch_id], most)
            )
    async with database.read() as tx:
        read = await load_step_calls(tx, holder.session_id, 0)
    assert [(call.bodies, call.generation) for call in read] == [(3, 3), (1, 1), (0, 0)]


async def test_open_calls_come_in_order_and_answered_or_superseded_ones_do_not(
    database: Database, look: psycopg.Connection
):
    gone, late, early, answered = (new_call(index) for index in (0, 1, 0, 2))
    holder = await saved_step(database, early, answered)
    reply = calling(gone, late, step_index=1)
    assert await database.statement(lambda tx: write_reply(tx, holder, reply))
    await database.transaction(lambda tx: mark_answered(tx, [answered.dispatch_id]))
    look.execute("UPDATE calls SET superseded_by = run_id WHERE dispatch_id = %s", (gone.dispatch_id,))
    async with database.read() as tx:
        open_calls = await load_open_calls(tx, holder.session_id)
        of_run = await load_calls_of_run(tx, holder.run_id)
        assert await load_step_calls(tx, holder.session_id, 7) == []
    assert [call.dispatch_id for call in open_calls] == [early.dispatch_id, late.dispatch_id]
    assert [call.dispatch_id for call in of_run] == [
        early.dispatch_id,
        answered.dispatch_id,
        late.dispatch_id,
    ]


async def test_a_new_run_takes_what_is_unanswered_and_nothing_else(
    database: Database, look: psycopg.Connection
):
    left, answered, gone = new_call(0), new_call(1), new_call(2)
    holder = await saved_step(database, left, answered, gone)
    other = await saved_step(database, new_call())

    async def work(tx: Transaction) -> None:
        await insert_answers(tx, holder.run_id, 1, [(answered.dispatch_id, RETURNED)])
        await mark_answered(tx, [answered.dispatch_id])
        await end_run(tx, holder.run_id, status=RunStatus.FAILED, error={"code": "x", "error": "y"})

    await database.transaction(work)
    _, later = await queued_run(database, holder.session_id)
    look.execute("UPDATE calls SET superseded_by = %s WHERE dispatch_id = %s", (later, gone.dispatch_id))
    await database.transaction(lambda tx: take_ownership(tx, holder.session_id, later))
    owners = "SELECT owner_run_id FROM calls WHERE session_id = %s ORDER BY call_index"
    owned = look.execute(owners, (holder.session_id,)).fetchall()
    assert owned == [(later,), (holder.run_id,), (holder.run_id,)]
    assert look.execute(owners, (other.session_id,)).fetchall() == [(other.run_id,)]
    async with database.read() as tx:
        saved_by = [call.dispatch_id for call in await load_calls_of_run(tx, holder.run_id)]
    assert saved_by == [left.dispatch_id, answered.dispatch_id], "the saver stays the saver"


# Checkpoints


@pytest.mark.parametrize("kind", CheckpointKind)
async def test_a_checkpoint_sees_the_writes_of_its_own_transaction(
    database: Database, look: psycopg.Connection, kind: CheckpointKind
):
    holder = await running_run(database)

    async def work(tx: Transaction) -> None:
        async with tx.together():
            await append_message(tx, holder.session_id, holder.run_id, user_content("one"))
            await tx.send(
                "UPDATE session_state SET state = '{\"now\": true}' WHERE session_id = %s",
                (holder.session_id,),
            )
            await insert_checkpoint(tx, holder.session_id, holder.run_id, -1, kind)

    await database.transaction(work)
    rows = look.execute(
        "SELECT kind, step_index, message_seq, state, superseded_by FROM checkpoints WHERE session_id = %s",
        (holder.session_id,),
    )
    assert rows.fetchall() == [(kind.value, -1, 1, {"now": True}, None)]


# Request keys


async def test_a_request_key_finds_its_run_on_its_session_only(database: Database):
    session_id, run_id = await queued_run(database)
    other = await new_session(database)
    await database.transaction(lambda tx: insert_request(tx, session_id, "key", "hash", run_id))
    async with database.read() as tx:
        assert await run_of_request(tx, session_id, "key", "hash") == run_id
        assert await run_of_request(tx, session_id, "another", "hash") is None
        assert await run_of_request(tx, other, "key", "hash") is None


async def test_a_request_key_with_another_body_is_refused(database: Database):
    session_id, run_id = await queued_run(database)
    await database.transaction(lambda tx: insert_request(tx, session_id, "key", "hash", run_id))
    async with database.read() as tx:
        with pytest.raises(ConflictError) as refused:
            await run_of_request(tx, session_id, "key", "other hash")
    assert refused.value.code == "request_key_reused"
    assert run_id in (refused.value.detail or "")


async def test_a_request_key_is_used_once(database: Database):
    session_id, run_id = await queued_run(database)
    await database.transaction(lambda tx: insert_request(tx, session_id, "key", "hash", run_id))
    with pytest.raises(psycopg.errors.UniqueViolation, match="requests_pkey"):
        await database.transaction(lambda tx: insert_request(tx, session_id, "key", "hash", run_id))


# The app's own row


async def _claim(database: Database, application: str, version: str = "1", queue: str = "turns") -> None:
    await database.transaction(
        lambda tx: claim_schema(
            tx, application=application, app_version=version, dbos_schema="dbos", turn_queue=queue
        )
    )


async def test_a_schema_belongs_to_one_app(database: Database, look: psycopg.Connection):
    row = "SELECT application_name, app_version, dbos_schema, turn_queue FROM engine"
    try:
        await _claim(database, "shop")
        await _claim(database, "shop", version="2", queue="other")
        with pytest.raises(StoreError) as taken:
            await _claim(database, "desk", version="3")
        assert taken.value.code == "store_schema_taken"
        assert "'shop'" in (taken.value.detail or "")
        assert "HELIX_SCHEMA" in (taken.value.detail or "")
        assert look.execute(row).fetchall() == [("shop", "2", "dbos", "other")]
    finally:
        look.execute("DELETE FROM engine")


async def test_of_two_apps_that_start_at_once_one_gets_the_schema(
    database: Database, look: psycopg.Connection
):
    try:
        ends = await asyncio.gather(
            *(_claim(database, name) for name in ("shop", "desk", "shop", "desk")), return_exceptions=True
        )
        refused = [end for end in ends if isinstance(end, StoreError)]
        assert [end for end in ends if isinstance(end, BaseException)] == refused
        assert len(refused) == 2
        assert {end.code for end in refused} == {"store_schema_taken"}
        assert look.execute("SELECT count(*) FROM engine").fetchone() == (1,)
    finally:
        look.execute("DELETE FROM engine")
