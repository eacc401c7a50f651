"""Our history to pydantic-ai's messages and its response back; nothing is asked here.

Our records are the primary ones. Whatever a provider needs back unchanged (signed thinking,
item ids) rides in a part's `details`, as JSON, and only this module reads or writes it.

Importing this module imports pydantic-ai (half a second); `models/pydantic_ai.py` does it late.
"""

from __future__ import annotations

import base64
import copy
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import JsonValue
from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition as ProviderTool

from helix_dbos.core.messages import (
    AnsweredCall,
    AssistantContent,
    AssistantPart,
    CallPart,
    FilePart,
    NoticeContent,
    TextPart,
    ThinkingPart,
    Usage,
    UserContent,
)
from helix_dbos.core.storable import MAX_RESULT_BYTES, NotStorable, clean_text, storable, storable_json
from helix_dbos.errors import ModelError
from helix_dbos.models.failures import SENTENCES
from helix_dbos.models.port import ModelReply, ModelRequest, ToolDefinition

__all__ = ["to_messages", "to_parameters", "to_reply", "to_settings"]

logger = logging.getLogger(__name__)

_DETAILS_LIMIT = 16 * MAX_RESULT_BYTES
_MAX_DEPTH = 100
_NOT_KEPT = frozenset({"timestamp", "logprobs"})
"""Provider details that no provider reads back, and that are bulky or not JSON."""


# --- our request, for pydantic-ai


def to_messages(request: ModelRequest, *, native_errors: bool) -> list[pai.ModelMessage]:
    """The history as pydantic-ai messages, deterministic: the same history gives the same messages.

    Args:
        native_errors: Whether the provider marks a tool result as an error beside its text. Where
            it does not, pydantic-ai would wrap the text in JSON, so an error goes as a plain result.
    """
    messages: list[pai.ModelMessage] = []
    for item in request.history:
        if isinstance(item, AssistantContent):
            messages.append(_response(item))
            continue
        parts = _request_parts(item, native_errors=native_errors)
        last = messages[-1] if messages else None
        if isinstance(last, pai.ModelRequest):
            last.parts = [*last.parts, *parts]
        else:
            messages.append(pai.ModelRequest(parts=parts))
    _instruct(messages, request.instructions)
    return messages


def _instruct(messages: list[pai.ModelMessage], instructions: str) -> None:
    """Put the instructions on the last request; pydantic-ai's adapters take them from there."""
    if not instructions:
        return
    for message in reversed(messages):
        if isinstance(message, pai.ModelRequest):
            message.instructions = instructions
            return
    messages.append(pai.ModelRequest(parts=[], instructions=instructions))


def _request_parts(
    item: UserContent | NoticeContent | tuple[AnsweredCall, ...], *, native_errors: bool
) -> list[pai.ModelRequestPart]:
    if isinstance(item, NoticeContent):
        return [pai.UserPromptPart(item.text)]
    if isinstance(item, UserContent):
        return [_user_prompt(item)]
    return [_tool_return(call, native_errors=native_errors) for call in item]


def _user_prompt(item: UserContent) -> pai.UserPromptPart:
    if len(item.parts) == 1 and isinstance(item.parts[0], TextPart):
        return pai.UserPromptPart(item.parts[0].text)
    return pai.UserPromptPart(
        [part.text if isinstance(part, TextPart) else _file(part) for part in item.parts]
    )


def _file(part: FilePart) -> pai.UserContent:
    if part.data is not None:
        try:
            data = base64.b64decode(part.data, validate=True)
        except ValueError:
            raise _unusable("a file part's data is not base64") from None
        return pai.BinaryContent(data, media_type=part.media_type)
    kinds: dict[str, type[pai.ImageUrl | pai.AudioUrl | pai.VideoUrl]] = {
        "image": pai.ImageUrl,
        "audio": pai.AudioUrl,
        "video": pai.VideoUrl,
    }
    assert part.url is not None, "a file part has one source"
    kind = kinds.get(part.media_type.partition("/")[0], pai.DocumentUrl)
    return kind(url=part.url, media_type=part.media_type)


def _unusable(detail: str) -> ModelError:
    code = "model_request_invalid"
    return ModelError(SENTENCES[code], code=code, detail=detail)


def _tool_return(call: AnsweredCall, *, native_errors: bool) -> pai.ToolReturnPart:
    return pai.ToolReturnPart(
        tool_name=call.tool_name,
        content=_result(call.content),
        tool_call_id=call.tool_call_id,
        outcome="failed" if call.is_error and native_errors else "success",
    )


def _result(content: JsonValue) -> str | dict[str, JsonValue]:
    """Text and objects as they are; the rest as JSON text.

    pydantic-ai sends null and an empty list as nothing at all, and a list to Anthropic as
    separate blocks (2.68).
    """
    if isinstance(content, (str, dict)):
        return content
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _response(item: AssistantContent) -> pai.ModelResponse:
    details = item.details or {}
    return pai.ModelResponse(
        parts=[_response_part(part) for part in item.parts],
        model_name=item.model,
        provider_name=_text(details, "provider_name"),
        provider_url=_text(details, "provider_url"),
        canonical_system=_text(details, "canonical_system"),
        provider_response_id=_text(details, "provider_response_id"),
        provider_details=_object(details, "provider_details"),
    )


def _response_part(part: AssistantPart) -> pai.ModelResponsePart:
    details = part.details or {}
    name, item_id = _text(details, "provider_name"), _text(details, "id")
    provider_details = _object(details, "provider_details")
    match part:
        case TextPart():
            return pai.TextPart(part.text, id=item_id, provider_name=name, provider_details=provider_details)
        case ThinkingPart():
            return pai.ThinkingPart(
                part.text,
                id=item_id,
                signature=_text(details, "signature"),
                provider_name=name,
                provider_details=provider_details,
            )
        case CallPart():
            return pai.ToolCallPart(
                part.tool_name,
                copy.deepcopy(part.arguments),
                tool_call_id=part.tool_call_id,
                id=item_id,
                provider_name=name,
                provider_details=provider_details,
            )


