"""The database server: can it be reached, is it new enough, does it agree about the time?"""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from helix_dbos.cli.doctor.finding import Finding, fail, ok, warn
from helix_dbos.cli.reach import bounded_conninfo, check_url, refusal
from helix_dbos.errors import RequestError
from helix_dbos.source import DatabaseSource

__all__ = ["Connection", "connect", "look_at_clock", "look_at_direct_url", "look_at_version"]

Connection = AsyncConnection[dict[str, Any]]

OLDEST_SERVER = 14
_SKEW_SECONDS = 2.0


async def connect(source: DatabaseSource, schema: str) -> tuple[Connection | None, Finding]:
    """An autocommitting connection, or the reason why there is none."""
    try:
        connection = await _open(source.url, schema)
    except RequestError as problem:
        return None, fail("database", problem.error, problem.detail or "")
    except psycopg.Error as problem:
        return None, fail(
            "database",
            f"{source.described} cannot be reached: {refusal(problem)}",
            "check HELIX_DATABASE_URL and the server",
        )
    return connection, ok("database", source.described)


async def _open(url: str, schema: str) -> Connection:
    check_url(url)
    return await AsyncConnection[dict[str, Any]].connect(
        bounded_conninfo(url, schema), autocommit=True, row_factory=dict_row
    )


async def look_at_direct_url(source: DatabaseSource, schema: str) -> list[Finding]:
    """Whether the URL for the executor's lock works too; nothing when it is the same one."""
    if source.direct_url == source.url:
        return []
    try:
        await (await _open(source.direct_url, schema)).close()
    except (psycopg.Error, RequestError) as problem:
        why = refusal(problem) if isinstance(problem, psycopg.Error) else problem.error
        return [fail("direct database", f"cannot be reached: {why}", "check HELIX_DIRECT_DATABASE_URL")]
    return [ok("direct database", "reached, past any pooler")]


def look_at_version(connection: Connection) -> Finding:
    """PostgreSQL 14 is the oldest that will do."""
    number = connection.info.server_version
    version = f"PostgreSQL {number // 10_000}.{number % 10_000}"
    if number // 10_000 < OLDEST_SERVER:
        return fail("server version", version, f"upgrade the server to PostgreSQL {OLDEST_SERVER} or newer")
    return ok("server version", version, data=number)


async def look_at_clock(connection: Connection) -> Finding:
    """How far this machine's clock and the server's are apart."""
    before = time.time()
    cursor = await connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
    row = await cursor.fetchone()
    after = time.time()
    assert row is not None
    skew = float(row["now"]) - (before + after) / 2
    uncertain = (after - before) / 2
    found = f"the server is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) - uncertain > _SKEW_SECONDS:
        return warn(
            "clocks",
            found,
            "set both clocks by NTP: delayed work starts early or late by as much",
            data=round(skew, 3),
        )
    return ok("clocks", f"they agree within {abs(skew) + uncertain:.1f} s", data=round(skew, 3))
