"""Messages of a session, in the order of a counter that is locked last."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from helix_dbos.core.messages import AssistantContent, NoticeContent, UserContent
from helix_dbos.core.states import MessageKind
from helix_dbos.store.database import Row, Transaction

__all__ = ["MessageContent", "MessageRow", "append_message", "load_messages", "message_seq"]

MessageContent = UserContent | AssistantContent | NoticeContent

_KINDS: dict[type[MessageContent], MessageKind] = {
    UserContent: MessageKind.USER,
    AssistantContent: MessageKind.ASSISTANT,
    NoticeContent: MessageKind.NOTICE,
}
_CONTENTS: dict[MessageKind, type[MessageContent]] = {kind: content for content, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A current message; `step_index` is set for replies only."""

    seq: int
    run_id: str
    step_index: int | None
    content: MessageContent


async def append_message(
    tx: Transaction, session_id: str, run_id: str, content: MessageContent, step_index: int | None = None
) -> None:
    """Append a message at the next number of its session, without waiting for the result.

    Needs the session's lock.
    """
    await tx.send(
        "WITH place AS (UPDATE session_counters SET message_seq = message_seq + 1"
        " WHERE session_id = %s RETURNING message_seq)"
        " INSERT INTO messages (session_id, seq, run_id, step_index, kind, content)"
        " SELECT %s, message_seq, %s, %s, %s, %s FROM place",
        (
            session_id,
            session_id,
            run_id,
            step_index,
            _KINDS[type(content)].value,
            Jsonb(content.model_dump(mode="json", exclude_none=True)),
        ),
    )


async def load_messages(tx: Transaction, session_id: str) -> list[MessageRow]:
    """Every current message in order."""
    rows = await tx.rows(
        "SELECT seq, run_id, step_index, kind, content FROM messages"
        " WHERE session_id = %s AND superseded_by IS NULL ORDER BY seq",
        (session_id,),
    )
    return [_message(row) for row in rows]


async def message_seq(tx: Transaction, session_id: str) -> int:
    """The number of the session's last message; 0 before the first."""
    row = await tx.one("SELECT message_seq FROM session_counters WHERE session_id = %s", (session_id,))
    return int(row["message_seq"]) if row else 0


def _message(row: Row) -> MessageRow:
    content = _CONTENTS[MessageKind(row["kind"])].model_validate(row["content"])
    return MessageRow(row["seq"], row["run_id"], row["step_index"], content)
