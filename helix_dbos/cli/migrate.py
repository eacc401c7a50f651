"""`helix-dbos migrate`: bring a database to the versions that this package needs."""

from __future__ import annotations

from typing import Annotated

import psycopg
import typer
from sqlalchemy.exc import DBAPIError

from helix_dbos.cli.console import load_settings, reported, to_stdout
from helix_dbos.cli.logs import configure_logging
from helix_dbos.cli.reach import check_reachable
from helix_dbos.cli.target import load_target
from helix_dbos.errors import StoreError
from helix_dbos.process import migrate_database
from helix_dbos.settings import Settings
from helix_dbos.source import DatabaseSource, find_database, require_url
from helix_dbos.store.migration import current_revision

__all__ = ["migrate"]


def migrate(
    target: Annotated[
        str | None,
        typer.Argument(help="Use the settings of this app (module:attribute).", show_default=False),
    ] = None,
) -> None:
    """Create or update the tables of DBOS and Helix in the database of HELIX_DATABASE_URL.

    Running it again changes nothing. An embedded database migrates itself when it is started.
    """
    with reported():
        configure_logging("WARNING")
        settings = load_target(target).settings if target else load_settings()
        check_reachable(require_url(settings, "migrate"))
        source = find_database(settings)
        before = current_revision(source.url, settings.schema_name)
        _apply(source, settings)
        after = current_revision(source.url, settings.schema_name)
        change = f"is at {after} already" if before == after else f"{before or 'was missing'} -> {after}"
        console = to_stdout()
        console.print(source.described, markup=False)
        console.print(f"  schema {settings.schema_name}: {change}", markup=False)
        console.print(f"  schema {settings.dbos_schema}: DBOS's tables are ready", markup=False)


def _apply(source: DatabaseSource, settings: Settings) -> None:
    try:
        migrate_database(source, settings)
    except (DBAPIError, psycopg.Error) as problem:
        cause = problem.orig if isinstance(problem, DBAPIError) else problem
        if isinstance(cause, psycopg.errors.InsufficientPrivilege):
            raise StoreError(
                "The database's user may not create what is needed.",
                code="store_permission_denied",
                detail=f"{source.described}: grant CREATE on the database, or migrate as its owner",
            ) from None
        raise StoreError(
            "The migration failed and was rolled back.",
            code="store_migration_failed",
            detail=f"{source.described}: {type(cause).__name__}",
        ) from problem
