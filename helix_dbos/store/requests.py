"""Request keys: the same key on a session returns the run it made the first time."""

from __future__ import annotations

from helix_dbos.errors import ConflictError
from helix_dbos.store.database import Transaction

__all__ = ["insert_request", "run_of_request"]


async def run_of_request(tx: Transaction, session_id: str, request_key: str, body_hash: str) -> str | None:
    """The run this key made before, or None. Needs the session's lock.

    Raises:
        ConflictError: The key was used with another body.
    """
    row = await tx.one(
        "SELECT run_id, body_hash FROM requests WHERE session_id = %s AND request_key = %s",
        (session_id, request_key),
    )
    if row is None:
        return None
    if row["body_hash"] != body_hash:
        raise ConflictError(
            "This request key was used before with another request.",
            code="request_key_reused",
            detail=f"it made run {row['run_id']}",
        )
    return str(row["run_id"])


async def insert_request(
    tx: Transaction, session_id: str, request_key: str, body_hash: str, run_id: str
) -> None:
    """Bind the key to its run."""
    await tx.execute(
        "INSERT INTO requests (session_id, request_key, body_hash, run_id) VALUES (%s, %s, %s, %s)",
        (session_id, request_key, body_hash, run_id),
    )
