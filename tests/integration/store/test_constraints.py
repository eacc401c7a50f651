"""The database itself refuses every state that must not be, whatever the code above it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NOBODY = Jsonb({})

# One legal row of each table, besides those that `connection` begins with.
LEGAL: dict[str, dict[str, Any]] = {
    "sessions": {"session_id": "new", "agent": "desk"},
    "session_state": {"session_id": "bare"},
    "session_counters": {"session_id": "bare"},
    "runs": {
        "run_id": "new",
        "session_id": "bare",
        "entry": "turn",
        "status": "queued",
        "workflow_id": "helix.turn:new:1",
        "step_index": -1,
        "queue": "turns",
        "priority": 1,
    },
    "requests": {"session_id": "s", "request_key": "new", "body_hash": "h", "run_id": "open"},
    "messages": {"session_id": "s", "seq": 3, "run_id": "open", "kind": "user", "content": NOBODY},
    "calls": {
        "dispatch_id": "new",
        "session_id": "s",
        "run_id": "open",
        "owner_run_id": "open",
        "step_index": 1,
        "call_index": 0,
        "tool_call_id": "new",
        "tool_name": "charge",
        "arguments": NOBODY,
        "kind": "local",
        "replay": "unsafe",
        "state": "open",
    },
    "answers": {
        "dispatch_id": "unanswered",
        "n": 1,
        "outcome": "returned",
        "result": Jsonb(None),
        "origin": "body",
        "run_id": "open",
        "generation": 1,
    },
    "checkpoints": {
        "checkpoint_id": "new",
        "session_id": "s",
        "run_id": "open",
        "step_index": 1,
        "kind": "append",
        "message_seq": 2,
        "state": NOBODY,
    },
    "executors": {
        "executor_id": "new",
        "dbos_executor_id": "new",
        "role": "worker",
        "version": "1",
        "agents": ["desk"],
        "lock_key": 2,
        "host": "here",
        "pid": 1,
    },
    "engine": {"application_name": "shop", "app_version": "1", "dbos_schema": "dbos", "turn_queue": "turns"},
}

COMPLETED = {"status": "completed", "ended_at": NOW}
LIST = Jsonb([])
LONG = "x" * 257
SAFE = {"replay": "safe", "generation": 1}

# What each constraint is for: its name, then changes that make the legal row an illegal one.
ILLEGAL: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "sessions_session_id_check": [("sessions", {"session_id": ""}), ("sessions", {"session_id": LONG})],
    "sessions_generation_check": [("sessions", {"generation": -1})],
    "sessions_metadata_check": [("sessions", {"metadata": LIST})],
    "session_state_state_check": [("session_state", {"state": LIST})],
    "session_state_version_check": [("session_state", {"version": -1})],
    "session_counters_message_seq_check": [("session_counters", {"message_seq": -1})],
    "runs_entry_check": [("runs", {"entry": "resumed"})],
    "runs_status_check": [("runs", {"status": "stopped", "ended_at": NOW})],
    "runs_generation_check": [("runs", {"generation": -1})],
    "runs_stretch_no_check": [("runs", {"stretch_no": 0})],
    "runs_rescues_check": [("runs", {"rescues": -1})],
    "runs_step_index_check": [("runs", {"step_index": -2})],
    "runs_steps_used_check": [("runs", {"steps_used": -1})],
    "runs_priority_check": [("runs", {"priority": 0})],
    "runs_usage_check": [("runs", {"usage": LIST})],
    "runs_ended": [
        ("runs", {"ended_at": NOW}),
        ("runs", {"status": "suspended", "ended_at": NOW}),
        ("runs", {"status": "completed"}),
        ("runs", {"status": "interrupted"}),
        ("runs", {"status": "superseded"}),
        ("runs", {"status": "failed", "error": NOBODY}),
    ],
    "runs_error": [
        ("runs", {"status": "failed", "ended_at": NOW}),
        ("runs", {"error": NOBODY}),
        ("runs", COMPLETED | {"error": NOBODY}),
    ],
    "runs_output": [
        ("runs", {"output": NOBODY}),
        ("runs", {"status": "interrupted", "ended_at": NOW, "output": LIST}),
    ],
    "runs_executor": [("runs", {"status": "running"})],
    "runs_workflow_id_key": [("runs", {"workflow_id": "helix.turn:open:1"})],
    "runs_one_open_per_session": [
        ("runs", {"session_id": "s"}),
        ("runs", {"session_id": "s", "status": "suspended"}),
        ("runs", {"session_id": "s", "status": "running", "executor_id": "e"}),
    ],
    "requests_request_key_check": [("requests", {"request_key": ""}), ("requests", {"request_key": LONG})],
    "messages_seq_check": [("messages", {"seq": 0})],
    "messages_step_index_check": [("messages", {"kind": "assistant", "step_index": -1})],
    "messages_kind_check": [("messages", {"kind": "tool"})],
    "messages_content_check": [("messages", {"content": LIST})],
    "messages_step": [("messages", {"kind": "assistant"}), ("messages", {"step_index": 1})],
    "messages_one_reply_per_step": [("messages", {"kind": "assistant", "step_index": 0})],
    "calls_step_index_check": [("calls", {"step_index": -1})],
    "calls_call_index_check": [("calls", {"call_index": -1})],
    "calls_arguments_check": [("calls", {"arguments": LIST})],
    "calls_kind_check": [("calls", {"kind": "http"})],
    "calls_replay_check": [("calls", {"replay": "sometimes"})],
    "calls_generation_check": [("calls", {"bodies": 1, "generation": -1})],
    "calls_state_check": [("calls", {"state": "running"})],
    "calls_claim": [
        ("calls", {"bodies": 1}),
        ("calls", {"generation": 1}),
        ("calls", {"state": "waiting", "generation": 1}),
    ],
    "calls_bodies": [
        ("calls", {"bodies": 2, "generation": 1}),
        ("calls", SAFE | {"bodies": 4}),
        ("calls", SAFE | {"bodies": 4, "replay": "transactional"}),
        ("calls", SAFE | {"bodies": 4, "replay": "verified"}),
        ("calls", SAFE | {"bodies": -1}),
    ],
    "calls_answered": [("calls", {"state": "answered"}), ("calls", {"answered_at": NOW})],
    "calls_tool_call_id": [("calls", {"tool_call_id": "answered"})],
    "calls_place": [("calls", {"step_index": 0, "call_index": 0})],
    "answers_n_check": [("answers", {"n": 0})],
    "answers_outcome_check": [("answers", {"outcome": "unknown", "reason": "tool_error"})],
    "answers_reason_check": [("answers", {"outcome": "raised", "reason": "bad luck"})],
    "answers_origin_check": [("answers", {"origin": "nowhere"})],
    "answers_generation_check": [("answers", {"generation": -1})],
    "answers_reason": [
        ("answers", {"reason": "tool_error"}),
        ("answers", {"outcome": "raised"}),
        ("answers", {"outcome": "not_executed"}),
    ],
    "answers_one_current": [("answers", {"dispatch_id": "answered", "n": 2})],
    "checkpoints_step_index_check": [("checkpoints", {"step_index": -2})],
    "checkpoints_kind_check": [("checkpoints", {"kind": "commit"})],
    "checkpoints_message_seq_check": [("checkpoints", {"message_seq": -1})],
    "checkpoints_state_check": [("checkpoints", {"state": LIST})],
    "checkpoints_one_of_a_kind": [("checkpoints", {"step_index": 0})],
    "executors_role_check": [("executors", {"role": "sweeper"})],
    "executors_lock_key_key": [("executors", {"lock_key": 1})],
    "engine_only_row_check": [("engine", {"only_row": False})],
}

# Legal states that look close to an illegal one.
ALSO_LEGAL: dict[str, tuple[str, dict[str, Any]]] = {
    "an ended run beside the open one": ("runs", COMPLETED | {"session_id": "s"}),
    "a completed run whose output is null": ("runs", COMPLETED | {"output": Jsonb(None)}),
    "a failed run": ("runs", {"status": "failed", "ended_at": NOW, "error": NOBODY}),
    "a superseded reply of the same step": (
        "messages",
        {"kind": "assistant", "step_index": 0, "superseded_by": "open"},
    ),
    "a superseded call in the same place": ("calls", {"step_index": 0, "superseded_by": "open"}),
    "an unsafe call with its one body": ("calls", {"bodies": 1, "generation": 7}),
    "a safe call with three bodies": ("calls", SAFE | {"bodies": 3}),
    "a superseded answer": ("answers", {"dispatch_id": "answered", "n": 2, "superseded_by": "open"}),
    "a superseded checkpoint": ("checkpoints", {"step_index": 0, "superseded_by": "open"}),
    "the suspension of the same step": ("checkpoints", {"step_index": 0, "kind": "suspension"}),
}


def insert(connection: psycopg.Connection, table: str, row: Mapping[str, Any]) -> None:
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(sql.Placeholder() * len(row)),
    )
    connection.execute(statement, list(row.values()))


@pytest.fixture(scope="module")
def filled_url(store_url: str) -> str:
    """A database with one row or more in every table."""
    with psycopg.connect(store_url, options="-csearch_path=helix") as connection:
        for session_id in ("s", "bare", "filled"):
            insert(connection, "sessions", LEGAL["sessions"] | {"session_id": session_id})
        insert(connection, "session_state", {"session_id": "filled"})
        insert(connection, "session_counters", {"session_id": "filled"})
        run = {"run_id": "open", "session_id": "s", "workflow_id": "helix.turn:open:1"}
        insert(connection, "runs", LEGAL["runs"] | run)
        connection.execute("UPDATE sessions SET current_run_id = 'open' WHERE session_id = 's'")
        insert(connection, "requests", LEGAL["requests"] | {"request_key": "used"})
        insert(connection, "messages", LEGAL["messages"] | {"seq": 1})
        reply = {"seq": 2, "kind": "assistant", "step_index": 0}
        insert(connection, "messages", LEGAL["messages"] | reply)
        answered = {"state": "answered", "answered_at": NOW, "bodies": 1, "generation": 1}
        for index, (name, state) in enumerate({"answered": answered, "unanswered": {}}.items()):
            names = {"dispatch_id": name, "tool_call_id": name, "step_index": 0, "call_index": index}
            insert(connection, "calls", LEGAL["calls"] | names | state)
        insert(connection, "answers", LEGAL["answers"] | {"dispatch_id": "answered"})
        insert(connection, "checkpoints", LEGAL["checkpoints"] | {"checkpoint_id": "c", "step_index": 0})
        insert(connection, "executors", LEGAL["executors"] | {"executor_id": "e", "lock_key": 1})
    return store_url


@pytest.fixture
def connection(filled_url: str) -> Iterator[psycopg.Connection]:
    """A transaction on the filled database, rolled back at the end."""
    with psycopg.connect(filled_url, options="-csearch_path=helix") as connection:
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        yield connection
        connection.rollback()


CASES = [(name, table, changes) for name, cases in ILLEGAL.items() for table, changes in cases]


@pytest.mark.parametrize("table", LEGAL)
def test_the_legal_row_is_legal(connection: psycopg.Connection, table: str):
    insert(connection, table, LEGAL[table])


@pytest.mark.parametrize("state", ALSO_LEGAL)
def test_a_state_that_only_looks_illegal(connection: psycopg.Connection, state: str):
    table, changes = ALSO_LEGAL[state]
    insert(connection, table, LEGAL[table] | changes)


@pytest.mark.parametrize(
    ("constraint", "table", "changes"),
    CASES,
    ids=[f"{name}-{number}" for number, (name, _table, _changes) in enumerate(CASES)],
)
def test_an_illegal_state_is_refused(
    connection: psycopg.Connection, constraint: str, table: str, changes: dict[str, Any]
):
    with pytest.raises(psycopg.errors.IntegrityError) as refused:
        insert(connection, table, LEGAL[table] | changes)
    assert refused.value.diag.constraint_name == constraint


def test_every_constraint_has_its_illegal_state(connection: psycopg.Connection):
    rows = connection.execute(
        "SELECT conname FROM pg_constraint"
        " WHERE contype IN ('c', 'u') AND connamespace = 'helix'::regnamespace"
        " UNION SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indisunique AND NOT i.indisprimary AND c.relnamespace = 'helix'::regnamespace"
    )
    assert {name for (name,) in rows} == ILLEGAL.keys()


def test_every_row_has_an_owner_that_exists(connection: psycopg.Connection):
    keys = connection.execute(
        "SELECT conname, conrelid::regclass::text, attname FROM pg_constraint"
        " JOIN pg_attribute ON attrelid = conrelid AND attnum = conkey[1]"
        " WHERE contype = 'f' AND connamespace = 'helix'::regnamespace"
    ).fetchall()
    assert len(keys) >= 19
    for name, table, column in keys:
        update = sql.SQL("UPDATE {} SET {} = 'nowhere'").format(sql.Identifier(table), sql.Identifier(column))
        with pytest.raises(psycopg.errors.ForeignKeyViolation) as refused, connection.transaction():
            connection.execute(update)
        assert refused.value.diag.constraint_name == name


@pytest.mark.parametrize("table", LEGAL)
def test_a_row_exists_once(connection: psycopg.Connection, table: str):
    if table == "engine":
        insert(connection, "engine", LEGAL["engine"])
    twice = sql.SQL("INSERT INTO {0} SELECT * FROM {0} LIMIT 1").format(sql.Identifier(table))
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        connection.execute(twice)
    assert refused.value.diag.constraint_name == f"{table}_pkey"


def test_a_session_may_name_a_run_that_comes_later_in_its_transaction(filled_url: str):
    run = LEGAL["runs"] | {"session_id": "early", "run_id": "early", "workflow_id": "helix.turn:early:1"}
    row = LEGAL["sessions"] | {"session_id": "early", "current_run_id": "early"}
    with psycopg.connect(filled_url, options="-csearch_path=helix") as connection:
        insert(connection, "sessions", row)
        insert(connection, "runs", run)
    with psycopg.connect(filled_url, options="-csearch_path=helix") as connection:
        insert(connection, "sessions", row | {"session_id": "never", "current_run_id": "never"})
        with pytest.raises(psycopg.errors.ForeignKeyViolation) as refused:
            connection.commit()
    assert refused.value.diag.constraint_name == "sessions_current_run"


def test_deleting_a_session_deletes_all_of_it(connection: psycopg.Connection):
    for table in ("messages", "calls", "answers", "checkpoints"):
        connection.execute(sql.SQL("UPDATE {} SET superseded_by = 'open'").format(sql.Identifier(table)))
    connection.execute("DELETE FROM sessions")
    for table in LEGAL.keys() - {"executors", "engine"}:
        row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
        assert row == (0,), table
