"""The one row that names the app and the engine's queue, for callers that have only SQL."""

from __future__ import annotations

from helix_dbos.errors import StoreError
from helix_dbos.store.database import Transaction

__all__ = ["claim_schema"]


async def claim_schema(
    tx: Transaction, *, application: str, app_version: str, dbos_schema: str, turn_queue: str
) -> None:
    """Make this schema the named app's, once; later starts of the same app keep the row true.

    Raises:
        StoreError: The schema belongs to another app.
    """
    row = await tx.one(
        "INSERT INTO engine (application_name, app_version, dbos_schema, turn_queue)"
        " VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (only_row) DO UPDATE SET updated_at = now(), app_version = excluded.app_version,"
        " dbos_schema = excluded.dbos_schema, turn_queue = excluded.turn_queue"
        " WHERE engine.application_name = excluded.application_name RETURNING application_name",
        (application, app_version, dbos_schema, turn_queue),
    )
    if row is None:
        holder = await tx.one("SELECT application_name FROM engine")
        name = holder["application_name"] if holder else "unknown"
        raise StoreError(
            "This database schema belongs to another app.",
            code="store_schema_taken",
            detail=f"it is {name!r}'s, this is {application!r}; set HELIX_SCHEMA to give this app its own",
        )
