"""Runs the revisions of this folder inside one transaction, one process at a time.

The caller (`helix_dbos.store.migration`) passes an open connection and the schema; every
statement of a revision is unqualified and lands in that schema through the search path.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

# One constant key for all schemas: migrations are rare, and waiting for another app's is harmless.
MIGRATION_LOCK = 0x48_45_4C_49_58_4D_49_47

connection: sa.Connection = context.config.attributes["connection"]
schema: str = context.config.attributes["schema"]


def migrate() -> None:
    """Take the lock, then bring the schema to the wanted revision, all or nothing."""
    context.configure(connection=connection, version_table="schema_version", version_table_schema=schema)
    with context.begin_transaction():
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        connection.execute(sa.text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
        connection.execute(sa.text(f'SET LOCAL search_path TO "{schema}"'))
        # Only here does Alembic read the current revision, so a process that waited finds nothing to do.
        context.run_migrations()


migrate()
