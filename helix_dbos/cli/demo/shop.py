"""The shop: the outside world of the demo, in a schema of its own.

It knows nothing of Helix. Paying twice or mailing twice is possible here, as it is at a bank; only
the ledger recognises a repetition, by the key it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import dict_row
from pydantic import JsonValue

from helix_dbos.settings import Settings
from helix_dbos.source import find_database
from helix_dbos.store.database import connection_info

__all__ = ["Shop", "open_shop"]

_TABLES = """
CREATE TABLE IF NOT EXISTS refunds (order_id text, cents integer, at timestamptz DEFAULT now());
CREATE TABLE IF NOT EXISTS receipts (order_id text, at timestamptz DEFAULT now());
CREATE TABLE IF NOT EXISTS notices (order_id text, at timestamptz DEFAULT now());
CREATE TABLE IF NOT EXISTS preferences (name text PRIMARY KEY, value text);
CREATE TABLE IF NOT EXISTS ledger (key text PRIMARY KEY, order_id text, cents integer);
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """The shop's tables, each effect a transaction of its own.

    Args:
        conninfo: How to reach them; never shown.
    """

    conninfo: str

    async def pay_back(self, order_id: str, cents: int) -> None:
        """Pay money back; asked twice, it pays twice."""
        await self._do("INSERT INTO refunds (order_id, cents) VALUES (%s, %s)", order_id, cents)

    async def mail_receipt(self, order_id: str) -> None:
        """Mail a receipt; asked twice, it mails twice."""
        await self._do("INSERT INTO receipts (order_id) VALUES (%s)", order_id)

    async def notify_finance(self, order_id: str) -> None:
        """Tell the finance team; asked twice, it tells them twice."""
        await self._do("INSERT INTO notices (order_id) VALUES (%s)", order_id)

    async def set_preference(self, name: str, value: str) -> None:
        """Set a preference; asked twice, the same is set."""
        await self._do(
            "INSERT INTO preferences VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name,
            value,
        )

    async def write_ledger(self, key: str, order_id: str, cents: int) -> None:
        """Write a line; one with the same key is written once."""
        await self._do(
            "INSERT INTO ledger VALUES (%s, %s, %s) ON CONFLICT (key) DO NOTHING", key, order_id, cents
        )

    async def look_up(self, order_id: str) -> dict[str, JsonValue]:
        """What has happened to an order so far."""
        async with self._connection() as connection:
            cursor = await connection.execute(
                "SELECT (SELECT sum(cents) FROM refunds WHERE order_id = %(id)s)::int AS refunded_cents,"
                " (SELECT count(*) FROM refunds WHERE order_id = %(id)s) AS refunds,"
                " (SELECT count(*) FROM receipts WHERE order_id = %(id)s) AS receipts,"
                " (SELECT count(*) FROM notices WHERE order_id = %(id)s) AS notices,"
                " (SELECT count(*) FROM ledger WHERE order_id = %(id)s) AS ledger_lines",
                {"id": order_id},
            )
            row = await cursor.fetchone()
        return {"order_id": order_id, **(row or {})}

    async def _do(self, statement: LiteralString, *values: object) -> None:
        async with self._connection() as connection:
            await connection.execute(statement, values)

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection[dict[str, Any]]]:
        # One connection per effect keeps the demo plain; a real tool would use a pool.
        connection = await AsyncConnection[dict[str, Any]].connect(
            self.conninfo, autocommit=True, row_factory=dict_row
        )
        async with connection:
            yield connection


@asynccontextmanager
async def open_shop(settings: Settings, schema: str) -> AsyncGenerator[Shop]:
    """The shop in the app's own database, its tables made when missing."""
    source = await asyncio.to_thread(find_database, settings)
    try:
        conninfo = connection_info(source.url, schema, application="refund-desk shop")
        await asyncio.to_thread(_make_tables, conninfo, schema)
        yield Shop(conninfo)
    finally:
        if source.server is not None:
            await asyncio.to_thread(source.server.release)


def _make_tables(conninfo: str, schema: str) -> None:
    with psycopg.connect(conninfo) as connection:
        # Two workers may start at the same moment, and IF NOT EXISTS alone is not safe then.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (schema,))
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute(_TABLES)
