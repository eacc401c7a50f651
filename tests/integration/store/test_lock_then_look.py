"""Lock, then look, then write: why the lock is a statement of its own.

In READ COMMITTED each statement has its own snapshot. One that waits for a row lock sees that
row as it became, but everything else as it was before the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from helix_dbos.store.calls import load_open_calls
from helix_dbos.store.database import Database, Transaction
from helix_dbos.store.hot import Holder
from helix_dbos.store.runs import lock_and_load
from helix_dbos.store.sessions import lock_session
from tests.integration.store.store_rows import blocked, new_call, saved_step
from tests.support.waiting import poll_until_async

Look = Callable[[Transaction, Holder], Awaitable[Any]]

_LOCK = "SELECT 1 FROM sessions WHERE session_id = %s FOR NO KEY UPDATE"
_UNANSWERED = "SELECT count(*) AS n FROM calls WHERE session_id = %s AND state <> 'answered'"


@pytest.fixture
def other(store_url: str) -> Iterator[psycopg.Connection]:
    """Another transaction, which holds the session's lock."""
    with psycopg.connect(store_url, options="-csearch_path=helix") as connection:
        yield connection
        connection.rollback()


async def looked_after_waiting(
    database: Database, look: psycopg.Connection, other: psycopg.Connection, looks: Look, *, touch: bool
) -> Any:
    """What `looks` sees when its lock was waited for until another transaction had answered the call."""
    holder = await saved_step(database, new_call())
    other.execute(_LOCK.encode(), (holder.session_id,))
    waiting = asyncio.create_task(database.transaction(lambda tx: looks(tx, holder)))
    try:
        await poll_until_async(lambda: _is_blocked(look))
        other.execute(
            "UPDATE calls SET state = 'answered', answered_at = now() WHERE session_id = %s",
            (holder.session_id,),
        )
        other.execute("UPDATE runs SET rescues = 3 WHERE run_id = %s", (holder.run_id,))
        if touch:
            other.execute(
                "UPDATE sessions SET updated_at = now() WHERE session_id = %s", (holder.session_id,)
            )
        other.commit()
    except BaseException:
        waiting.cancel()
        raise
    return await waiting


async def _is_blocked(look: psycopg.Connection) -> bool:
    return blocked(look) == 1


async def _with_lock_session(tx: Transaction, holder: Holder) -> int:
    await lock_session(tx, holder.session_id)
    return len(await load_open_calls(tx, holder.session_id))


async def _in_one_round_trip(tx: Transaction, holder: Holder) -> int:
    async with tx.together():
        await tx.send(_LOCK, (holder.session_id,))
        looked = await tx.send(_UNANSWERED, (holder.session_id,))
    row = await looked.fetchone()
    return row["n"] if row else -1


async def _with_lock_and_load(tx: Transaction, holder: Holder) -> int:
    locked = await lock_and_load(tx, holder.run_id)
    assert locked is not None
    return 0 if locked[1].rescues == 3 else 1


@pytest.mark.parametrize("touch", [False, True], ids=["only locked", "locked and written"])
@pytest.mark.parametrize("looks", [_with_lock_session, _in_one_round_trip, _with_lock_and_load])
async def test_a_look_after_the_lock_sees_what_was_committed_during_the_wait(
    database: Database, look: psycopg.Connection, other: psycopg.Connection, looks: Look, touch: bool
):
    assert await looked_after_waiting(database, look, other, looks, touch=touch) == 0


async def _select_in_one(tx: Transaction, holder: Holder) -> int:
    row = await tx.one(
        "SELECT (SELECT count(*) FROM calls c WHERE c.session_id = s.session_id AND c.state <> 'answered')"
        " AS n FROM sessions s WHERE s.session_id = %s FOR NO KEY UPDATE",
        (holder.session_id,),
    )
    return row["n"] if row else -1


async def _update_in_one(tx: Transaction, holder: Holder) -> int:
    """Suspending in one statement: here it would suspend a run that has nothing to wait for."""
    row = await tx.one(
        "UPDATE sessions s SET generation = generation + 1 WHERE s.session_id = %s AND EXISTS"
        " (SELECT 1 FROM calls c WHERE c.session_id = s.session_id AND c.state <> 'answered')"
        " RETURNING 1 AS n",
        (holder.session_id,),
    )
    return row["n"] if row else 0


async def _lock_in_a_cte(tx: Transaction, holder: Holder) -> int:
    row = await tx.one(
        "WITH locked AS MATERIALIZED (SELECT session_id FROM sessions WHERE session_id = %s"
        " FOR NO KEY UPDATE) SELECT count(*) AS n FROM locked JOIN calls c USING (session_id)"
        " WHERE c.state <> 'answered'",
        (holder.session_id,),
    )
    return row["n"] if row else -1


@pytest.mark.parametrize("touch", [False, True], ids=["only locked", "locked and written"])
@pytest.mark.parametrize("looks", [_select_in_one, _update_in_one, _lock_in_a_cte])
async def test_a_single_statement_would_see_the_past(
    database: Database, look: psycopg.Connection, other: psycopg.Connection, looks: Look, touch: bool
):
    """Not how the store does it: the call is answered and committed, and this still counts it as open."""
    assert await looked_after_waiting(database, look, other, looks, touch=touch) == 1


async def test_a_session_locked_by_somebody_else_can_be_passed_over(
    database: Database, other: psycopg.Connection
):
    holder = await saved_step(database, new_call())
    other.execute(_LOCK.encode(), (holder.session_id,))

    async def work(tx: Transaction) -> bool:
        return await lock_and_load(tx, holder.run_id, unless_locked=True) is None

    assert await database.transaction(work)
    other.rollback()
    assert not await database.transaction(work)
