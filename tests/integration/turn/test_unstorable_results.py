"""Results that Postgres or JSON cannot hold: normalised or refused, never a failed transaction."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from pydantic import BaseModel, computed_field

from helix_dbos import Outcome, Reason, RunStatus, tool
from helix_dbos.core.storable import MAX_RESULT_BYTES
from helix_dbos.core.texts import TEXTS
from helix_dbos.testing import call, calls, say
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import scripted
from tests.integration.turn.started import turn


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class _Hostile(BaseModel):
    @computed_field
    @property
    def explodes(self) -> str:
        raise OSError("in the property")


NORMALISED: dict[str, tuple[object, Any]] = {
    "nul": ("a\x00b", "a\ufffdb"),
    "surrogate": ("a\ud800b", "a\ufffdb"),
    "deep_nul": ({"k\x00": ["\udfff"]}, {"k\ufffd": ["\ufffd"]}),
    "nan": (float("nan"), None),
    "infinity": ({"x": [float("inf"), -float("inf"), 1.5]}, {"x": [None, None, 1.5]}),
    "keys": ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
    "set": (frozenset({3}), [3]),
    "largest": ("x" * (MAX_RESULT_BYTES - 2), "x" * (MAX_RESULT_BYTES - 2)),
}

REFUSED: dict[str, object] = {
    "too_large": "x" * MAX_RESULT_BYTES,
    "too_large_in_utf8": "é" * (MAX_RESULT_BYTES // 2),
    "object": object(),
    "function": print,
    "recursive": _recursive(),
    "too_deep": _nested(200),
    "much_too_deep": _nested(900),
    "bytes": b"\xff\xfe",
    "hostile_property": _Hostile(),
    "hostile_iterator": (n // 0 for n in range(2)),
}


async def test_what_can_be_normalised_is_returned_cleaned(app: StartApp) -> None:
    @tool
    async def give(which: str) -> object:
        return NORMALISED[which][0]

    asked = calls(*(call("give", {"which": which}, id=which) for which in NORMALISED))
    desk, told = scripted([asked, say("done")], tools=[give])
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED, outcome.error
    for report in outcome.calls:
        assert report.outcome is Outcome.RETURNED, report.tool_call_id
        assert report.result == NORMALISED[report.tool_call_id][1], report.tool_call_id
        assert told.answer(report.tool_call_id).content == report.result


async def test_what_cannot_be_stored_is_answered_so_and_costs_nothing_else(
    app: StartApp, connection: psycopg.Connection
) -> None:
    bodies: list[str] = []

    @tool(concurrency_group="g")
    async def give(which: str) -> object:
        bodies.append(which)
        return REFUSED[which]

    asked = calls(*(call("give", {"which": which}, id=which) for which in REFUSED))
    desk, told = scripted([asked, say("done")], tools=[give])
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED, outcome.error
    assert bodies == list(REFUSED), "one body each; the calls behind went on"
    for report in outcome.calls:
        expected = (Outcome.RAISED, Reason.RESULT_NOT_STORABLE, 1)
        assert (report.outcome, report.reason, report.bodies) == expected, report.tool_call_id
        text = told.answer(report.tool_call_id).content
        assert isinstance(text, str)
        assert text.startswith(TEXTS[Reason.RESULT_NOT_STORABLE])
        assert len(text) < 1000
    stored = connection.execute("SELECT octet_length(result::text) FROM answers").fetchall()
    assert len(stored) == len(REFUSED)
    assert max(size for (size,) in stored) < 1000


async def test_an_awaitable_that_a_sync_tool_returns_is_awaited(app: StartApp) -> None:
    async def later() -> str:
        return "later"

    @tool
    def give() -> Any:
        return later()

    desk, _ = scripted([call("give"), say("done")], tools=[give])
    outcome = await turn(await app(desk), desk)
    assert outcome.calls[0].result == "later"


async def test_a_model_result_is_stored_as_its_json(app: StartApp) -> None:
    class Order(BaseModel):
        id: int
        lines: list[str]

    @tool
    async def find() -> Order:
        return Order(id=7, lines=["a"])

    desk, told = scripted([call("find", id="c"), say("done")], tools=[find])
    outcome = await turn(await app(desk), desk)
    assert outcome.calls[0].result == told.answer("c").content == {"id": 7, "lines": ["a"]}
    assert json.dumps(outcome.calls[0].result)
