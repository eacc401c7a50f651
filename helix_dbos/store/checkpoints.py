"""Checkpoints: O(1) marks in a session's history, each with the custom state as of then."""

from __future__ import annotations

from helix_dbos.core.states import CheckpointKind
from helix_dbos.ids import new_checkpoint_id
from helix_dbos.store.database import Transaction

__all__ = ["insert_checkpoint"]


async def insert_checkpoint(
    tx: Transaction, session_id: str, run_id: str, step_index: int, kind: CheckpointKind
) -> None:
    """Mark this point of the session; sent last, so that it sees the transaction's own writes."""
    await tx.send(
        "INSERT INTO checkpoints (checkpoint_id, session_id, run_id, step_index, kind, message_seq, state)"
        " SELECT %s, s.session_id, %s, %s, %s, c.message_seq, s.state"
        " FROM session_state s JOIN session_counters c USING (session_id) WHERE s.session_id = %s",
        (new_checkpoint_id(), run_id, step_index, kind.value, session_id),
    )
