"""The names of DBOS that this package reads and calls by SQL, against the installed DBOS.

`engine/rows.py` reads one table and `engine/enqueue.py` calls one function. An upgrade of DBOS
that renames any of it fails here, not in production.
"""

from __future__ import annotations

import inspect
import re

import psycopg
from dbos._schemas.system_database import SystemSchema
from dbos._sys_db import WorkflowStatusString

from helix_dbos.engine import enqueue, rows

_COLUMN = re.compile(r"\bw\.([a-z_]+)")
_ARGUMENT = re.compile(r"\b([a-z_]+) =>")

TYPES = {
    "workflow_uuid": "text",
    "status": "text",
    "name": "text",
    "executor_id": "text",
    "application_version": "text",
    "application_name": "text",
    "created_at": "bigint",
    "started_at_epoch_ms": "bigint",
}


def test_rows_reads_these_columns_and_no_others():
    assert set(_COLUMN.findall(inspect.getsource(rows))) == TYPES.keys()


def test_dbos_declares_them():
    assert SystemSchema.workflow_status.name == "workflow_status"
    assert TYPES.keys() <= set(SystemSchema.workflow_status.columns.keys())


def test_the_migrated_table_has_them(look: psycopg.Connection):
    found = look.execute(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'dbos' AND table_name = 'workflow_status' AND column_name = ANY(%s)",
        (list(TYPES),),
    )
    assert dict(found.fetchall()) == TYPES


def test_the_statuses_that_rows_names_exist():
    named = set(re.findall(r"'([A-Z_]{4,})'", inspect.getsource(rows)))
    assert named == {"PENDING", "ENQUEUED", "DELAYED"}
    assert named <= {status.value for status in WorkflowStatusString}


def test_the_sql_function_takes_the_arguments_that_enqueue_gives(look: psycopg.Connection):
    given = set(_ARGUMENT.findall(inspect.getsource(enqueue)))
    signatures = look.execute(
        "SELECT p.proargnames FROM pg_proc p WHERE p.proname = 'enqueue_workflow'"
        " AND p.pronamespace = 'dbos'::regnamespace"
    ).fetchall()
    assert len(signatures) == 1
    assert given <= set(signatures[0][0])
    assert given == {
        "workflow_name",
        "queue_name",
        "positional_args",
        "workflow_id",
        "app_version",
        "priority",
        "application_name",
        "delay_until_epoch_ms",
    }
