"""The hot path to Postgres: a psycopg pool, transactions that are safe to repeat, reads.

The schema comes from each connection's search path, so statements are unqualified and two
apps in one database share nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from helix_dbos.errors import StoreError

__all__ = ["Database", "Row", "Transaction", "connection_info"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Row = DictRow
_Connection = AsyncConnection[DictRow]

_CONTENTION = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# Whatever the server's default is: *lock, then look* needs a new snapshot for each statement.
_READ_COMMITTED = "-cdefault_transaction_isolation=read\\ committed"
# The server's side of the keepalive: a machine that vanished lets go of its locks in half a minute.
_KEEPALIVE = "-ctcp_keepalives_idle=10 -ctcp_keepalives_interval=5 -ctcp_keepalives_count=3"
# Waiting for a connection, and for how long the pool tries to make one: short, because the pool
# doubles its pauses, and a second try begins with a first attempt.
_POOL_WAIT, _POOL_CONNECT = 5.0, 4.0
_LEAST_WAIT = 1.0
_OPEN_PATIENCE = 15.0


def connection_info(url: str, schema: str, *, application: str) -> str:
    """A libpq connection string for this URL: READ COMMITTED, the schema as its search path.

    SQLAlchemy's driver spelling (`postgresql+psycopg://`) is accepted too.
    """
    scheme, _, rest = url.partition("://")
    plain = conninfo_to_dict(f"{scheme.partition('+')[0]}://{rest}" if rest else url)
    given = str(plain.get("options") or "")
    options = " ".join(filter(None, (given, _READ_COMMITTED, _KEEPALIVE, f"-csearch_path={schema}")))
    keepalive = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    merged: dict[str, Any] = {**keepalive, **plain, "options": options, "application_name": application}
    return make_conninfo("", **merged)


class Transaction:
    """One open transaction: statements in, rows out. It neither begins nor commits."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def server_version(self) -> int:
        """The server's version as libpq writes it: 180006 for 18.6."""
        return self._connection.info.server_version

    async def execute(self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Run a statement for its effect."""
        await self._connection.execute(sql, values)

    async def many(self, sql: LiteralString, values: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values, in one round trip."""
        if values:
            async with self._connection.cursor() as cursor:
                await cursor.executemany(sql, values)

    async def one(self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()) -> Row | None:
        """The first row, or None."""
        cursor = await self._connection.execute(sql, values)
        return await cursor.fetchone()

    async def rows(self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Row]:
        """All rows."""
        cursor = await self._connection.execute(sql, values)
        return await cursor.fetchall()

    async def send(
        self, sql: LiteralString, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> AsyncCursor[DictRow]:
        """Send a statement without waiting for it; only useful inside `together`."""
        return await self._connection.execute(sql, values)

    @asynccontextmanager
    async def together(self) -> AsyncGenerator[None]:
        """Statements inside share round trips; each still sees its own snapshot, in order.

        Those of a transaction do so anyway: its pipeline is not entered twice, because entering
        and leaving each wait for the server.
        """
        if self._connection.info.pipeline_status is PipelineStatus.ON:
            yield
            return
        async with self._connection.pipeline():
            yield


class Database:
    """Transactions and reads on one schema of one database.

    Args:
        url: A PostgreSQL URL; never logged.
        patience_seconds: How long a transaction is tried again while the database is away.
    """

    def __init__(self, url: str, schema: str, *, pool_size: int, patience_seconds: float = 60.0) -> None:
        self.schema = schema
        self.patience_seconds = patience_seconds
        self._pool: AsyncConnectionPool[_Connection] = AsyncConnectionPool(
            connection_info(url, schema, application="helix-dbos"),
            connection_class=AsyncConnection[DictRow],
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 2},
            min_size=1,
            max_size=pool_size,
            timeout=_POOL_WAIT,
            reconnect_timeout=_POOL_CONNECT,
            open=False,
            name="helix",
        )
        self._renewed_at = -math.inf

    async def open(self) -> None:
        """Open the pool and prove that the database answers.

        Raises:
            StoreError: It does not, or it is older than PostgreSQL 14.
        """
        await self._pool.open()
        try:
            version = await self._repeat(self._alone, Transaction.server_version, _OPEN_PATIENCE)
        except StoreError as problem:
            await self._pool.close()
            raise StoreError(
                "The database cannot be reached.",
                detail=f"no connection within {_OPEN_PATIENCE:.0f} s; see `helix-dbos doctor`",
            ) from problem
        if version < 140000:
            await self._pool.close()
            raise StoreError(
                "The database is too old.",
                code="store_version_unsupported",
                detail=f"PostgreSQL 14 or newer is needed, this is {version // 10000}",
            )

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Transaction]:
        """Autocommitted statements for reading; nothing that must hold together.

        Raises:
            StoreError: The database is out of reach, or went away meanwhile. Nothing is repeated.
        """
        try:
            async with self._pool.connection() as connection:
                yield Transaction(connection)
        except _LOST as problem:
            await self._renew_pool(problem)
            raise _out_of_reach(problem) from problem

    async def transaction(
        self, work: Callable[[Transaction], Awaitable[T]], *, patience_seconds: float | None = None
    ) -> T:
        """Run `work` in one READ COMMITTED transaction and commit it.

        A deadlock is repeated at once, a lost connection after a pause: the commit may have
        happened, so **`work` must recognise its own earlier commit**.

        Raises:
            StoreError: The database stayed away longer than the patience.
        """
        return await self._repeat(self._in_transaction, work, patience_seconds)

    async def statement(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run the one statement in `work`, which commits by itself, or reads, with the same repeats.

        Raises:
            StoreError: The database stayed away longer than the patience.
        """
        return await self._repeat(self._alone, work, None)

    async def _repeat(
        self,
        attempt: Callable[[Callable[[Transaction], Awaitable[T]], float], Awaitable[T]],
        work: Callable[[Transaction], Awaitable[T]],
        patience_seconds: float | None,
    ) -> T:
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        deadline = asyncio.get_running_loop().time() + patience
        pause = _FIRST_PAUSE
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await attempt(work, min(max(left, _LEAST_WAIT), _POOL_WAIT))
            except _CONTENTION:
                await asyncio.sleep(random.uniform(0, 0.02))
            except _LOST as problem:
                await self._renew_pool(problem)
                closed = isinstance(problem, PoolClosed)
                if closed or asyncio.get_running_loop().time() + pause > deadline:
                    raise _out_of_reach(problem) from problem
                logger.warning(
                    "database_retry", extra={"event": "database_retry", "cause": type(problem).__name__}
                )
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _in_transaction(self, work: Callable[[Transaction], Awaitable[T]], wait: float) -> T:
        async with self._pool.connection(wait) as connection:
            try:
                # BEGIN and COMMIT travel with the statements beside them; `connection.transaction()`
                # would wait for the answer to each.
                async with connection.pipeline():
                    await connection.execute("BEGIN", prepare=False)
                    value = await work(Transaction(connection))
                    await connection.execute("COMMIT", prepare=False)
            except BaseException as problem:
                with suppress(psycopg.Error):
                    await connection.rollback()
                if isinstance(problem, psycopg.errors.PipelineAborted):
                    hidden = "work went on after a statement that had failed"
                    raise psycopg.errors.InFailedSqlTransaction(hidden) from problem
                raise
            return value

    async def _alone(self, work: Callable[[Transaction], Awaitable[T]], wait: float) -> T:
        async with self._pool.connection(wait) as connection:
            return await work(Transaction(connection))

    async def _renew_pool(self, problem: psycopg.Error) -> None:
        """After one connection broke, do not try the idle others one by one: most likely all did."""
        now = asyncio.get_running_loop().time()
        if _is_cut(problem) and now - self._renewed_at > 1.0:
            self._renewed_at = now
            await self._pool.drain()


def _is_cut(problem: psycopg.Error) -> bool:
    """Whether a connection broke: without a word from the server, or with its farewell (57P…)."""
    if isinstance(problem, PoolTimeout | PoolClosed):
        return False
    return problem.sqlstate is None or problem.sqlstate.startswith("57P")


def _out_of_reach(problem: psycopg.Error) -> StoreError:
    return StoreError("The database is out of reach.", detail=type(problem).__name__)
