"""The records of a conversation, as stored and as given to a model. Nothing provider-specific.

A part's `details` holds what a provider needs to get its own reply back unchanged (signed
thinking, for example); only the model adapter reads or writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

__all__ = [
    "AnsweredCall",
    "AssistantContent",
    "AssistantPart",
    "CallPart",
    "FilePart",
    "HistoryItem",
    "NoticeContent",
    "TextPart",
    "ThinkingPart",
    "Usage",
    "UserContent",
    "UserPart",
    "user_content",
]

Details = dict[str, JsonValue]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Record):
    """Plain text, from a user or a model."""

    kind: Literal["text"] = "text"
    text: str
    details: Details | None = None


class FilePart(_Record):
    """A file from a user: a URL the provider fetches, or base64 data, never both.

    Args:
        media_type: For example `image/png`.
        url: Where the provider finds it.
        data: The bytes, base64-encoded.
    """

    kind: Literal["file"] = "file"
    media_type: str
    url: str | None = None
    data: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> FilePart:
        if (self.url is None) == (self.data is None):
            raise ValueError("a file is given by its url or by its data, not by both")
        return self


class ThinkingPart(_Record):
    """A model's reasoning, kept because some providers want it back."""

    kind: Literal["thinking"] = "thinking"
    text: str
    details: Details | None = None


class CallPart(_Record):
    """A requested tool use, as the model wrote it.

    Args:
        tool_call_id: The provider's id, made unique within the session.
        arguments: The parsed JSON object, or the model's own text when it is not one.
    """

    kind: Literal["call"] = "call"
    tool_call_id: str
    tool_name: str
    arguments: dict[str, JsonValue] | str
    details: Details | None = None


UserPart = Annotated[TextPart | FilePart, Field(discriminator="kind")]
AssistantPart = Annotated[TextPart | ThinkingPart | CallPart, Field(discriminator="kind")]


class Usage(_Record):
    """Tokens and requests, additive."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        """The sum, field by field."""
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


class UserContent(_Record):
    """What a user said: at least one part."""

    parts: tuple[UserPart, ...] = Field(min_length=1)


class AssistantContent(_Record):
    """What a model replied: its parts in order, possibly none."""

    parts: tuple[AssistantPart, ...]
    model: str | None = None
    finish_reason: str | None = None
    details: Details | None = None

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """The requested calls in reply order."""
        return tuple(part for part in self.parts if isinstance(part, CallPart))


class NoticeContent(_Record):
    """A sentence from Helix to the model, shown to it as a user message."""

    text: str


class AnsweredCall(_Record):
    """A call with the text the model reads as its result.

    Args:
        content: Any JSON value; an error is its text.
        is_error: Whether the call did not simply return.
    """

    tool_call_id: str
    tool_name: str
    content: JsonValue
    is_error: bool = False


HistoryItem = UserContent | AssistantContent | NoticeContent | tuple[AnsweredCall, ...]
"""One turn-taking unit of the history given to a model; a tuple answers the reply before it."""


def user_content(message: str | Sequence[TextPart | FilePart]) -> UserContent:
    """A user message from plain text or from parts."""
    if isinstance(message, str):
        return UserContent(parts=(TextPart(text=message),))
    return UserContent(parts=tuple(message))
