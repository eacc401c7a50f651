"""What travels to and from the providers' own HTTP interfaces, over a real socket."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from helix_dbos.core.messages import (
    AnsweredCall,
    AssistantContent,
    CallPart,
    FilePart,
    HistoryItem,
    NoticeContent,
    TextPart,
    ThinkingPart,
    Usage,
    user_content,
)
from helix_dbos.errors import ModelError
from helix_dbos.models.port import ModelRequest, ToolDefinition, TransientModelError
from helix_dbos.models.pydantic_ai import PydanticAIModel
from helix_dbos.testing.scripted import call
from tests.contract.model_server import HANG, Answer, ModelServer, anthropic, openai_chat, openai_responses

KEY = "sk-test-0123456789abcdef"
TOOL = ToolDefinition("look_up", "Looks up.", {"type": "object", "properties": {"key": {"type": "string"}}})
FINISH = ToolDefinition("__finish__", "Ends.", {"type": "object", "properties": {}}, is_output=True)
BODIES = {"openai-chat": openai_chat, "openai": openai_responses, "anthropic": anthropic}
SIGNATURE = "ErUB+/abc==\n sig-ünïcode \t end=="
CALLED = (call("look_up", {"key": "a"}, id="call_1"), call("look_up", {"key": "b"}, id="call_2"))
RAW_TEXT = 'Not found: "a" \n{"x": 1}'


def ask(
    *history: HistoryItem, tools: tuple[ToolDefinition, ...] = (TOOL,), **settings: object
) -> ModelRequest:
    return ModelRequest(
        instructions="Be brief.",
        history=history or (user_content("my secret prompt"),),
        tools=tools,
        session_id="s-1",
        run_id="r-1",
        step_index=0,
        settings=settings,  # pyright: ignore[reportArgumentType]
    )


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{running.url}/v1")
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", running.url)
        yield running


async def _model(name: str) -> AsyncIterator[PydanticAIModel]:
    model = PydanticAIModel(name)
    yield model
    await model.aclose()


@pytest.fixture
async def chat(server: ModelServer) -> AsyncIterator[PydanticAIModel]:
    async for model in _model("openai-chat:gpt-4o"):
        yield model


@pytest.fixture
async def responses(server: ModelServer) -> AsyncIterator[PydanticAIModel]:
    async for model in _model("openai:gpt-5"):
        yield model


@pytest.fixture
async def claude(server: ModelServer) -> AsyncIterator[PydanticAIModel]:
    async for model in _model("anthropic:claude-sonnet-4-5"):
        yield model


@pytest.fixture(params=["openai-chat:gpt-4o", "openai:gpt-5", "anthropic:claude-sonnet-4-5"])
async def model(request: pytest.FixtureRequest, server: ModelServer) -> AsyncIterator[PydanticAIModel]:
    async for built in _model(request.param):
        yield built


# --- failures


TRANSIENT = {
    408: "model_unavailable",
    409: "model_unavailable",
    425: "model_unavailable",
    429: "model_rate_limited",
    500: "model_unavailable",
    503: "model_unavailable",
    529: "model_unavailable",
}
FINAL = {
    400: "model_request_refused",
    401: "model_authentication_failed",
    402: "model_quota_exceeded",
    403: "model_authentication_failed",
    404: "model_not_found",
    413: "model_request_refused",
    422: "model_request_refused",
}


async def test_a_status_that_may_pass_is_transient_and_sent_once(model: PydanticAIModel, server: ModelServer):
    for status in TRANSIENT:
        server.will_answer(Answer({"error": {"type": "t", "message": "later"}}, status, {"Retry-After": "3"}))
    for sent, code in enumerate(TRANSIENT.values(), start=1):
        with pytest.raises(TransientModelError) as caught:
            await model.request(ask())
        assert caught.value.code == code
        assert caught.value.retry_after_seconds == 3.0
        assert len(server.received) == sent


async def test_any_other_refusal_is_for_good_and_says_nothing_secret(
    model: PydanticAIModel, server: ModelServer
):
    words = f"Incorrect API key provided: {KEY}. Authorization: Bearer {KEY} " + "x" * 2_000
    for status in FINAL:
        server.will_answer(Answer({"error": {"type": "t", "message": words}}, status))
    for status, code in FINAL.items():
        with pytest.raises(ModelError) as caught:
            await model.request(ask())
        failure = caught.value
        assert not isinstance(failure, TransientModelError)
        assert failure.code == code
        assert f"HTTP {status}: Incorrect API key" in str(failure)
        assert len(str(failure)) < 700
        assert failure.__cause__ is None
        assert KEY not in str(failure)
        assert "my secret prompt" not in str(failure)
    assert len(server.received) == len(FINAL)


async def test_a_quota_that_is_used_up_is_for_good_although_it_is_a_429(
    chat: PydanticAIModel, server: ModelServer
):
    server.will_answer(Answer({"error": {"code": "insufficient_quota", "message": "pay"}}, 429))
    with pytest.raises(ModelError) as caught:
        await chat.request(ask())
    assert caught.value.code == "model_quota_exceeded"
    assert not isinstance(caught.value, TransientModelError)


async def test_a_conversation_that_is_too_long_is_named(claude: PydanticAIModel, server: ModelServer):
    error = {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens"}
    server.will_answer(Answer({"type": "error", "error": error}, 400))
    with pytest.raises(ModelError) as caught:
        await claude.request(ask())
    assert caught.value.code == "model_context_exceeded"


@pytest.mark.parametrize("name", ["openai-chat:gpt-4o", "openai:gpt-5", "anthropic:claude-sonnet-4-5"])
async def test_a_refused_connection_is_transient(name: str, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{bound.getsockname()[1]}"
    for provider in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{provider}_BASE_URL", closed)
        monkeypatch.setenv(f"{provider}_API_KEY", KEY)
    model = PydanticAIModel(name)
    with pytest.raises(TransientModelError) as caught:
        await model.request(ask())
    assert caught.value.code == "model_unavailable"
    await model.aclose()


@pytest.mark.parametrize("setting", ["timeout", "request_timeout"])
async def test_a_hanging_provider_times_out_and_that_is_transient(
    model: PydanticAIModel, server: ModelServer, setting: str
):
    server.will_answer(HANG)
    with pytest.raises(TransientModelError) as caught:
        await model.request(ask(**{setting: 0.1}))
    assert caught.value.code == "model_timeout"
    assert len(server.received) == 1


async def test_a_reply_that_is_cut_off_is_transient(model: PydanticAIModel, server: ModelServer):
    server.will_answer(Answer(BODIES[model.name.partition(":")[0]]("hi"), cut=True))
    with pytest.raises(TransientModelError) as caught:
        await model.request(ask(max_tokens=100))
    assert caught.value.code == "model_unavailable"
    assert len(server.received) == 1


async def test_an_overload_said_inside_an_open_stream_is_transient(
    claude: PydanticAIModel, server: ModelServer
):
    server.will_answer({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    with pytest.raises(TransientModelError) as caught:
        await claude.request(ask())
    assert server.received[0].body["stream"] is True
    assert caught.value.code == "model_unavailable"


async def test_a_body_that_is_no_reply_is_a_bad_reply(chat: PydanticAIModel, server: ModelServer):
    server.will_answer({"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": 7}}]})
    with pytest.raises(ModelError) as caught:
        await chat.request(ask())
    assert caught.value.code == "model_bad_reply"
    assert "input_value" not in (caught.value.detail or "")


async def test_a_users_own_model_keeps_its_own_retries(server: ModelServer):
    server.will_answer(Answer({}, 500, {"retry-after-ms": "1"}), openai_chat("late"))
    async with AsyncOpenAI(max_retries=1) as client:
        own = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client))
        reply = await PydanticAIModel(own).request(ask())
    assert reply.content.text == "late"
    assert len(server.received) == 2


async def test_the_users_setting_of_retries_wins(chat: PydanticAIModel, server: ModelServer):
    server.will_answer(Answer({}, 500, {"retry-after-ms": "1"}), openai_chat("late"))
    assert (await chat.request(ask(max_retries=1))).content.text == "late"


# --- replies


async def test_usage_and_model_are_kept(model: PydanticAIModel, server: ModelServer):
    server.will_answer(BODIES[model.name.partition(":")[0]]("hi"))
    reply = await model.request(ask(max_tokens=77))
    assert reply.usage == Usage(requests=1, input_tokens=11, output_tokens=7)
    assert reply.content.model is not None
    assert "77" in json.dumps(server.received[0].body)


async def test_malformed_arguments_stay_the_models_own_text(chat: PydanticAIModel, server: ModelServer):
    broken = '{"key": "a'
    server.will_answer(
        openai_chat(
            None,
            (call("look_up", broken, id="c1"), call("look_up", "[1]", id="c2"), call("look_up", "", id="c3")),
            finish_reason="length",
        ),
        openai_chat("sorry"),
    )
    reply = (await chat.request(ask())).content
    assert [part.arguments for part in reply.calls] == [broken, "[1]", {}]
    assert reply.finish_reason == "length"
    answers = tuple(
        AnsweredCall(
            tool_call_id=part.tool_call_id, tool_name=part.tool_name, content="bad arguments", is_error=True
        )
        for part in reply.calls
    )
    await chat.request(ask(user_content("go"), reply, answers))
    sent = server.received[1].body["messages"][2]["tool_calls"]
    assert json.loads(sent[0]["function"]["arguments"]) == {"INVALID_JSON": broken}


async def test_malformed_arguments_of_a_stream_stay_the_models_own_text(
    claude: PydanticAIModel, server: ModelServer
):
    server.will_answer(
        anthropic(None, (call("look_up", '{"key": "a', id="c1"),), stop_reason="max_tokens"), anthropic("ok")
    )
    reply = (await claude.request(ask())).content
    assert reply.calls[0].arguments == '{"key": "a'
    answer = AnsweredCall(tool_call_id="c1", tool_name="look_up", content="bad arguments", is_error=True)
    await claude.request(ask(user_content("go"), reply, (answer,)))
    sent = server.received[1].body["messages"][1]["content"][0]
    assert sent["input"] == {"INVALID_JSON": '{"key": "a'}


async def test_what_json_cannot_hold_is_null_and_what_is_too_deep_is_text(
    chat: PydanticAIModel, server: ModelServer
):
    deep = '{"a":' * 300 + "1" + "}" * 300
    made = (call("look_up", '{"n": NaN, "i": 1e999}', id="c1"), call("look_up", deep, id="c2"))
    server.will_answer(openai_chat(None, made))
    reply = (await chat.request(ask())).content
    assert reply.calls[0].arguments == {"n": None, "i": None}
    assert reply.calls[1].arguments == deep
    assert AssistantContent.model_validate_json(reply.model_dump_json()) == reply


async def test_a_refusal_is_the_text_of_a_filtered_reply(chat: PydanticAIModel, server: ModelServer):
    message = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    server.will_answer(openai_chat(message=message))
    reply = (await chat.request(ask())).content
    assert (reply.text, reply.finish_reason) == ("I can't help with that.", "content_filter")


async def test_a_cut_reply_says_so(claude: PydanticAIModel, server: ModelServer):
    server.will_answer(anthropic("half a sen", stop_reason="max_tokens"))
    reply = (await claude.request(ask())).content
    assert (reply.text, reply.finish_reason) == ("half a sen", "length")


async def test_a_providers_own_tool_parts_are_left_out_and_the_rest_stays(
    claude: PydanticAIModel, server: ModelServer
):
    search = {"type": "server_tool_use", "id": "st_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "st_1", "content": []}
    server.will_answer(anthropic("found", CALLED, before=(search, found)))
    reply = (await claude.request(ask())).content
    assert [part.kind for part in reply.parts] == ["text", "call", "call"]


async def test_a_paused_reply_is_not_taken_for_a_whole_one(claude: PydanticAIModel, server: ModelServer):
    server.will_answer(anthropic("so far", stop_reason="pause_turn"))
    with pytest.raises(ModelError, match="suspended") as caught:
        await claude.request(ask())
    assert caught.value.code == "model_bad_reply"


# --- what is sent


def answered(reply: AssistantContent) -> tuple[AnsweredCall, ...]:
    first, second = reply.calls
    return (
        AnsweredCall(tool_call_id=first.tool_call_id, tool_name="look_up", content=[{"n": 1}]),
        AnsweredCall(tool_call_id=second.tool_call_id, tool_name="look_up", content=RAW_TEXT, is_error=True),
    )


def stored(reply: AssistantContent) -> AssistantContent:
    return AssistantContent.model_validate_json(reply.model_dump_json())


async def test_signed_thinking_goes_back_to_anthropic_byte_for_byte(
    claude: PydanticAIModel, server: ModelServer
):
    thinking = {"type": "thinking", "thinking": "Let me see.", "signature": SIGNATURE}
    redacted = {"type": "redacted_thinking", "data": "EmwKAhgB=="}
    server.will_answer(anthropic("Looking.", CALLED, before=(thinking, redacted)), anthropic("done"))
    reply = stored((await claude.request(ask())).content)
    assert [part.kind for part in reply.parts] == ["thinking", "thinking", "text", "call", "call"]
    await claude.request(
        ask(user_content("go"), reply, answered(reply), NoticeContent(text="Resumed."), user_content("and?"))
    )
    sent = server.received[1].body
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"] == [
        thinking,
        redacted,
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"key": "a"}},
        {"type": "tool_use", "id": "call_2", "name": "look_up", "input": {"key": "b"}},
    ]
    assert "Be brief." in json.dumps(sent["system"])
    results = sent["messages"][2]["content"]
    assert [block["type"] for block in results] == ["tool_result", "tool_result", "text", "text"]
    assert results[0]["tool_use_id"] == "call_1"
    assert results[0]["content"] == [{"type": "text", "text": '[{"n":1}]'}]
    assert results[1]["tool_use_id"] == "call_2"
    assert results[1]["content"] == [{"type": "text", "text": RAW_TEXT}]
    assert (results[0]["is_error"], results[1]["is_error"]) == (False, True)


async def test_an_error_reaches_openai_as_the_plain_result_of_its_call(
    chat: PydanticAIModel, server: ModelServer
):
    server.will_answer(openai_chat(None, CALLED), openai_chat("done"))
    reply = stored((await chat.request(ask())).content)
    await chat.request(ask(user_content("go"), reply, answered(reply), NoticeContent(text="Resumed.")))
    sent = server.received[1].body["messages"]
    assert [message["role"] for message in sent] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert sent[0]["content"] == "Be brief."
    assert sent[3] == {"role": "tool", "tool_call_id": "call_1", "content": '[{"n":1}]'}
    assert sent[4] == {"role": "tool", "tool_call_id": "call_2", "content": RAW_TEXT}
    assert sent[5]["content"] == "Resumed."


async def test_reasoning_goes_back_to_openai_with_its_encrypted_content(
    responses: PydanticAIModel, server: ModelServer
):
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": SIGNATURE,
    }
    server.will_answer(openai_responses(None, CALLED, before=(reasoning,)), openai_responses("done"))
    reply = stored((await responses.request(ask())).content)
    await responses.request(ask(user_content("go"), reply, answered(reply)))
    sent = server.received[1].body
    assert sent["instructions"] == "Be brief."
    assert [item.get("type", item.get("role")) for item in sent["input"]] == [
        "user",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert sent["input"][1]["encrypted_content"] == SIGNATURE
    assert sent["input"][1]["id"] == "rs_1"
    assert sent["input"][5]["output"] == RAW_TEXT
    assert "previous_response_id" not in sent


async def test_thinking_signed_by_another_provider_is_not_sent_as_signed(
    responses: PydanticAIModel, server: ModelServer
):
    foreign = AssistantContent(
        parts=(
            ThinkingPart(text="Hm.", details={"provider_name": "anthropic", "signature": SIGNATURE}),
            TextPart(text="Yes."),
        )
    )
    server.will_answer(openai_responses("ok"))
    await responses.request(ask(user_content("go"), foreign, user_content("again")))
    assert SIGNATURE not in json.dumps(server.received[0].body, ensure_ascii=False)


async def test_the_output_tool_makes_the_provider_force_a_call(model: PydanticAIModel, server: ModelServer):
    make = BODIES[model.name.partition(":")[0]]
    finish = make(None, (call("__finish__", {}, id="c1"),))
    server.will_answer(finish, make("free"))
    reply = await model.request(ask(tools=(TOOL, FINISH)))
    assert isinstance(reply.content.parts[0], CallPart)
    assert reply.content.parts[0].tool_name == "__finish__"
    await model.request(ask(tools=(TOOL,)))
    forced, free = (received.body for received in server.received)
    assert forced["tool_choice"] in ("required", {"type": "any"})
    assert free.get("tool_choice") in (None, "auto", {"type": "auto"})
    assert "__finish__" in json.dumps(forced["tools"])


async def test_files_are_sent_by_address_or_by_content(chat: PydanticAIModel, server: ModelServer):
    server.will_answer(openai_chat("nice"))
    parts = [
        TextPart(text="look"),
        FilePart(media_type="image/png", url="https://example.com/a.png"),
        FilePart(media_type="image/png", data="aGVsbG8="),
    ]
    await chat.request(ask(user_content(parts)))
    content = server.received[0].body["messages"][1]["content"]
    assert [item["type"] for item in content] == ["text", "image_url", "image_url"]
    assert content[1]["image_url"]["url"] == "https://example.com/a.png"
    assert content[2]["image_url"]["url"] == "data:image/png;base64,aGVsbG8="


# --- the model built from a name


async def test_one_connection_serves_request_after_request_and_closing_is_not_the_end(
    model: PydanticAIModel, server: ModelServer
):
    make = BODIES[model.name.partition(":")[0]]
    server.will_answer(*(make(text) for text in "abc"))
    for text in "ab":
        assert (await model.request(ask())).content.text == text
    assert server.connections == 1
    await model.aclose()
    await model.aclose()
    assert (await model.request(ask())).content.text == "c"
    assert server.connections == 2