def _text(details: Mapping[str, JsonValue], key: str) -> str | None:
    value = details.get(key)
    return value if isinstance(value, str) else None


def _object(details: Mapping[str, JsonValue], key: str) -> dict[str, Any] | None:
    value = details.get(key)
    return copy.deepcopy(value) if isinstance(value, dict) else None


def to_parameters(tools: Sequence[ToolDefinition]) -> ModelRequestParameters:
    """The tools as request parameters; an output tool forbids a plain text end.

    Providers then force a tool call, except where forcing would switch the model's thinking off.
    """
    functions = [_tool(tool) for tool in tools if not tool.is_output]
    outputs = [_tool(tool) for tool in tools if tool.is_output]
    if not outputs:
        return ModelRequestParameters(function_tools=functions)
    return ModelRequestParameters(
        function_tools=functions, output_tools=outputs, output_mode="tool", allow_text_output=False
    )


def _tool(tool: ToolDefinition) -> ProviderTool:
    return ProviderTool(
        name=tool.name,
        description=tool.description,
        parameters_json_schema=copy.deepcopy(dict(tool.parameters)),
        kind="output" if tool.is_output else "function",
    )


def to_settings(settings: Mapping[str, JsonValue], *, retries_off: bool) -> ModelSettings:
    """The settings as given; with `retries_off`, the provider's SDK sends each request once."""
    given: dict[str, JsonValue] = dict(settings)
    if retries_off:
        given.setdefault("max_retries", 0)
    return cast("ModelSettings", given)


# --- pydantic-ai's response, for us


def to_reply(response: pai.ModelResponse) -> ModelReply:
    """The response as our records: text, thinking and calls in order, every string storable.

    Parts we have no record for (a provider's own tools, generated files) are left out; a call
    to one of our tools never is.
    """
    parts = [kept for part in response.parts if (kept := _part(part)) is not None]
    if not parts and (refusal := (response.provider_details or {}).get("refusal")):
        parts = [TextPart(text=clean_text(str(refusal)))]
    content = AssistantContent(
        parts=tuple(parts),
        model=clean_text(response.model_name) if response.model_name else None,
        finish_reason=response.finish_reason,
        details=_response_details(response),
    )
    return ModelReply(content=content, usage=_usage(response))


def _part(part: pai.ModelResponsePart) -> AssistantPart | None:
    match part:
        case pai.TextPart():
            return TextPart(text=clean_text(part.content), details=_details(part)) if part.content else None
        case pai.ThinkingPart():
            details = _details(part, signature=part.signature)
            keep = part.content or details
            return ThinkingPart(text=clean_text(part.content), details=details) if keep else None
        case pai.ToolCallPart():
            return _call(part)
        case _:
            logger.info(
                "a part of the reply has no record here and is left out",
                extra={"event": "model_part_dropped", "part_kind": part.part_kind},
            )
            return None


def _call(part: pai.ToolCallPart) -> CallPart:
    return CallPart(
        tool_call_id=clean_text(part.tool_call_id),
        tool_name=clean_text(part.tool_name),
        arguments=_arguments(part.args),
        details=_details(part),
    )


def _arguments(args: str | Mapping[str, Any] | None) -> dict[str, JsonValue] | str:
    """The parsed object, or the model's own text when it is not one or is nested too deeply."""
    if not args:
        return {}
    try:
        parsed = cast("JsonValue", json.loads(args) if isinstance(args, str) else dict(args))
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict) and _is_shallow(parsed):
        return {clean_text(key): storable_json(value) for key, value in parsed.items()}
    return clean_text(args if isinstance(args, str) else repr(args))


def _is_shallow(value: JsonValue) -> bool:
    """Whether the value nests at most 100 deep: pydantic (2.14) reads back no more than about 200."""
    level: list[JsonValue] = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return True
        level = inner
    return False


def _details(
    part: pai.TextPart | pai.ThinkingPart | pai.ToolCallPart, *, signature: str | None = None
) -> dict[str, JsonValue] | None:
    kept = _compact(
        {"id": part.id, "signature": signature, "provider_details": _provider_details(part.provider_details)}
    )
    if kept is None:
        return None
    return _compact({"provider_name": part.provider_name, **kept})


def _response_details(response: pai.ModelResponse) -> dict[str, JsonValue] | None:
    url = response.provider_url
    return _compact(
        {
            "provider_name": response.provider_name,
            "provider_url": url if url and "@" not in url else None,
            "canonical_system": response.canonical_system,
            "provider_response_id": response.provider_response_id,
            "provider_details": _provider_details(response.provider_details),
        }
    )


def _provider_details(details: Mapping[str, Any] | None) -> JsonValue:
    """The details as JSON, None when there is nothing to keep; never raises."""
    kept = {key: value for key, value in (details or {}).items() if key not in _NOT_KEPT}
    try:
        value = storable(kept, limit=_DETAILS_LIMIT)
    except NotStorable:
        value = None
    if value is None or not _is_shallow(value):
        logger.warning("details of a reply are not storable", extra={"event": "model_details_dropped"})
        return None
    return value or None


def _compact(values: Mapping[str, JsonValue]) -> dict[str, JsonValue] | None:
    return {key: storable_json(value) for key, value in values.items() if value is not None} or None


def _usage(response: pai.ModelResponse) -> Usage:
    usage = response.usage
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
