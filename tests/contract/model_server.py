"""A provider on 127.0.0.1 that answers what a test tells it to and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helix_dbos.testing.scripted import ScriptedCall


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; a body that is not text is sent as JSON, or as events where those are asked for.

    Args:
        cut: Whether the connection ends before the whole body was sent.
    """

    body: object
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False

    def encoded(self, *, stream: bool) -> bytes:
        stream = stream and self.status == 200
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        body = (anthropic_events(self.body) if stream else text).encode()
        lines = [
            f"HTTP/1.1 {self.status} Scripted",
            f"content-type: {'text/event-stream' if stream else 'application/json'}",
            f"content-length: {len(body) + (10 if self.cut else 0)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


HANG = Answer("", status=0)
"""Never answered."""


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: Any


class ModelServer:
    """Answers in the order told; requests beyond that get a 599."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self._answers: list[Answer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def will_answer(self, *answers: Answer | object) -> None:
        self._answers += [item if isinstance(item, Answer) else Answer(item) for item in answers]

    async def __aenter__(self) -> ModelServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except asyncio.CancelledError:
            pass  # the test is over; asyncio (3.11) would report a cancelled handler as an error
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        pairs = (line.partition(": ") for line in head[1:] if line)
        headers = {name.lower(): value for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        received = Received(head[0].split()[1], headers, json.loads(body))
        self.received.append(received)
        answer = self._answers.pop(0) if self._answers else Answer({"error": "nothing left"}, status=599)
        if answer is HANG:
            await asyncio.Event().wait()
        writer.write(answer.encoded(stream=bool(received.body.get("stream"))))
        await writer.drain()
        return not answer.cut


def _arguments(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))


def openai_chat(text: str | None = None, calls: Sequence[ScriptedCall] = (), **more: object) -> object:
    made = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.tool_name, "arguments": _arguments(call)},
        }
        for call in calls
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop", **more}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-4o-2024-08-06",
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def openai_responses(
    text: str | None = None, calls: Sequence[ScriptedCall] = (), before: Sequence[object] = ()
) -> object:
    output: list[object] = list(before)
    if text is not None:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append(
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        )
    output += [
        {
            "type": "function_call",
            "id": f"fc_{index}",
            "call_id": call.id,
            "name": call.tool_name,
            "arguments": _arguments(call),
            "status": "completed",
        }
        for index, call in enumerate(calls)
    ]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "gpt-5-2025-08-07",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 18,
        },
    }


def anthropic(
    text: str | None = None,
    calls: Sequence[ScriptedCall] = (),
    before: Sequence[object] = (),
    stop_reason: str | None = None,
) -> object:
    content: list[object] = list(before)
    if text is not None:
        content.append({"type": "text", "text": text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.tool_name, "input": call.arguments} for call in calls
    ]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": content,
        "stop_reason": stop_reason or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def anthropic_events(message: Any) -> str:
    """A message as the events of a stream: an error object is an error event."""
    if message.get("type") == "error":
        return _event(message)
    start = {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    events = [_event(start)]
    for index, block in enumerate(message["content"]):
        begun, deltas = _begun(block)
        events.append(_event({"type": "content_block_start", "index": index, "content_block": begun}))
        events += [
            _event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas
        ]
        events.append(_event({"type": "content_block_stop", "index": index}))
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append(_event({"type": "message_delta", "delta": end, "usage": {"output_tokens": 7}}))
    return "".join([*events, _event({"type": "message_stop"})])


def _begun(block: Any) -> tuple[object, list[object]]:
    """A content block as it begins in a stream, and the deltas that complete it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "tool_use":
            given = block["input"]
            text = given if isinstance(given, str) else json.dumps(given)
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
        case _:
            return block, []


def _event(data: Any) -> str:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"
