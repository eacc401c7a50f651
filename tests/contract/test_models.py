"""One suite over every model adapter: what a caller of the port may rely on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from pydantic_ai import messages as pai
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from helix_dbos.core.messages import AnsweredCall, AssistantContent, HistoryItem, user_content
from helix_dbos.errors import ModelError
from helix_dbos.models.port import ModelPort, ModelRequest, ToolDefinition, TransientModelError
from helix_dbos.models.pydantic_ai import PydanticAIModel
from helix_dbos.testing.scripted import ScriptedModel, ScriptedReply, call, calls, say
from tests.contract.model_server import Answer, ModelServer, anthropic, openai_chat, openai_responses

Build = Callable[[ScriptedReply | Exception], ModelPort]

LIMITED = TransientModelError("limited", code="model_rate_limited", retry_after_seconds=7.0)
REFUSED = ModelError("refused", code="model_request_refused")
LOOK_UP = ToolDefinition(
    "look_up", "Looks a thing up.", {"type": "object", "properties": {"key": {"type": "string"}}}
)
FINISH = ToolDefinition(
    "__finish__", "Ends the run.", {"type": "object", "properties": {"total": {"type": "integer"}}}, True
)


def a_request(
    *history: HistoryItem, tools: Sequence[ToolDefinition] = (LOOK_UP,), **settings: int
) -> ModelRequest:
    return ModelRequest(
        instructions="Be brief.",
        history=history or (user_content("hello"),),
        tools=tools,
        session_id="s-1",
        run_id="r-1",
        step_index=0,
        settings=settings,
    )


def scripted(outcome: ScriptedReply | Exception) -> ModelPort:
    return ScriptedModel([outcome])


def function(outcome: ScriptedReply | Exception) -> ModelPort:
    def answer(_messages: list[pai.ModelMessage], _info: AgentInfo) -> pai.ModelResponse:
        if isinstance(outcome, TransientModelError):
            raise ModelHTTPError(429, "function", headers={"Retry-After": "7"})
        if isinstance(outcome, Exception):
            raise ModelHTTPError(400, "function", {"message": "no"})
        parts: list[pai.ModelResponsePart] = [pai.TextPart(outcome.text)] if outcome.text else []
        for made in outcome.calls:
            arguments = made.arguments if isinstance(made.arguments, str) else dict(made.arguments)
            parts.append(pai.ToolCallPart(made.tool_name, arguments, tool_call_id=made.id or ""))
        return pai.ModelResponse(parts=parts, usage=RequestUsage(input_tokens=1), finish_reason="stop")

    return PydanticAIModel(FunctionModel(answer))


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture(params=["scripted", "function", "openai-chat", "openai-responses", "anthropic"])
async def build(
    request: pytest.FixtureRequest, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Build]:
    if request.param in ("scripted", "function"):
        yield {"scripted": scripted, "function": function}[request.param]
        return
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    name, body = {
        "openai-chat": ("openai-chat:gpt-4o", openai_chat),
        "openai-responses": ("openai:gpt-5", openai_responses),
        "anthropic": ("anthropic:claude-sonnet-4-5", anthropic),
    }[request.param]
    model = PydanticAIModel(name)

    def over_http(outcome: ScriptedReply | Exception) -> ModelPort:
        if isinstance(outcome, TransientModelError):
            server.will_answer(Answer({"error": {"message": "slow down"}}, 429, {"Retry-After": "7"}))
        elif isinstance(outcome, Exception):
            server.will_answer(Answer({"error": {"message": "no"}}, 400))
        else:
            server.will_answer(body(outcome.text, outcome.calls))
        return model

    yield over_http
    await model.aclose()


async def test_is_a_port(build: Build):
    assert isinstance(build(say("x")), ModelPort)


async def test_a_text_is_the_reply(build: Build):
    reply = await build(say("Good day.")).request(a_request())
    assert reply.content.text == "Good day."
    assert reply.content.calls == ()
    assert reply.content.finish_reason == "stop"
    assert reply.usage.requests == 1


async def test_parallel_calls_keep_their_order_ids_and_arguments(build: Build):
    wanted = calls(
        call("look_up", {"key": "a", "deep": [1, {"x": None}]}, id="c1"),
        call("look_up", {}, id="c2"),
        text="One moment.",
    )
    reply = await build(wanted).request(a_request())
    assert reply.content.text == "One moment."
    assert [(part.tool_call_id, part.tool_name, part.arguments) for part in reply.content.calls] == [
        ("c1", "look_up", {"key": "a", "deep": [1, {"x": None}]}),
        ("c2", "look_up", {}),
    ]


async def test_a_call_of_the_output_tool_is_an_ordinary_call(build: Build):
    model = build(calls(call("__finish__", {"total": 3}, id="c1")))
    reply = await model.request(a_request(tools=(LOOK_UP, FINISH)))
    assert [(part.tool_name, part.arguments) for part in reply.content.calls] == [
        ("__finish__", {"total": 3})
    ]


async def test_strings_are_storable(build: Build):
    model = build(calls(call("look_up", {"key": "a\x00b\ud800"}, id="c1"), text="x\x00y"))
    reply = await model.request(a_request())
    assert reply.content.text == "x\ufffdy"
    assert reply.content.calls[0].arguments == {"key": "a\ufffdb\ufffd"}
    reply.content.model_dump_json()


async def test_a_failure_that_may_pass_says_how_long_to_wait(build: Build):
    with pytest.raises(TransientModelError) as caught:
        await build(LIMITED).request(a_request())
    assert caught.value.code == "model_rate_limited"
    assert caught.value.retry_after_seconds == 7.0


async def test_a_failure_for_good_is_not_transient(build: Build):
    with pytest.raises(ModelError) as caught:
        await build(REFUSED).request(a_request())
    assert not isinstance(caught.value, TransientModelError)
    assert caught.value.code == "model_request_refused"


async def test_a_reply_can_be_sent_back_and_the_request_is_left_alone(build: Build):
    model = build(calls(call("look_up", {"key": "a"}, id="c1")))
    first = (await model.request(a_request())).content
    stored = AssistantContent.model_validate_json(first.model_dump_json())
    assert stored == first
    history = (
        user_content("hello"),
        stored,
        (AnsweredCall(tool_call_id="c1", tool_name="look_up", content={"found": True}),),
        user_content("and?"),
    )
    request = a_request(*history)
    reply = await build(say("Done.")).request(request)
    assert reply.content.text == "Done."
    assert request.history == history


async def test_requests_one_after_the_other_work_in_one_loop(build: Build):
    for text in ("one", "two", "three"):
        assert (await build(say(text)).request(a_request())).content.text == text
