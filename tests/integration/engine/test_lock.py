"""The executor's life sign: held while the process lives, gone with it, taken again when lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from sqlalchemy import make_url

from helix_dbos.engine import lock as lock_module
from helix_dbos.engine.lock import ExecutorLock, lock_key
from helix_dbos.errors import StoreError
from helix_dbos.ids import new_executor_id
from helix_dbos.store.database import Database
from helix_dbos.store.executors import (
    LIVE_EXECUTORS,
    dbos_id_is_held,
    insert_executor,
    is_live,
    mark_stopped,
)
from tests.integration.engine.engine_rows import Executors
from tests.support.waiting import poll_until, poll_until_async

HOLD = """
import asyncio, sys
from helix_dbos.engine.lock import ExecutorLock

async def main():
    await ExecutorLock(*sys.argv[1:]).acquire()
    print("held", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def quick_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_PING_SECONDS", 0.02)


@pytest.fixture
async def lock(engine_url: str) -> AsyncIterator[ExecutorLock]:
    """A lock of its own, not taken yet, released at the end."""
    lock = ExecutorLock(engine_url, "helix", new_executor_id())
    yield lock
    await lock.release()


async def register(database: Database, executor_id: str, **more: str) -> None:
    await database.transaction(
        lambda tx: insert_executor(
            tx,
            executor_id=executor_id,
            dbos_executor_id=more.get("dbos_id", executor_id),
            role="worker",
            version="1",
            agents=["desk", "clerk"],
            lock_key=lock_key("helix", executor_id),
            host=more.get("host", "here"),
            pid=1,
        )
    )


def live(look: psycopg.Connection) -> set[str]:
    rows = look.execute(f"SELECT executor_id FROM ({LIVE_EXECUTORS}) live".encode())
    return {executor_id for (executor_id,) in rows.fetchall()}


def holders(look: psycopg.Connection, key: int) -> list[int]:
    """The server processes that hold this key."""
    rows = look.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND classid::bigint = %s AND objid::bigint = %s",
        ((key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF),
    )
    return [pid for (pid,) in rows.fetchall()]


# Keys


def test_a_key_is_64_bit_signed_and_the_same_every_time():
    keys = [lock_key("helix", f"executor-{number}") for number in range(500)]
    assert len(set(keys)) == 500
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert {key < 0 for key in keys} == {False, True}
    assert any(abs(key) >= 2**62 for key in keys), "all 64 bits are used"
    assert lock_key("helix", "executor-0") == keys[0] == lock_key("helix", "executor-0")
    assert lock_key("other", "executor-0") != keys[0], "two apps share no key"


@pytest.mark.parametrize(
    "key", [0, 1, -1, 2**31, 2**32 - 1, 2**32, -(2**32), 2**63 - 1, -(2**63), 7 << 32, (-7 << 32) + 5]
)
def test_liveness_is_seen_for_every_key(look: psycopg.Connection, executors: Executors, key: int):
    executor_id = executors.add(key=key)
    assert live(look) == {executor_id}


def test_another_key_with_the_same_half_is_not_taken_for_it(look: psycopg.Connection, executors: Executors):
    key = (7 << 32) + 5
    executors.add(key=key, live=False)
    for other in (7 << 32, 5, (5 << 32) + 7, key + 1, key + (1 << 32)):
        executors.add(key=other)
    assert key not in {row[0] for row in look.execute(_LIVE_KEYS.encode()).fetchall()}
    assert len(live(look)) == 5


_LIVE_KEYS = (
    f"SELECT lock_key FROM executors WHERE executor_id IN (SELECT executor_id FROM ({LIVE_EXECUTORS}) l)"
)


def test_locks_of_other_kinds_and_databases_are_no_life_sign(
    look: psycopg.Connection, executors: Executors, engine_url: str, server_url: str
):
    key = (7 << 32) + 5
    executors.add(key=key, live=False)
    with psycopg.connect(engine_url) as pair, psycopg.connect(server_url) as elsewhere:
        pair.execute("SELECT pg_advisory_lock(7, 5)")
        elsewhere.execute("SELECT pg_advisory_lock(%s)", (key,))
        assert live(look) == set()


# Taking and giving back


@pytest.mark.parametrize("negative", [False, True])
async def test_an_executor_lives_while_its_lock_is_held(
    database: Database, look: psycopg.Connection, engine_url: str, negative: bool
):
    executor_id = next(
        each for each in iter(new_executor_id, None) if (lock_key("helix", each) < 0) is negative
    )
    await register(database, executor_id)
    lock = ExecutorLock(engine_url, "helix", executor_id)
    assert live(look) == set()
    assert lock.held_for() == 0
    await lock.acquire()
    try:
        assert live(look) == {executor_id}
        async with database.read() as tx:
            assert await is_live(tx, executor_id)
            assert await dbos_id_is_held(tx, executor_id)
            assert not await dbos_id_is_held(tx, "another")
        await poll_until_async(lambda: asyncio.sleep(0, lock.held_for() > 0.05))
    finally:
        await lock.release()
    await poll_until_async(lambda: asyncio.sleep(0, live(look) == set()))
    assert lock.held_for() == 0
    async with database.read() as tx:
        assert not await is_live(tx, executor_id)
    await lock.release()


async def test_release_ends_whatever_the_ping_is_doing(engine_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock_module, "_PING_SECONDS", 0.001)
    for number in range(40):
        lock = ExecutorLock(engine_url, "helix", new_executor_id())
        await lock.acquire()
        await asyncio.sleep(0.002 + number * 0.0001)  # a moment of its own; it waits for nothing
        releasing = asyncio.create_task(lock.release())
        done, _ = await asyncio.wait([releasing], timeout=10)
        assert done == {releasing}


async def test_a_release_that_is_cancelled_says_so_and_lets_go(lock: ExecutorLock, look: psycopg.Connection):
    await lock.acquire()
    releasing = asyncio.create_task(lock.release())
    await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    await poll_until_async(lambda: asyncio.sleep(0, holders(look, lock.key) == []))


async def test_a_second_holder_of_one_key_is_refused(lock: ExecutorLock, engine_url: str):
    await lock.acquire()
    executor_id = new_executor_id()
    second = ExecutorLock(engine_url, "helix", executor_id)
    second.key = lock.key
    with pytest.raises(StoreError) as taken:
        await second.acquire()
    assert taken.value.code == "store_lock_taken"
    assert second.held_for() == 0
    await second.release()
    await lock.release()
    await poll_until_async(lambda: _can_be_taken(second))
    await second.release()


async def _can_be_taken(lock: ExecutorLock) -> bool:
    try:
        await lock.acquire()
    except StoreError:
        return False
    return True


async def test_a_database_out_of_reach(server_url: str):
    nowhere = make_url(server_url).set(host="127.0.0.1", port=1, query={}, password="not-to-be-shown")
    lock = ExecutorLock(nowhere.render_as_string(hide_password=False), "helix", "executor")
    with pytest.raises(StoreError) as away:
        await lock.acquire()
    assert away.value.code == "store_unavailable"
    assert "not-to-be-shown" not in str(away.value)
    await lock.release()


# Losing it


async def test_a_lost_lock_is_taken_again_and_its_age_starts_anew(
    lock: ExecutorLock, look: psycopg.Connection
):
    await lock.acquire()
    (first,) = holders(look, lock.key)
    await poll_until_async(lambda: asyncio.sleep(0, lock.held_for() > 0.3))
    lost_at = asyncio.get_running_loop().time()
    look.execute("SELECT pg_terminate_backend(%s)", (first,))

    async def taken_again() -> bool:
        return holders(look, lock.key) not in ([], [first]) and lock.held_for() > 0

    await poll_until_async(taken_again)
    assert lock.held_for() <= asyncio.get_running_loop().time() - lost_at


async def test_a_lost_lock_is_not_held_until_it_is_taken_again(
    lock: ExecutorLock, look: psycopg.Connection, engine_url: str
):
    """As after a cut that the server has not noticed yet: the old connection holds the key still."""
    await lock.acquire()
    (first,) = holders(look, lock.key)
    with psycopg.connect(engine_url, autocommit=True) as old:
        waiting = asyncio.create_task(
            asyncio.to_thread(old.execute, "SELECT pg_advisory_lock(%s)", (lock.key,))
        )
        await poll_until_async(lambda: asyncio.sleep(0, _waiters(look) == 1))
        look.execute("SELECT pg_terminate_backend(%s)", (first,))
        await waiting
        await poll_until_async(lambda: asyncio.sleep(0, lock.held_for() == 0))
        assert holders(look, lock.key) == [old.info.backend_pid]
    await poll_until_async(lambda: asyncio.sleep(0, lock.held_for() > 0))
    assert len(holders(look, lock.key)) == 1


def _waiters(look: psycopg.Connection) -> int:
    row = look.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()
    return int(row[0]) if row else 0


async def test_a_lock_released_while_it_is_lost_stays_released(lock: ExecutorLock, look: psycopg.Connection):
    await lock.acquire()
    look.execute("SELECT pg_terminate_backend(%s)", (holders(look, lock.key)[0],))
    await lock.release()
    assert lock.held_for() == 0
    await poll_until_async(lambda: asyncio.sleep(0, holders(look, lock.key) == []))


@pytest.fixture
def holding(engine_url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds its lock, and its executor id."""
    executor_id = new_executor_id()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, engine_url, "helix", executor_id], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process, executor_id
    finally:
        process.kill()
        process.communicate()


async def test_the_lock_of_a_killed_process_goes_with_it(
    database: Database, look: psycopg.Connection, holding: tuple[subprocess.Popen[str], str]
):
    process, executor_id = holding
    await register(database, executor_id)
    assert live(look) == {executor_id}
    process.send_signal(signal.SIGKILL)
    poll_until(lambda: live(look) == set(), seconds=5)


# Executor rows


async def test_a_process_is_registered_once(database: Database, look: psycopg.Connection):
    executor_id = new_executor_id()
    await register(database, executor_id, host="first")
    await register(database, executor_id, host="second")
    rows = look.execute("SELECT host, agents, stopped_at FROM executors").fetchall()
    assert rows == [("first", ["desk", "clerk"], None)]


async def test_a_dbos_id_is_held_by_a_live_process_only(
    database: Database, look: psycopg.Connection, executors: Executors
):
    executors.add(dbos_id="pod-0", live=False)
    async with database.read() as tx:
        assert not await dbos_id_is_held(tx, "pod-0")
        executors.add(dbos_id="pod-0")
        assert await dbos_id_is_held(tx, "pod-0")


async def test_a_process_that_stops_in_order_is_dead_at_once(
    database: Database, look: psycopg.Connection, executors: Executors
):
    one, other = executors.add(), executors.add()
    await database.transaction(lambda tx: mark_stopped(tx, one))
    assert live(look) == {other}
