"""Where the demo plays: a throw-away embedded server, or schemas of its own in a given database."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from helix_dbos.cli.demo.stage import Stage
from helix_dbos.cli.demo.witness import Witness
from helix_dbos.cli.reach import check_reachable
from helix_dbos.ids import new_run_id
from helix_dbos.process import migrate_database
from helix_dbos.settings import Settings
from helix_dbos.source import DatabaseSource, find_database
from helix_dbos.store.database import connection_info

__all__ = ["Place", "demo_place"]


@dataclass(frozen=True)
class Place:
    """A migrated database with the performance's own schemas, and a folder for witness and logs.

    Args:
        left: How to look at what stays; None when nothing does.
    """

    stage: Stage
    folder: Path
    described: str
    left: str | None


@contextmanager
def demo_place(settings: Settings, model: str | None, *, keep: bool) -> Generator[Place]:
    """A fresh place, removed at the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="helix-demo-"))
    try:
        if os.geteuid() == 0:
            folder.chmod(0o755)  # root's server runs as another account, which has to pass
        with _source(settings, folder) as source:
            schema = f"helix_demo_{new_run_id()[-8:]}" if settings.database_url else "helix"
            direct = source.direct_url if source.direct_url != source.url else None
            stage = Stage(source.url, direct, schema, Witness(folder / "witness.jsonl"), model)
            with _schemas(source, stage, keep=keep):
                yield Place(stage, folder, source.described, _left(settings, stage, folder) if keep else None)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _source(settings: Settings, folder: Path) -> Generator[DatabaseSource]:
    if settings.database_url is not None:
        check_reachable(settings.database_url.get_secret_value())
        yield find_database(settings)
        return
    source = find_database(settings.model_copy(update={"data_dir": folder / "postgres"}))
    try:
        yield source
    finally:
        if source.server is not None:
            source.server.release()


@contextmanager
def _schemas(source: DatabaseSource, stage: Stage, *, keep: bool) -> Generator[None]:
    try:
        migrate_database(source, stage.settings)
        yield
    finally:
        if not keep and not source.embedded:
            _drop(stage)


def _drop(stage: Stage) -> None:
    conninfo = connection_info(stage.url, stage.schema, application="helix-dbos demo")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for schema in stage.schemas:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def _left(settings: Settings, stage: Stage, folder: Path) -> str:
    if settings.database_url is not None:
        return f"the schemas {', '.join(stage.schemas)} and the folder {folder}"
    look = f"HELIX_DATA_DIR={folder / 'postgres'} HELIX_DBOS_SCHEMA={stage.dbos_schema}"
    return f"the folder {folder}; look inside with: {look} helix-dbos doctor --start"
