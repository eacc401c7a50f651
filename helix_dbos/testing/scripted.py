"""A model that answers from a script, for tests of agents and for crash tests.

It holds no place in the script: the reply is picked by what the request's history shows, so a
process started anew after a crash goes on exactly where the saved conversation stands.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from helix_dbos.core.messages import AssistantContent, AssistantPart, CallPart, TextPart, Usage, UserContent
from helix_dbos.core.states import FINISH_TOOL
from helix_dbos.core.storable import clean_text, storable_json
from helix_dbos.errors import ModelError
from helix_dbos.models.port import ModelReply, ModelRequest

__all__ = [
    "Reply",
    "Script",
    "ScriptedCall",
    "ScriptedFailure",
    "ScriptedModel",
    "ScriptedReply",
    "call",
    "calls",
    "fails_once",
    "finish",
    "say",
    "turns",
]


_ONE_REQUEST = Usage(requests=1)


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One requested tool use; made by `call`."""

    tool_name: str
    arguments: Mapping[str, JsonValue] | str = field(default_factory=dict[str, JsonValue])
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A text, calls, or both; made by `say` and `calls`."""

    text: str | None = None
    calls: tuple[ScriptedCall, ...] = ()
    usage: Usage = _ONE_REQUEST


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """A reply that fails first; made by `fails_once`."""

    error: Exception
    then: Reply
    times: int = 1


_Plain = str | ScriptedCall | ScriptedReply | AssistantContent | ModelReply
Reply = _Plain | ScriptedFailure | Exception
"""A plain text is said, a call is made alone, an exception is raised whenever its place is reached."""

Script = Sequence[Reply] | Callable[[ModelRequest], Reply | Awaitable[Reply]]
"""The replies of every turn in order, or a function of the request, sync or async."""


def say(text: str, *, usage: Usage = _ONE_REQUEST) -> ScriptedReply:
    """A reply of text alone."""
    return ScriptedReply(text=text, usage=usage)


def call(
    tool_name: str, arguments: Mapping[str, JsonValue] | str | None = None, *, id: str | None = None
) -> ScriptedCall:
    """A call of a tool; its id follows from its place in the session unless one is given.

    Args:
        arguments: An object, or a text to play a model that writes broken JSON.
    """
    return ScriptedCall(tool_name, {} if arguments is None else arguments, id)


def calls(*requested: ScriptedCall, text: str | None = None, usage: Usage = _ONE_REQUEST) -> ScriptedReply:
    """A reply of several calls, in this order, with an optional text before them."""
    return ScriptedReply(text=text, calls=requested, usage=usage)


def finish(output: Mapping[str, JsonValue], *, id: str | None = None) -> ScriptedCall:
    """The call that hands over a run's typed output."""
    return call(FINISH_TOOL, output, id=id)


def fails_once(error: Exception, then: Reply, *, times: int = 1) -> ScriptedFailure:
    """A reply that is preceded by failures: the error is raised first, `times` times per step.

    The failures are counted in memory, per model object and step of a session: a process started
    anew fails anew. An exception put in the script by itself is raised every time instead.
    """
    return ScriptedFailure(error, then, times)


def turns(*scripts: Sequence[Reply]) -> Callable[[ModelRequest], Reply]:
    """A script for each turn of a session: the first user message gets the first one, and so on."""

    def pick(request: ModelRequest) -> Reply:
        turn = sum(isinstance(item, UserContent) for item in request.history) - 1
        if not 0 <= turn < len(scripts):
            raise _exhausted(f"turn {turn + 1} was asked for, the script has {len(scripts)}")
        return _nth(scripts[turn], _replies_in_turn(request))

    return pick


class ScriptedModel:
    """Answers every request from its script, the same request always in the same way.

    In a sequence, the reply is the one at the number of replies since the last user message: each
    turn starts at the first. Past its end a `ModelError` says so.

    Args:
        replies: The replies of every turn, or a function that picks one; see also `turns`.
        on_request: Told of every request before it is answered; sync or async.
    """

    def __init__(
        self,
        replies: Script,
        *,
        on_request: Callable[[ModelRequest], Awaitable[None] | None] | None = None,
    ) -> None:
        self._replies = replies
        self._on_request = on_request
        self._failures: dict[tuple[str, int, int], int] = {}

    async def request(self, request: ModelRequest) -> ModelReply:
        """The scripted reply for this request.

        Raises:
            ModelError: The script has no reply here; code `script_exhausted`.
            Exception: Whatever the script says is raised here.
        """
        if self._on_request is not None:
            told = self._on_request(request)
            if inspect.isawaitable(told):
                await told
        reply = self._unless_failing(await self._pick(request), request)
        if isinstance(reply, Exception):
            raise reply.with_traceback(None)
        return _as_model_reply(reply, request.step_index)

    async def _pick(self, request: ModelRequest) -> Reply:
        if not callable(self._replies):
            return _nth(self._replies, _replies_in_turn(request))
        picked = self._replies(request)
        return await picked if inspect.isawaitable(picked) else picked

    def _unless_failing(self, reply: Reply, request: ModelRequest) -> _Plain | Exception:
        depth = 0
        while isinstance(reply, ScriptedFailure):
            place = (request.session_id, request.step_index, depth)
            failed = self._failures.get(place, 0)
            if failed < reply.times:
                self._failures[place] = failed + 1
                return reply.error
            reply, depth = reply.then, depth + 1
        return reply


def _replies_in_turn(request: ModelRequest) -> int:
    count = 0
    for item in reversed(request.history):
        if isinstance(item, UserContent):
            break
        count += isinstance(item, AssistantContent)
    return count


def _nth(replies: Sequence[Reply], index: int) -> Reply:
    if index >= len(replies):
        raise _exhausted(f"reply {index + 1} of this turn was asked for, the script has {len(replies)}")
    return replies[index]


def _exhausted(detail: str) -> ModelError:
    return ModelError("The script has no reply for this request.", code="script_exhausted", detail=detail)


def _as_model_reply(reply: _Plain, step_index: int) -> ModelReply:
    if isinstance(reply, ModelReply):
        return reply
    if isinstance(reply, AssistantContent):
        return ModelReply(content=reply)
    if isinstance(reply, str):
        reply = ScriptedReply(text=reply)
    if isinstance(reply, ScriptedCall):
        reply = ScriptedReply(calls=(reply,))
    return ModelReply(content=_content(reply, step_index), usage=reply.usage)


def _content(reply: ScriptedReply, step_index: int) -> AssistantContent:
    parts: list[AssistantPart] = []
    if reply.text is not None:
        parts.append(TextPart(text=clean_text(reply.text)))
    parts.extend(_call_part(made, f"call-{step_index}-{index}") for index, made in enumerate(reply.calls))
    return AssistantContent(
        parts=tuple(parts), model="scripted", finish_reason="tool_call" if reply.calls else "stop"
    )


def _call_part(made: ScriptedCall, default_id: str) -> CallPart:
    arguments = made.arguments
    return CallPart(
        tool_call_id=made.id or default_id,
        tool_name=made.tool_name,
        arguments=(
            clean_text(arguments)
            if isinstance(arguments, str)
            else {clean_text(key): storable_json(value) for key, value in arguments.items()}
        ),
    )
