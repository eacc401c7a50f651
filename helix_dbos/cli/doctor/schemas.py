"""The two schemas: are their tables there, of the versions this package needs, and whose are they?"""

from __future__ import annotations

import importlib
from typing import Any, cast

from psycopg import sql
from pydantic import JsonValue

from helix_dbos.cli.doctor.finding import Finding, Level, fail, ok, warn
from helix_dbos.cli.doctor.server import Connection
from helix_dbos.settings import Settings
from helix_dbos.store.migration import head_revision

__all__ = ["look_at_app", "look_at_dbos", "look_at_schema"]

_MIGRATE = "run `helix-dbos migrate`"


async def _one(connection: Connection, query: sql.Composed) -> dict[str, Any] | None:
    return await (await connection.execute(query)).fetchone()


async def _has_table(connection: Connection, schema: str, table: str) -> bool:
    row = await _one(
        connection,
        sql.SQL("SELECT 1 AS there FROM pg_tables WHERE schemaname = {} AND tablename = {}").format(
            schema, table
        ),
    )
    return row is not None


async def look_at_dbos(connection: Connection, settings: Settings, *, embedded: bool) -> Finding:
    """Whether DBOS's tables are there and not older than the installed DBOS."""
    name, schema = "DBOS schema", settings.dbos_schema
    if not await _has_table(connection, schema, "dbos_migrations"):
        return _missing(name, schema, settings, embedded=embedded)
    row = await _one(
        connection, sql.SQL("SELECT version FROM {}.dbos_migrations").format(sql.Identifier(schema))
    )
    version, newest = int(row["version"]) if row else 0, _newest_dbos_migration(schema)
    data: JsonValue = {"version": version, "needed": newest}
    if newest is not None and version < newest:
        return fail(name, f"{schema} is at {version}, the installed DBOS needs {newest}", _MIGRATE, data=data)
    if newest is not None and version > newest:
        return warn(
            name, f"{schema} is at {version}, newer than the installed DBOS ({newest})", "upgrade", data=data
        )
    return ok(name, f"{schema} is at {version}", data=data)


def _newest_dbos_migration(schema: str) -> int | None:
    """The version that the installed DBOS would migrate to; None when it does not tell.

    DBOS 3.4 has no public way to ask, so this one may come to nothing in another version.
    """
    try:
        migrations = importlib.import_module("dbos._migration").get_dbos_migrations(schema, True, False)
        return len(cast("list[object]", migrations))
    except (ImportError, AttributeError, TypeError):
        return None


async def look_at_schema(connection: Connection, settings: Settings, *, embedded: bool) -> Finding:
    """Whether Helix's tables are of the version that this package needs."""
    name, schema, needed = "schema", settings.schema_name, head_revision()
    if not await _has_table(connection, schema, "schema_version"):
        return _missing(name, schema, settings, embedded=embedded)
    row = await _one(
        connection, sql.SQL("SELECT version_num FROM {}.schema_version").format(sql.Identifier(schema))
    )
    found = str(row["version_num"]) if row else "nothing"
    data: JsonValue = {"revision": found, "needed": needed}
    if found == needed:
        return ok(name, f"{schema} is at revision {found}", data=data)
    if found > needed:
        return fail(
            name,
            f"{schema} is at revision {found}, this version knows {needed}",
            "upgrade helix-dbos to the version that migrated it",
            data=data,
        )
    return fail(name, f"{schema} is at revision {found}, needed is {needed}", _MIGRATE, data=data)


def _missing(name: str, schema: str, settings: Settings, *, embedded: bool) -> Finding:
    found = f"{schema} does not exist yet"
    if embedded or settings.migrate == "apply":
        return ok(name, f"{found}; it is made at the first start")
    return fail(name, found, _MIGRATE)


async def look_at_app(connection: Connection, settings: Settings, expected: str | None) -> Finding:
    """Which app the schema belongs to, and whether that is the expected one."""
    row = await _one(
        connection,
        sql.SQL("SELECT application_name, dbos_schema FROM {}.engine").format(
            sql.Identifier(settings.schema_name)
        ),
    )
    if row is None:
        return ok("app", "no app has started on this schema yet")
    owner = str(row["application_name"])
    if expected is not None and owner != expected:
        return fail(
            "app",
            f"schema {settings.schema_name} belongs to {owner!r}, this app is {expected!r}",
            "set HELIX_SCHEMA to give this app a schema of its own",
            data=owner,
        )
    if row["dbos_schema"] != settings.dbos_schema:
        return Finding(
            "app",
            Level.FAIL,
            f"{owner!r} was started with DBOS schema {row['dbos_schema']}, now it is {settings.dbos_schema}",
            "set HELIX_DBOS_SCHEMA back, or turns that wait there are not found",
            data=owner,
        )
    return ok("app", f"the schema belongs to {owner!r}", data=owner)
