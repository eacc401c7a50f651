"""The executor's life sign: an advisory lock on a connection of its own.

The lock only says who is alive. It decides nothing about truth: a process that lost its lock
and still runs is refused by the session's fence.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress

import psycopg
from psycopg import AsyncConnection

from helix_dbos.errors import StoreError
from helix_dbos.store.database import connection_info

__all__ = ["ExecutorLock", "lock_key"]

logger = logging.getLogger(__name__)

_PING_SECONDS = 1.0
_PING_TIMEOUT_SECONDS = 5.0


def lock_key(schema: str, executor_id: str) -> int:
    """A signed 64-bit key; a shorter one could make a dead executor look alive."""
    digest = hashlib.blake2b(f"{schema}/{executor_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class ExecutorLock:
    """Holds the lock while the process lives, and takes it again after a lost connection.

    Args:
        url: A direct URL: a transaction-mode pooler would hand the lock to somebody else.
    """

    def __init__(self, url: str, schema: str, executor_id: str) -> None:
        self.key = lock_key(schema, executor_id)
        self._conninfo = connection_info(url, schema, application="helix-dbos executor")
        self._connection: AsyncConnection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._held_since: float | None = None

    async def acquire(self) -> None:
        """Take the lock and keep it.

        Raises:
            StoreError: The database is away, or somebody holds this very key.
        """
        try:
            await self._take()
        except psycopg.Error as problem:
            raise StoreError("The database cannot be reached.", detail=type(problem).__name__) from problem
        self._keeper = asyncio.create_task(self._keep(), name="helix-executor-lock")

    def held_for(self) -> float:
        """Seconds since the lock was last taken; 0 while it is not held."""
        if self._held_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._held_since

    async def release(self) -> None:
        """Let go: from now on this executor counts as dead."""
        try:
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.wait([self._keeper])  # which raises our own cancellation, not the keeper's
        finally:
            await self._drop()

    async def _take(self) -> None:
        connection = await AsyncConnection.connect(self._conninfo, autocommit=True)
        try:
            cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (self.key,))
            row = await cursor.fetchone()
            if not row or not row[0]:
                raise StoreError(
                    "This executor's lock is held by another connection.", code="store_lock_taken"
                )
        except BaseException:
            await connection.close()
            raise
        self._connection, self._held_since = connection, asyncio.get_running_loop().time()

    async def _drop(self) -> None:
        connection, self._connection, self._held_since = self._connection, None, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            try:
                if self._connection is None:
                    await self._take()
                    logger.info("executor_lock_retaken", extra={"event": "executor_lock_retaken"})
                else:
                    # Not `wait_for`: in Python 3.11 it loses a cancellation that comes with the answer.
                    async with asyncio.timeout(_PING_TIMEOUT_SECONDS):
                        await self._connection.execute("SELECT 1")
            except (psycopg.Error, StoreError, TimeoutError, OSError) as problem:
                # The server may not have noticed yet that our old connection is gone; then the
                # key is still taken, and the next round tries again.
                logger.warning(
                    "executor_lock_lost",
                    extra={"event": "executor_lock_lost", "cause": type(problem).__name__},
                )
                await self._drop()
