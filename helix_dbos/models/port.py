"""The port to a model: one request, one reply, no loop. No provider is known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from helix_dbos.core.messages import AssistantContent, HistoryItem, Usage
from helix_dbos.errors import ModelError

__all__ = ["ModelPort", "ModelReply", "ModelRequest", "ToolDefinition", "TransientModelError"]


class TransientModelError(ModelError):
    """The request failed in a way that may pass: it is tried again with growing pauses.

    Args:
        retry_after_seconds: How long the provider asked to wait, when it said so.
    """

    default_code = "model_unavailable"

    def __init__(
        self,
        error: str,
        *,
        code: str | None = None,
        detail: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(error, code=code, detail=detail)
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles cleanly, with the wait the provider asked for."""
        return (_rebuild, (type(self), self.error, self.code, self.detail, self.retry_after_seconds))


def _rebuild(
    kind: type[TransientModelError], error: str, code: str, detail: str | None, wait: float | None
) -> TransientModelError:
    return kind(error, code=code, detail=detail, retry_after_seconds=wait)


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as the model sees it.

    Args:
        parameters: The JSON Schema of its arguments, an object schema.
        is_output: Whether calling it hands over the run's typed output.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything one model request needs; the history pairs every call with its answer.

    Args:
        settings: Provider settings by name, such as `temperature` and `max_tokens`.
        step_index: The step this reply will be saved as, from 0 within the session.
    """

    instructions: str
    history: Sequence[HistoryItem]
    tools: Sequence[ToolDefinition]
    session_id: str
    run_id: str
    step_index: int
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


_ONE_REQUEST = Usage(requests=1)


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One reply with what it cost."""

    content: AssistantContent
    usage: Usage = _ONE_REQUEST


@runtime_checkable
class ModelPort(Protocol):
    """A model that can be asked; adapters live beside this file."""

    async def request(self, request: ModelRequest) -> ModelReply:
        """Ask once and return the reply.

        Raises:
            TransientModelError: The same request may succeed later.
            ModelError: It will not.
        """
        ...
