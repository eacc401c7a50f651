"""Looks at what was stored and at what models were told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from helix_dbos import Agent, ModelRequest
from helix_dbos.core.messages import AnsweredCall, AssistantContent, NoticeContent, UserContent
from helix_dbos.testing import ScriptedModel

__all__ = ["Told", "answers_given", "everything_stored", "history_shape", "scripted"]


class Told(list[ModelRequest]):
    """Every request a scripted model was sent, in order."""

    @property
    def last(self) -> ModelRequest:
        return self[-1]

    def answer(self, tool_call_id: str) -> AnsweredCall:
        """What the model was last told about a call."""
        return answers_given(self.last)[tool_call_id]


def scripted(replies: Any, **agent: Any) -> tuple[Agent[Any, Any, Any], Told]:
    """An agent that follows a script, and what its model is told."""
    told = Told()
    model = ScriptedModel(replies, on_request=told.append)
    return Agent(**{"name": "desk", "model": model, **agent}), told


def answers_given(request: ModelRequest) -> dict[str, AnsweredCall]:
    """The answers in a request's history by `tool_call_id`; each call is paired exactly once."""
    given: dict[str, AnsweredCall] = {}
    for item in request.history:
        for answer in item if isinstance(item, tuple) else ():
            assert answer.tool_call_id not in given, "a call was answered twice"
            given[answer.tool_call_id] = answer
    return given


def history_shape(request: ModelRequest) -> list[str]:
    """The history as short texts: `user:…`, `assistant:…`, `calls:…`, `answers:…`, `notice`."""
    return [_shape(item) for item in request.history]


def _shape(item: Any) -> str:
    match item:
        case UserContent():
            return "user:" + "|".join(getattr(part, "text", part.kind) for part in item.parts)
        case AssistantContent() if item.calls:
            return "calls:" + ",".join(part.tool_call_id for part in item.calls)
        case AssistantContent():
            return f"assistant:{item.text}"
        case NoticeContent():
            return "notice"
        case _:
            return "answers:" + ",".join(answer.tool_call_id for answer in item)


def everything_stored(connection: psycopg.Connection, schemas: Sequence[str] = ("helix", "dbos")) -> str:
    """Every row of every table of these schemas as text."""
    tables = connection.execute(
        "SELECT table_schema, table_name FROM information_schema.tables"
        " WHERE table_schema = ANY(%s) AND table_type = 'BASE TABLE'",
        (list(schemas),),
    ).fetchall()
    assert len({schema for schema, _ in tables}) == len(schemas), "a schema has no tables"
    return "\n".join(_rows_as_text(connection, schema, table) for schema, table in tables)


def _rows_as_text(connection: psycopg.Connection, schema: str, table: str) -> str:
    statement = sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(schema, table))
    return "\n".join(f"{schema}.{table}: {row[0]}" for row in connection.execute(statement))
