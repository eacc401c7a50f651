"""Every list of values in a CHECK constraint is a StrEnum of the core, member for member."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import psycopg
import pytest

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
from helix_dbos.settings import Role
from tests.support.databases import with_database

# A constraint with a list of values that is missing here fails `test_every_value_list_is_known`.
VALUES: dict[str, set[str]] = {
    "runs_entry_check": {"turn"},
    "runs_status_check": set(RunStatus),
    "runs_ended": set(OPEN_RUN),
    "messages_kind_check": set(MessageKind),
    "calls_kind_check": set(CallKind),
    "calls_replay_check": set(Replay),
    "calls_state_check": set(CallState),
    "answers_outcome_check": set(Outcome),
    "answers_reason_check": set(Reason),
    "answers_origin_check": set(Origin),
    "checkpoints_kind_check": set(CheckpointKind),
    "executors_role_check": set(get_args(Role)),
}

# Rules that name single members; a renamed member must not leave its old text behind here.
SINGLE: dict[str, set[str]] = {
    "runs_error": {RunStatus.FAILED},
    "runs_output": {RunStatus.COMPLETED},
    "runs_executor": {RunStatus.RUNNING},
    "messages_step": {MessageKind.ASSISTANT},
    "calls_bodies": {Replay.UNSAFE},
    "calls_answered": {CallState.ANSWERED},
    "answers_reason": {Outcome.RETURNED},
}

PREDICATES: dict[str, set[str]] = {
    "runs_one_open_per_session": set(OPEN_RUN),
    "runs_to_sweep": {RunStatus.QUEUED, RunStatus.RUNNING},
    "messages_one_reply_per_step": {MessageKind.ASSISTANT},
    "calls_unanswered": {CallState.ANSWERED},
}

_LITERAL = re.compile(r"'([^']+)'::text")


@pytest.fixture(scope="module")
def connection(server_url: str, template: str) -> Iterator[psycopg.Connection]:
    """A look at the migrated template; these tests write nothing."""
    url = with_database(server_url, template)
    with psycopg.connect(url, autocommit=True, options="-csearch_path=helix") as connection:
        yield connection


def checks(connection: psycopg.Connection) -> dict[str, str]:
    rows = connection.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'c' AND connamespace = 'helix'::regnamespace"
    )
    return dict(rows.fetchall())


def test_value_lists_equal_the_enums(connection: psycopg.Connection):
    found = checks(connection)
    assert {name: set(_LITERAL.findall(found[name])) for name in VALUES} == VALUES


def test_single_values_are_members(connection: psycopg.Connection):
    found = checks(connection)
    assert {name: set(_LITERAL.findall(found[name])) for name in SINGLE} == SINGLE


def test_every_value_list_is_known(connection: psycopg.Connection):
    literal = {name for name, rule in checks(connection).items() if _LITERAL.search(rule)}
    jsonb = {name for name in literal if "jsonb_typeof" in checks(connection)[name]}
    lengths = {"sessions_session_id_check", "requests_request_key_check"}
    assert literal - jsonb - lengths == VALUES.keys() | SINGLE.keys()


def test_partial_indexes_name_members(connection: psycopg.Connection):
    rows = connection.execute(
        "SELECT i.indexrelid::regclass::text, pg_get_expr(i.indpred, i.indrelid) FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace = 'helix'::regnamespace"
        " WHERE i.indpred IS NOT NULL"
    )
    found = {name: set(_LITERAL.findall(rule)) for name, rule in rows.fetchall()}
    assert {name: values for name, values in found.items() if values} == PREDICATES


def test_the_most_bodies_a_call_may_start(connection: psycopg.Connection):
    assert re.findall(r"(?:THEN|ELSE) (\d+)", checks(connection)["calls_bodies"]) == ["1", str(MAX_BODIES)]
