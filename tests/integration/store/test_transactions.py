"""`Database`: what is repeated, what is not, what a lost acknowledgement does, and round trips."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from helix_dbos.core.calls import Answer
from helix_dbos.core.states import Origin, Outcome, Reason
from helix_dbos.errors import StoreError
from helix_dbos.store.calls import load_step_calls
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.hot import write_answers, write_reply
from helix_dbos.store.requests import insert_request, run_of_request
from tests.integration.store.store_rows import (
    RETURNED,
    blocked,
    calling,
    mint,
    new_call,
    new_session,
    queued_run,
    running_run,
    saved_step,
    session_rows,
)
from tests.support.proxy import COMMIT, DatabaseProxy, database_proxy
from tests.support.waiting import poll_until_async


@pytest.fixture
async def proxy(store_url: str) -> AsyncIterator[DatabaseProxy]:
    async with database_proxy(store_url) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: DatabaseProxy) -> AsyncIterator[Database]:
    """The store by way of the proxy."""
    opened = Database(proxy.url, "helix", pool_size=4)
    await opened.open()
    yield opened
    await opened.close()


def agents(look: psycopg.Connection, session_id: str) -> list[str]:
    rows = look.execute("SELECT agent FROM sessions WHERE session_id = %s", (session_id,))
    return [agent for (agent,) in rows.fetchall()]


async def insert_session(tx: Transaction, session_id: str) -> None:
    await tx.send("INSERT INTO sessions (session_id, agent) VALUES (%s, 'desk')", (session_id,))


async def test_what_work_did_is_committed_and_its_value_returned(
    database: Database, look: psycopg.Connection
):
    session_id = mint("session")

    async def work(tx: Transaction) -> str:
        await insert_session(tx, session_id)
        return "value"

    assert await database.transaction(work) == "value"
    assert agents(look, session_id) == ["desk"]


@pytest.mark.parametrize("failure", [ValueError("no"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_work_that_raises_is_rolled_back_and_not_repeated(
    database: Database, look: psycopg.Connection, failure: BaseException
):
    session_id, times = mint("session"), 0

    async def work(tx: Transaction) -> None:
        nonlocal times
        times += 1
        await insert_session(tx, session_id)
        await tx.one("SELECT 1")
        raise failure

    with pytest.raises(type(failure)):
        await database.transaction(work)
    assert (times, agents(look, session_id)) == (1, [])
    await new_session(database)


@pytest.mark.parametrize("where", ["inside together", "sent and never looked at", "before a look"])
async def test_a_refused_statement_fails_the_transaction_wherever_it_was_sent(
    database: Database, look: psycopg.Connection, where: str
):
    taken, fresh, times = await new_session(database), mint("session"), 0

    async def work(tx: Transaction) -> None:
        nonlocal times
        times += 1
        if where == "inside together":
            async with tx.together():
                await insert_session(tx, fresh)
                await insert_session(tx, taken)
                await insert_session(tx, mint("session"))
            return
        await insert_session(tx, fresh)
        await insert_session(tx, taken)
        await tx.many("INSERT INTO sessions (session_id, agent) VALUES (%s, 'desk')", [(mint("session"),)])
        if where == "before a look":
            await tx.one("SELECT 1")

    with pytest.raises(psycopg.errors.UniqueViolation):
        await database.transaction(work)
    assert (times, agents(look, fresh)) == (1, [])


async def test_a_deadlock_is_repeated(database: Database, look: psycopg.Connection):
    one, other = await new_session(database), await new_session(database)
    both_hold, attempts = asyncio.Barrier(2), 0

    async def crosswise(first: str, second: str) -> None:
        mine = 0

        async def work(tx: Transaction) -> None:
            nonlocal attempts, mine
            attempts, mine = attempts + 1, mine + 1
            raised = "UPDATE sessions SET generation = generation + 1 WHERE session_id = %s RETURNING 1"
            await tx.one(raised, (first,))
            if mine == 1:
                await both_hold.wait()
            await tx.one(raised, (second,))

        await database.transaction(work, patience_seconds=0)

    await asyncio.gather(crosswise(one, other), crosswise(other, one))
    rows = look.execute("SELECT generation FROM sessions WHERE session_id = ANY(%s)", ([one, other],))
    assert rows.fetchall() == [(2,), (2,)]
    assert attempts >= 3


async def test_a_serialization_failure_is_repeated(database: Database, look: psycopg.Connection):
    session_id, attempts = await new_session(database), 0

    async def work(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await tx.send("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await tx.one("SELECT generation FROM sessions WHERE session_id = %s", (session_id,))
        raised = "UPDATE sessions SET generation = generation + 1 WHERE session_id = %s"
        if attempts == 1:
            look.execute(raised, (session_id,))
        await tx.send(raised, (session_id,))

    await database.transaction(work, patience_seconds=0)
    rows = look.execute("SELECT generation FROM sessions WHERE session_id = %s", (session_id,))
    assert (attempts, rows.fetchall()) == (2, [(2,)])


async def test_a_connection_lost_in_the_middle_is_repeated(database: Database, look: psycopg.Connection):
    session_id, attempts = mint("session"), 0

    async def work(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await insert_session(tx, session_id)
        if attempts == 1:
            await tx.one("SELECT pg_terminate_backend(pg_backend_pid())")

    await database.transaction(work)
    assert (attempts, agents(look, session_id)) == (2, ["desk"])


async def test_a_commit_that_never_arrived_is_repeated(
    proxied: Database, proxy: DatabaseProxy, look: psycopg.Connection
):
    session_id, attempts = mint("session"), 0

    async def work(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        assert await tx.one("SELECT 1 FROM sessions WHERE session_id = %s", (session_id,)) is None
        await insert_session(tx, session_id)

    proxy.lose_request(COMMIT)
    await proxied.transaction(work)
    assert (attempts, agents(look, session_id)) == (2, ["desk"])


async def test_work_meets_its_own_commit_when_the_acknowledgement_is_lost(
    proxied: Database, proxy: DatabaseProxy
):
    session_id, run_id = await queued_run(proxied)
    seen: list[str | None] = []

    async def work(tx: Transaction) -> str:
        await tx.one("SELECT 1 FROM sessions WHERE session_id = %s FOR NO KEY UPDATE", (session_id,))
        seen.append(await run_of_request(tx, session_id, "key", "hash"))
        if seen[-1] is None:
            await insert_request(tx, session_id, "key", "hash", run_id)
        return run_id

    proxy.lose_reply_to(COMMIT)
    assert await proxied.transaction(work) == run_id
    assert seen == [None, run_id]


async def test_work_that_does_not_recognise_itself_does_its_work_twice(
    proxied: Database, proxy: DatabaseProxy, look: psycopg.Connection
):
    """Why every transaction must be repeatable: the one above without its look."""
    session_id = await new_session(proxied)
    proxy.lose_reply_to(COMMIT)
    await proxied.transaction(
        lambda tx: tx.execute(
            "UPDATE sessions SET generation = generation + 1 WHERE session_id = %s", (session_id,)
        )
    )
    rows = look.execute("SELECT generation FROM sessions WHERE session_id = %s", (session_id,))
    assert rows.fetchall() == [(2,)]


@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_a_hot_statement_is_repeated_and_counts_once(
    proxied: Database, proxy: DatabaseProxy, look: psycopg.Connection, lost: str
):
    behind = new_call(1, concurrency_group="g")
    first = new_call(0, concurrency_group="g")
    holder = await saved_step(proxied, first, behind, claimed=frozenset({first.dispatch_id}))
    lose = proxy.lose_reply_to if lost == "reply" else proxy.lose_request
    lose(b"new_answers AS")
    before = proxy.round_trips
    assert await proxied.statement(
        lambda tx: write_answers(
            tx,
            holder,
            step_index=0,
            answers=[(first.dispatch_id, RETURNED)],
            claims=[behind.dispatch_id],
            changed={"seen": 1},
            settled=False,
            rescued=False,
        )
    )
    assert proxy.round_trips > before + 1, "it was tried twice"
    async with proxied.read() as tx:
        calls = await load_step_calls(tx, holder.session_id, 0)
    assert [(call.bodies, call.answer) for call in calls] == [(1, RETURNED), (1, None)]
    rows = look.execute(
        "SELECT state, version FROM session_state WHERE session_id = %s", (holder.session_id,)
    )
    assert rows.fetchall() == [({"seen": 1}, 1)]


async def test_a_save_whose_acknowledgement_was_lost_says_that_nothing_more_was_written(
    proxied: Database, proxy: DatabaseProxy, look: psycopg.Connection
):
    holder = await running_run(proxied)
    reply = calling(new_call())
    proxy.lose_reply_to(b"new_calls AS")
    assert not await proxied.statement(lambda tx: write_reply(tx, holder, reply))
    rows = look.execute("SELECT step_index FROM runs WHERE run_id = %s", (holder.run_id,))
    assert rows.fetchall() == [(0,)]
    assert len(session_rows(look, holder.session_id)["messages"]) == 1


async def test_patience_has_an_end(proxied: Database, proxy: DatabaseProxy):
    proxy.refusing = True
    proxy.cut()
    started = time.monotonic()
    with pytest.raises(StoreError) as away:
        await proxied.transaction(lambda tx: tx.one("SELECT 1"), patience_seconds=0.3)
    assert away.value.code == "store_unavailable"
    assert time.monotonic() - started < 20
    assert "127.0.0.1" not in str(away.value)


async def test_a_database_that_comes_back_in_time_is_waited_for(proxied: Database, proxy: DatabaseProxy):
    proxy.refusing = True
    proxy.cut()
    attempts = 0

    async def work(tx: Transaction) -> Any:
        return await tx.one("SELECT 1 AS one")

    waiting = asyncio.create_task(proxied.transaction(work, patience_seconds=20))
    while attempts < 3:
        attempts += 1
        await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    proxy.refusing = False
    assert await waiting == {"one": 1}


async def test_after_an_outage_dead_connections_are_not_tried_one_by_one(
    proxied: Database, proxy: DatabaseProxy, caplog: pytest.LogCaptureFixture
):
    four, hold = asyncio.Barrier(4), "SELECT 1 AS one"

    async def together(tx: Transaction) -> None:
        await tx.one(hold)
        await four.wait()

    await asyncio.gather(*(proxied.transaction(together) for _ in range(4)))
    proxy.cut()
    assert await proxied.transaction(lambda tx: tx.one(hold)) == {"one": 1}
    retries = [record for record in caplog.records if record.message == "database_retry"]
    assert len(retries) == 1


async def test_a_closed_database_is_not_waited_for(store_url: str):
    closed = Database(store_url, "helix", pool_size=2)
    await closed.open()
    await closed.close()
    started = time.monotonic()
    with pytest.raises(StoreError):
        await closed.transaction(lambda tx: tx.one("SELECT 1"))
    assert time.monotonic() - started < 20


async def test_a_read_that_loses_its_connection_is_a_store_error(proxied: Database, proxy: DatabaseProxy):
    async with AsyncExitStack() as stack:
        tx = await stack.enter_async_context(proxied.read())
        await tx.one("SELECT 1")
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            await tx.one("SELECT 1")
    with pytest.raises(StoreError):  # noqa: PT012 - leaving the block raises, too
        async with proxied.read() as tx:
            proxy.cut()
            await tx.one("SELECT 1")
    async with proxied.read() as tx:
        assert await tx.one("SELECT 1 AS one") == {"one": 1}


@pytest.mark.parametrize("goes_on", [False, True], ids=["ends", "goes on"])
async def test_an_error_that_work_hides_is_not_taken_for_a_commit(
    database: Database, look: psycopg.Connection, goes_on: bool
):
    taken, fresh = await new_session(database), mint("session")

    async def work(tx: Transaction) -> None:
        await insert_session(tx, fresh)
        with suppress(psycopg.errors.UniqueViolation):
            await insert_session(tx, taken)
            await tx.one("SELECT 1")
        if goes_on:
            await insert_session(tx, mint("session"))

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        await database.transaction(work)
    assert agents(look, fresh) == []
    await new_session(database)


async def test_a_transaction_that_waits_for_a_lock_can_be_cancelled(
    database: Database, look: psycopg.Connection, store_url: str
):
    session_id = await new_session(database)
    lock = "SELECT 1 FROM sessions WHERE session_id = %s FOR NO KEY UPDATE"
    with psycopg.connect(store_url, options="-csearch_path=helix") as other:
        other.execute(lock, (session_id,))
        waiting = asyncio.create_task(database.transaction(lambda tx: tx.one(lock, (session_id,))))
        await poll_until_async(lambda: asyncio.to_thread(blocked, look))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert blocked(look) == 0
    await asyncio.gather(*(new_session(database) for _ in range(3)))


async def test_a_server_that_is_too_old_is_refused(proxy: DatabaseProxy):
    def older(data: bytes) -> bytes:
        return re.sub(rb"(server_version\x00)\d\d", rb"\g<1>13", data)

    proxy.rewrite_reply = older
    database = Database(proxy.url, "helix", pool_size=2)
    with pytest.raises(StoreError, match="PostgreSQL 14 or newer is needed, this is 13") as refused:
        await database.open()
    assert refused.value.code == "store_version_unsupported"


@pytest.mark.parametrize("default", ["repeatable read", "serializable"])
async def test_transactions_are_read_committed_whatever_the_servers_default_is(store_url: str, default: str):
    options = f"-cdefault_transaction_isolation={default}".replace(" ", "\\ ")
    stricter = make_conninfo(store_url, options=options)
    database = Database(stricter, "helix", pool_size=2)
    await database.open()
    show = "SHOW transaction_isolation"
    try:
        found = [await database.transaction(lambda tx: tx.one(show))]
        found.append(await database.statement(lambda tx: tx.one(show)))
        async with database.read() as tx:
            found.append(await tx.one(show))
    finally:
        await database.close()
    assert found == [{"transaction_isolation": "read committed"}] * 3


async def test_statements_together_share_round_trips(proxied: Database, proxy: DatabaseProxy):
    session_id = await new_session(proxied)
    update = "UPDATE sessions SET generation = generation + 1 WHERE session_id = %s"

    async def apart(tx: Transaction) -> None:
        for _ in range(6):
            await tx.send(update, (session_id,))

    async def together(tx: Transaction) -> None:
        async with tx.together():
            await apart(tx)

    async def trips(use: Any) -> int:
        before = proxy.round_trips
        async with proxied.read() as tx:
            await use(tx)
        return proxy.round_trips - before

    async def trips_of_transaction(use: Any) -> int:
        before = proxy.round_trips
        await proxied.transaction(use)
        return proxy.round_trips - before

    for _ in range(2):
        await trips(apart)  # so that everything is prepared
    assert await trips(apart) == 6
    assert await trips(together) == 1
    assert await trips_of_transaction(apart) == 1, "BEGIN and COMMIT travel with the statements"
    assert await trips_of_transaction(together) == 1


async def test_an_answer_of_many_rows_is_refused_as_a_whole(database: Database, look: psycopg.Connection):
    """`many` in a transaction: the second answer of a call takes the first one's siblings with it."""
    call, other = new_call(0), new_call(1)
    holder = await saved_step(database, call, other)
    unknown = Answer(Outcome.NOT_EXECUTED, Reason.OUTCOME_UNKNOWN, "?", Origin.STOP)

    async def twice(tx: Transaction) -> None:
        await tx.many(
            "INSERT INTO answers (dispatch_id, n, outcome, reason, result, origin, run_id, generation)"
            " VALUES (%s, %s, %s, %s, 'null', %s, %s, 1)",
            [
                (dispatch_id, n, unknown.outcome, unknown.reason, unknown.origin, holder.run_id)
                for n, dispatch_id in enumerate([other.dispatch_id, call.dispatch_id, call.dispatch_id], 1)
            ],
        )

    with pytest.raises(psycopg.errors.UniqueViolation, match="answers_one_current"):
        await database.transaction(twice)
    assert session_rows(look, holder.session_id)["answers"] == []
