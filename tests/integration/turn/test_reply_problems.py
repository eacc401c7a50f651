"""Replies a model should not have written: answered to it, stored cleanly, and no body."""

from __future__ import annotations

from typing import Any

import psycopg

from helix_dbos import (
    Agent,
    ModelReply,
    ModelRequest,
    Outcome,
    Reason,
    RunStatus,
    tool,
)
from helix_dbos.core.messages import AssistantContent, CallPart, TextPart, ThinkingPart, Usage
from helix_dbos.core.texts import TEXTS
from helix_dbos.testing import call, calls, say, turns
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import answers_given, everything_stored, history_shape, scripted
from tests.integration.turn.started import turn


async def test_calls_that_cannot_be_made_are_answered_without_a_body(app: StartApp) -> None:
    bodies: list[int] = []

    @tool(sequential=True)
    async def add(n: int) -> int:
        bodies.append(n)
        return n + 1

    asked = calls(
        call("add", {"n": "seven"}, id="type"),
        call("add", {}, id="missing"),
        call("add", {"n": 1, "m": 2}, id="extra"),
        call("add", '{"n": ', id="malformed"),
        call("add", "[1]", id="list"),
        call("subtract", {"n": 1}, id="unknown"),
        call("__finish__", {"value": 1}, id="finish"),
        call("add", {"n": 7}, id="good"),
    )
    desk, told = scripted([asked, say("done")], tools=[add])
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED
    assert bodies == [7]
    by_id = {report.tool_call_id: report for report in outcome.calls}
    for invalid in ("type", "missing", "extra", "malformed", "list"):
        report = by_id[invalid]
        assert (report.outcome, report.reason, report.bodies) == (
            Outcome.NOT_EXECUTED,
            Reason.INVALID_ARGUMENTS,
            0,
        )
    for unknown in ("unknown", "finish"):
        assert (by_id[unknown].reason, by_id[unknown].bodies) == (Reason.UNKNOWN_TOOL, 0)
        assert told.answer(unknown).content == f"{TEXTS[Reason.UNKNOWN_TOOL]} Available: add."
    assert "n: " in str(told.answer("type").content), "the model is told which argument"
    assert "not a JSON object" in str(told.answer("malformed").content)
    assert all(told.answer(each).is_error for each in by_id if each != "good")
    assert told.answer("good").content == 8


async def test_a_reply_of_nothing_but_wrong_calls_asks_the_model_again(
    app: StartApp, connection: psycopg.Connection
) -> None:
    desk, told = scripted([call("nope", id="a"), call("nope", id="a"), say("sorry")])
    outcome = await turn(await app(desk), desk)
    assert outcome.output == "sorry"
    assert outcome.steps == 3
    assert history_shape(told.last) == ["user:go", "calls:a", "answers:a", "calls:a_2", "answers:a_2"]
    kinds = connection.execute("SELECT kind FROM checkpoints ORDER BY created_at, step_index").fetchall()
    assert kinds == [("step_commit",), ("step_commit",), ("end",)], "no body, so nothing to recover"


async def test_a_providers_repeated_call_ids_are_made_unique_and_each_is_answered(app: StartApp) -> None:
    @tool
    async def echo(n: int) -> int:
        return n

    def same(*numbers: int) -> Any:
        return calls(*(call("echo", {"n": n}, id="x") for n in numbers))

    script = turns([same(1, 2), same(3), say("one")], [same(4, 5), say("two")])
    desk, told = scripted(script, tools=[echo])
    helix = await app(desk)
    first = await turn(helix, desk, session_id="s")
    second = await turn(helix, desk, session_id="s")
    ids = [report.tool_call_id for outcome in (first, second) for report in outcome.calls]
    assert ids == ["x", "x_2", "x_3", "x_4", "x_5"]
    given = {each: answer.content for each, answer in answers_given(told.last).items()}
    assert given == {"x": 1, "x_2": 2, "x_3": 3, "x_4": 4, "x_5": 5}


async def test_an_id_that_looks_like_one_of_ours_is_still_unique(app: StartApp) -> None:
    @tool
    async def echo(n: int) -> int:
        return n

    asked = calls(*(call("echo", {"n": n}, id=each) for n, each in enumerate(["x", "x_2", "x", "", ""])))
    # ScriptedModel replaces an empty id; a provider that sends none is played by the port below.
    desk, told = scripted([asked, say("done")], tools=[echo])
    outcome = await turn(await app(desk), desk)
    assert len({report.tool_call_id for report in outcome.calls}) == 5
    assert {report.result for report in outcome.calls} == {0, 1, 2, 3, 4}
    assert len(answers_given(told.last)) == 5


class _Port:
    """A user's own port that vouches for nothing."""

    def __init__(self, *replies: AssistantContent) -> None:
        self.replies = replies
        self.told: list[ModelRequest] = []

    async def request(self, request: ModelRequest) -> ModelReply:
        self.told.append(request)
        return ModelReply(self.replies[len(self.told) - 1], usage=Usage(requests=1, input_tokens=3))


async def test_what_postgres_cannot_hold_is_cleaned_in_a_reply(
    app: StartApp, connection: psycopg.Connection
) -> None:
    seen: list[str] = []

    @tool
    async def note(text: str) -> str:
        seen.append(text)
        return text

    dirty = AssistantContent(
        parts=(
            ThinkingPart(text="hm\x00", details={"signature": "s\x00\ud800", "score": float("nan")}),
            TextPart(text="so\ud83d"),
            CallPart(tool_call_id="c\x00", tool_name="note", arguments={"text": "a\x00b"}),
            CallPart(tool_call_id="", tool_name="no\x00tool", arguments="{\x00"),
            CallPart(tool_call_id="", tool_name="note", arguments={"text": "t", "\ud800": float("inf")}),
        ),
        model="m\x00",
        finish_reason="f\x00",
        details={"a": ["\x00"]},
    )
    last = AssistantContent(parts=(TextPart(text="do\x00ne \udfff"),))
    port = _Port(dirty, last)
    desk = Agent(name="desk", model=port, tools=[note])
    outcome = await turn(await app(desk), desk)
    assert outcome.error is None
    assert outcome.output == "do\ufffdne \ufffd"
    assert seen == ["a\ufffdb"]
    assert [report.reason for report in outcome.calls] == [
        None,
        Reason.UNKNOWN_TOOL,
        Reason.INVALID_ARGUMENTS,
    ]
    assert len(answers_given(port.told[-1])) == 3
    assert outcome.usage == Usage(requests=2, input_tokens=6)
    assert "so\ufffd" in everything_stored(connection)


async def test_a_reply_with_text_and_calls_keeps_both(app: StartApp) -> None:
    @tool
    async def echo(n: int) -> int:
        return n

    desk, told = scripted([calls(call("echo", {"n": 1}, id="c"), text="Let me see."), say("1")], tools=[echo])
    outcome = await turn(await app(desk), desk)
    assert outcome.output == "1"
    reply = told.last.history[1]
    assert isinstance(reply, AssistantContent)
    assert reply.text == "Let me see."
