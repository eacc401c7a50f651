"""The tables as SQLAlchemy sees them, for cold reads and to be compared with the migrations.

The migrations make the tables; nothing here does. Every name and every constraint equals the
migrated one, which `tests/migration/test_tables_agree.py` pins. No schema is baked in: the
search path decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql.naming import conv

from helix_dbos.core.states import (
    MAX_BODIES,
    OPEN_RUN,
    CallKind,
    CallState,
    CheckpointKind,
    MessageKind,
    Origin,
    Outcome,
    Reason,
    Replay,
    RunStatus,
)

__all__ = [
    "answers",
    "calls",
    "checkpoints",
    "engine",
    "executors",
    "messages",
    "metadata",
    "requests",
    "runs",
    "session_counters",
    "session_state",
    "sessions",
]

# The names Postgres gives to constraints that a CREATE TABLE leaves unnamed.
metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def _in(column: str, values: Iterable[StrEnum | str]) -> str:
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


def _check(column: str, rule: str) -> sa.CheckConstraint:
    """A rule about one column, under the name that Postgres gives it."""
    return sa.CheckConstraint(rule, name=column)


def _rule(name: str, rule: str) -> sa.CheckConstraint:
    """A rule about a row, under the name that the migration gives it."""
    return sa.CheckConstraint(rule, name=conv(name))


def _text(name: str, *, nullable: bool = False, **more: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable, **more)


def _jsonb(name: str, *, nullable: bool = False, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, JSONB, nullable=nullable, server_default=default)


def _number(name: str, kind: type[sa.Integer], default: int | None = None) -> sa.Column[int]:
    text = None if default is None else sa.text(str(default))
    return sa.Column(name, kind, nullable=False, server_default=text)


def _time(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True))


def _time_now(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now())


def _of_session(*, primary_key: bool = False) -> sa.Column[str]:
    owner = sa.ForeignKey("sessions.session_id", ondelete="CASCADE")
    return sa.Column("session_id", sa.Text, owner, nullable=False, primary_key=primary_key)


def _of_run(name: str = "run_id", *, nullable: bool = False, ondelete: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text, sa.ForeignKey("runs.run_id", ondelete=ondelete), nullable=nullable)


_OPEN = _in("status", [status for status in RunStatus if status in OPEN_RUN])
_NOT_SUPERSEDED = "superseded_by IS NULL"

sessions = sa.Table(
    "sessions",
    metadata,
    _text("session_id", primary_key=True),
    _text("agent"),
    _number("generation", sa.BigInteger, 0),
    sa.Column(
        "current_run_id",
        sa.Text,
        sa.ForeignKey(
            "runs.run_id",
            name=conv("sessions_current_run"),
            use_alter=True,
            deferrable=True,
            initially="DEFERRED",
        ),
    ),
    _text("user_id", nullable=True),
    _jsonb("metadata", default="{}"),
    _time_now("created_at"),
    _time_now("updated_at"),
    _check("session_id", "session_id <> '' AND length(session_id) <= 256"),
    _check("generation", "generation >= 0"),
    _check("metadata", "jsonb_typeof(metadata) = 'object'"),
)

session_state = sa.Table(
    "session_state",
    metadata,
    _of_session(primary_key=True),
    _jsonb("state", default="{}"),
    _number("version", sa.BigInteger, 0),
    _check("state", "jsonb_typeof(state) = 'object'"),
    _check("version", "version >= 0"),
)

session_counters = sa.Table(
    "session_counters",
    metadata,
    _of_session(primary_key=True),
    _number("message_seq", sa.BigInteger, 0),
    _check("message_seq", "message_seq >= 0"),
)

runs = sa.Table(
    "runs",
    metadata,
    _text("run_id", primary_key=True),
    _of_session(),
    _text("entry"),
    _text("status"),
    _number("generation", sa.BigInteger, 0),
    _text("workflow_id", unique=True),
    _number("stretch_no", sa.Integer, 1),
    _number("rescues", sa.Integer, 0),
    _time("next_rescue_at"),
    _text("executor_id", nullable=True),
    _number("step_index", sa.Integer),
    _number("steps_used", sa.Integer, 0),
    _text("queue"),
    _number("priority", sa.Integer),
    _jsonb("output", nullable=True),
    _jsonb("error", nullable=True),
    _jsonb("usage", default="{}"),
    _time_now("created_at"),
    _time_now("queued_at"),
    _time("started_at"),
    _time("ended_at"),
    _check("entry", _in("entry", ["turn"])),
    _check("status", _in("status", RunStatus)),
    _check("generation", "generation >= 0"),
    _check("stretch_no", "stretch_no >= 1"),
    _check("rescues", "rescues >= 0"),
    _check("step_index", "step_index >= -1"),
    _check("steps_used", "steps_used >= 0"),
    _check("priority", "priority >= 1"),
    _check("usage", "jsonb_typeof(usage) = 'object'"),
    _rule("runs_ended", f"(ended_at IS NULL) = ({_OPEN})"),
    _rule("runs_error", f"(error IS NOT NULL) = (status = '{RunStatus.FAILED}')"),
    _rule("runs_output", f"output IS NULL OR status = '{RunStatus.COMPLETED}'"),
    _rule("runs_executor", f"executor_id IS NOT NULL OR status <> '{RunStatus.RUNNING}'"),
    sa.Index("runs_one_open_per_session", "session_id", unique=True, postgresql_where=sa.text(_OPEN)),
    sa.Index("runs_session", "session_id", "created_at"),
    sa.Index(
        "runs_to_sweep",
        "queued_at",
        postgresql_where=sa.text(_in("status", [RunStatus.QUEUED, RunStatus.RUNNING])),
    ),
)

requests = sa.Table(
    "requests",
    metadata,
    _of_session(primary_key=True),
    _text("request_key", primary_key=True),
    _text("body_hash"),
    _of_run(),
    _time_now("created_at"),
    _check("request_key", "request_key <> '' AND length(request_key) <= 256"),
)

messages = sa.Table(
    "messages",
    metadata,
    _of_session(primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    _of_run(),
    sa.Column("step_index", sa.Integer),
    _text("kind"),
    _jsonb("content"),
    _of_run("superseded_by", nullable=True),
    _time_now("created_at"),
    _check("seq", "seq >= 1"),
    _check("step_index", "step_index >= 0"),
    _check("kind", _in("kind", MessageKind)),
    _check("content", "jsonb_typeof(content) = 'object'"),
    _rule("messages_step", f"(kind = '{MessageKind.ASSISTANT}') = (step_index IS NOT NULL)"),
    sa.Index(
        "messages_one_reply_per_step",
        "session_id",
        "step_index",
        unique=True,
        postgresql_where=sa.text(f"kind = '{MessageKind.ASSISTANT}' AND {_NOT_SUPERSEDED}"),
    ),
)

calls = sa.Table(
    "calls",
    metadata,
    _text("dispatch_id", primary_key=True),
    _of_session(),
    _of_run(),
    _of_run("owner_run_id"),
    _number("step_index", sa.Integer),
    _number("call_index", sa.Integer),
    _text("tool_call_id"),
    _text("tool_name"),
    _jsonb("arguments"),
    _text("kind"),
    _text("replay"),
    _text("concurrency_group", nullable=True),
    sa.Column("sequential", sa.Boolean, nullable=False, server_default=sa.false()),
    _number("generation", sa.BigInteger, 0),
    _number("bodies", sa.Integer, 0),
    _text("state"),
    _of_run("superseded_by", nullable=True),
    _time_now("created_at"),
    _time("answered_at"),
    _check("step_index", "step_index >= 0"),
    _check("call_index", "call_index >= 0"),
    _check("arguments", "jsonb_typeof(arguments) = 'object'"),
    _check("kind", _in("kind", CallKind)),
    _check("replay", _in("replay", Replay)),
    _check("generation", "generation >= 0"),
    _check("state", _in("state", CallState)),
    _rule("calls_claim", "(bodies = 0) = (generation = 0)"),
    _rule(
        "calls_bodies",
        f"bodies BETWEEN 0 AND CASE replay WHEN '{Replay.UNSAFE}' THEN 1 ELSE {MAX_BODIES} END",
    ),
    _rule("calls_answered", f"(state = '{CallState.ANSWERED}') = (answered_at IS NOT NULL)"),
    sa.UniqueConstraint("session_id", "tool_call_id", name=conv("calls_tool_call_id")),
    sa.Index(
        "calls_place",
        "session_id",
        "step_index",
        "call_index",
        unique=True,
        postgresql_where=sa.text(_NOT_SUPERSEDED),
    ),
    sa.Index(
        "calls_unanswered",
        "session_id",
        postgresql_where=sa.text(f"state <> '{CallState.ANSWERED}' AND {_NOT_SUPERSEDED}"),
    ),
)

answers = sa.Table(
    "answers",
    metadata,
    sa.Column(
        "dispatch_id", sa.Text, sa.ForeignKey("calls.dispatch_id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("n", sa.Integer, primary_key=True),
    _text("outcome"),
    _text("reason", nullable=True),
    _jsonb("result"),
    _text("origin"),
    _of_run(ondelete="CASCADE"),
    _number("generation", sa.BigInteger),
    _of_run("superseded_by", nullable=True, ondelete="CASCADE"),
    _time_now("created_at"),
    _check("n", "n >= 1"),
    _check("outcome", _in("outcome", Outcome)),
    _check("reason", _in("reason", Reason)),
    _check("origin", _in("origin", Origin)),
    _check("generation", "generation >= 0"),
    _rule("answers_reason", f"(reason IS NULL) = (outcome = '{Outcome.RETURNED}')"),
    sa.Index("answers_one_current", "dispatch_id", unique=True, postgresql_where=sa.text(_NOT_SUPERSEDED)),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    _text("checkpoint_id", primary_key=True),
    _of_session(),
    _of_run(),
    _number("step_index", sa.Integer),
    _text("kind"),
    _number("message_seq", sa.BigInteger),
    _jsonb("state"),
    _of_run("superseded_by", nullable=True),
    _time_now("created_at"),
    _check("step_index", "step_index >= -1"),
    _check("kind", _in("kind", CheckpointKind)),
    _check("message_seq", "message_seq >= 0"),
    _check("state", "jsonb_typeof(state) = 'object'"),
    sa.Index(
        "checkpoints_one_of_a_kind",
        "run_id",
        "step_index",
        "kind",
        unique=True,
        postgresql_where=sa.text(_NOT_SUPERSEDED),
    ),
    sa.Index("checkpoints_session", "session_id", "created_at"),
)

executors = sa.Table(
    "executors",
    metadata,
    _text("executor_id", primary_key=True),
    _text("dbos_executor_id"),
    _text("role"),
    _text("version"),
    sa.Column("agents", ARRAY(sa.Text), nullable=False),
    sa.Column("lock_key", sa.BigInteger, nullable=False, unique=True),
    _text("host"),
    _number("pid", sa.Integer),
    _time_now("started_at"),
    _time("stopped_at"),
    _check("role", _in("role", ["worker", "api"])),
    sa.Index("executors_by_dbos_id", "dbos_executor_id", postgresql_where=sa.text("stopped_at IS NULL")),
)

engine = sa.Table(
    "engine",
    metadata,
    sa.Column("only_row", sa.Boolean, primary_key=True, server_default=sa.true()),
    _text("application_name"),
    _text("app_version"),
    _text("dbos_schema"),
    _text("turn_queue"),
    _time_now("updated_at"),
    _check("only_row", "only_row"),
)
