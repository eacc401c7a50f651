"""Our records to pydantic-ai's and back, without a provider."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import JsonValue
from pydantic_ai import messages as pai
from pydantic_ai.usage import RequestUsage

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
from helix_dbos.models.conversion import to_messages, to_parameters, to_reply, to_settings
from helix_dbos.models.port import ModelRequest, ToolDefinition


def messages(*history: HistoryItem, instructions: str = "", native_errors: bool = False) -> list[Any]:
    request = ModelRequest(instructions, history, (), "s-1", "r-1", 0)
    return list(to_messages(request, native_errors=native_errors))


CALLED = AssistantContent(parts=(CallPart(tool_call_id="c1", tool_name="t", arguments={"a": 1}),))


def answer(content: JsonValue, *, is_error: bool = False) -> tuple[AnsweredCall, ...]:
    return (AnsweredCall(tool_call_id="c1", tool_name="t", content=content, is_error=is_error),)


def test_everything_between_two_replies_is_one_request_answers_first():
    found = messages(
        user_content("go"), CALLED, answer("ok"), NoticeContent(text="note"), user_content("more")
    )
    assert [message.kind for message in found] == ["request", "response", "request"]
    assert [part.part_kind for part in found[2].parts] == ["tool-return", "user-prompt", "user-prompt"]
    assert [part.content for part in found[2].parts] == ["ok", "note", "more"]


def test_instructions_ride_on_the_last_request():
    found = messages(
        user_content("a"), AssistantContent(parts=()), user_content("b"), instructions="Be brief."
    )
    assert [getattr(message, "instructions", None) for message in found] == [None, None, "Be brief."]


def test_instructions_without_a_request_get_one():
    found = messages(CALLED, instructions="Be brief.")
    assert [message.kind for message in found] == ["response", "request"]
    assert messages() == []


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ("text", "text"),
        ("", ""),
        ({"a": [1]}, {"a": [1]}),
        ([], "[]"),
        ([{"a": "ü"}], '[{"a":"ü"}]'),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
    ],
)
def test_a_result_is_never_sent_as_nothing(content: JsonValue, sent: object):
    assert messages(CALLED, answer(content))[1].parts[0].content == sent


@pytest.mark.parametrize(
    ("native_errors", "wrapped", "outcome"), [(True, False, "failed"), (False, True, "success")]
)
def test_an_errors_text_arrives_unchanged(native_errors: bool, wrapped: bool, outcome: str):
    part = messages(CALLED, answer("The outcome is unknown.", is_error=True), native_errors=native_errors)[
        1
    ].parts[0]
    assert part.outcome == outcome
    assert part.tool_call_id == "c1"
    # Adapters with an error flag read it unwrapped, the others as it is.
    assert part.model_response_str(wrap_if_error=wrapped) == "The outcome is unknown."


@pytest.mark.parametrize(
    ("media_type", "kind"),
    [
        ("image/png", pai.ImageUrl),
        ("audio/mpeg", pai.AudioUrl),
        ("video/mp4", pai.VideoUrl),
        ("application/pdf", pai.DocumentUrl),
    ],
)
def test_a_file_by_address_is_of_its_media_types_kind(media_type: str, kind: type[object]):
    parts = [TextPart(text="see"), FilePart(media_type=media_type, url="https://example.com/f")]
    sent = messages(user_content(parts))[0].parts[0].content
    assert sent[0] == "see"
    assert isinstance(sent[1], kind)
    assert sent[1].media_type == media_type


RESPONSE = pai.ModelResponse(
    parts=[
        pai.ThinkingPart(
            "hm", id="rs_1", signature="sig", provider_name="p", provider_details={"raw": ["x"]}
        ),
        pai.ThinkingPart("", signature="redacted", provider_name="p", id="redacted_thinking"),
        pai.TextPart("hi", id="msg_1", provider_name="p", provider_details={"phase": "final"}),
        pai.ToolCallPart("t", '{"a": 1}', tool_call_id="c1", id="fc_1", provider_name="p"),
        pai.ToolCallPart("t", '{"a": ', tool_call_id="c2"),
    ],
    model_name="m-1",
    provider_name="p",
    provider_url="https://p.example/v1",
    canonical_system="q",
    provider_response_id="resp_1",
    provider_details={"container_id": "k", "timestamp": datetime.now(UTC), "logprobs": [1]},
    finish_reason="tool_call",
    usage=RequestUsage(input_tokens=5, output_tokens=3, cache_read_tokens=2, cache_write_tokens=1),
)


def test_a_reply_comes_back_as_the_provider_gave_it():
    reply = to_reply(RESPONSE)
    stored = AssistantContent.model_validate_json(reply.content.model_dump_json())
    returned = messages(stored)[0]
    assert isinstance(returned, pai.ModelResponse)
    for given, back in zip(RESPONSE.parts, returned.parts, strict=True):
        assert type(back) is type(given)
        for name in ("content", "id", "signature", "provider_name", "provider_details", "tool_call_id"):
            assert getattr(back, name, None) == getattr(given, name, None)
    arguments = [part.args for part in returned.parts if isinstance(part, pai.ToolCallPart)]
    assert arguments == [{"a": 1}, '{"a": ']
    for name in ("model_name", "provider_name", "provider_url", "canonical_system", "provider_response_id"):
        assert getattr(returned, name) == getattr(RESPONSE, name)
    assert returned.provider_details == {"container_id": "k"}


def test_usage_is_one_request():
    assert to_reply(RESPONSE).usage == Usage(
        requests=1, input_tokens=5, output_tokens=3, cache_read_tokens=2, cache_write_tokens=1
    )


def test_plain_parts_have_no_details():
    reply = to_reply(pai.ModelResponse(parts=[pai.TextPart("hi"), pai.ToolCallPart("t", None, "c1")]))
    assert reply.content.parts == (
        TextPart(text="hi"),
        CallPart(tool_call_id="c1", tool_name="t", arguments={}),
    )
    assert reply.content.details is None


def test_unknown_and_empty_parts_are_left_out_and_calls_are_not():
    image = pai.FilePart(pai.BinaryContent(b"x", media_type="image/png"))
    native = pai.NativeToolCallPart("web_search", {"query": "x"}, tool_call_id="n1")
    returned = pai.NativeToolReturnPart("web_search", {"r": 1}, tool_call_id="n1")
    parts = [
        pai.TextPart(""),
        pai.ThinkingPart(""),
        native,
        returned,
        image,
        pai.TextPart("found"),
        pai.ToolCallPart("t", "{}", "c1"),
    ]
    reply = to_reply(pai.ModelResponse(parts=parts))
    assert [part.kind for part in reply.content.parts] == ["text", "call"]


def test_every_string_and_number_of_a_reply_is_storable():
    bad = "a\x00\ud800"
    parts = [
        pai.ThinkingPart(bad, signature=bad, provider_name="p"),
        pai.TextPart(bad, provider_name="p", provider_details={bad: [bad, float("nan")]}),
        pai.ToolCallPart(bad, {bad: bad, "n": float("inf")}, tool_call_id=bad),
        pai.ToolCallPart("t", f'"{bad}', tool_call_id="c2"),
    ]
    content = to_reply(
        pai.ModelResponse(parts=parts, model_name=bad, provider_name="p", provider_response_id=bad)
    ).content
    text = content.model_dump_json()
    assert "\\u0000" not in text
    assert "NaN" not in text
    assert AssistantContent.model_validate_json(text) == content
    call = content.calls[0]
    assert (call.tool_call_id, call.arguments) == (
        "a\ufffd\ufffd",
        {"a\ufffd\ufffd": "a\ufffd\ufffd", "n": None},
    )


def test_details_that_are_no_json_are_left_out_and_the_part_stays():
    loop: dict[str, Any] = {}
    loop["self"] = loop
    part = pai.TextPart("hi", id="x", provider_name="p", provider_details=loop)
    assert to_reply(pai.ModelResponse(parts=[part])).content.parts == (
        TextPart(text="hi", details={"provider_name": "p", "id": "x"}),
    )


def test_an_address_with_credentials_is_not_stored():
    response = pai.ModelResponse(parts=[], provider_name="p", provider_url="https://me:pw@p.example/v1")
    assert to_reply(response).content.details == {"provider_name": "p"}


def test_details_of_another_making_are_ignored():
    odd = ThinkingPart(text="hm", details={"signature": 7, "provider_details": "x", "provider_name": None})
    part = messages(AssistantContent(parts=(odd,), details={"provider_name": []}))[0].parts[0]
    assert (part.signature, part.provider_details, part.provider_name) == (None, None, None)


def test_the_output_tool_forbids_a_text_end():
    schema: dict[str, JsonValue] = {"type": "object", "properties": {}}
    plain = ToolDefinition("t", "A tool.", schema)
    finish = ToolDefinition("__finish__", "Ends.", schema, is_output=True)
    without = to_parameters([plain])
    assert (without.output_mode, without.allow_text_output, without.output_tools) == ("text", True, [])
    both = to_parameters([plain, finish])
    assert (both.output_mode, both.allow_text_output) == ("tool", False)
    assert [tool.name for tool in both.function_tools] == ["t"]
    assert [(tool.name, tool.kind) for tool in both.output_tools] == [("__finish__", "output")]
    assert both.function_tools[0].parameters_json_schema is not schema


def test_settings_pass_and_retries_are_off_unless_asked_for():
    assert to_settings({"temperature": 0.5}, retries_off=True) == {"temperature": 0.5, "max_retries": 0}
    assert to_settings({"max_retries": 2}, retries_off=True) == {"max_retries": 2}
    assert to_settings({}, retries_off=False) == {}
