"""The history given to a model: each call of each reply paired with its answer, once.

Tool results are not messages; they are interleaved here from the current answers, so a call
can be paired only once and never stays unpaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from helix_dbos.core.calls import Answer
from helix_dbos.core.messages import (
    AnsweredCall,
    AssistantContent,
    HistoryItem,
    NoticeContent,
    UserContent,
)
from helix_dbos.core.states import Outcome

__all__ = ["Unpaired", "build_history"]


class Unpaired(Exception):
    """A call has no current answer: the model must not be asked."""


def build_history(
    messages: Iterable[UserContent | AssistantContent | NoticeContent], answers: Mapping[str, Answer]
) -> tuple[HistoryItem, ...]:
    """The current messages in order, every reply's calls answered right behind it.

    Args:
        messages: The unsuperseded messages of the session in order.
        answers: The current answer of every call by its `tool_call_id`.

    Raises:
        Unpaired: When a call has no answer.
    """
    history: list[HistoryItem] = []
    for message in messages:
        history.append(message)
        if isinstance(message, AssistantContent) and message.calls:
            history.append(
                tuple(_answered(part.tool_call_id, part.tool_name, answers) for part in message.calls)
            )
    return tuple(history)


def _answered(tool_call_id: str, tool_name: str, answers: Mapping[str, Answer]) -> AnsweredCall:
    answer = answers.get(tool_call_id)
    if answer is None:
        raise Unpaired(tool_call_id)
    return AnsweredCall(
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        content=answer.result,
        is_error=answer.outcome is not Outcome.RETURNED,
    )
