"""Enqueue through DBOS's own SQL function, inside whatever transaction decided it.

This is the transactional outbox of the whole system: there is no relay process, and the
workflow exists if and only if the rows that call for it do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString, cast

from helix_dbos.store.database import Transaction

__all__ = ["TURN_WORKFLOW", "QueueAddress", "enqueue_turn"]

TURN_WORKFLOW = "helix.turn"

_ENQUEUE = """
SELECT "{dbos}".enqueue_workflow(
    workflow_name => 'helix.turn', queue_name => %s, positional_args => ARRAY[to_json(%s::text)],
    workflow_id => %s, app_version => %s, priority => %s, application_name => %s,
    delay_until_epoch_ms =>
        CASE WHEN %s::float8 > 0 THEN (extract(epoch FROM now()) * 1000 + %s::float8 * 1000)::bigint END)
"""


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """Where stretches go. All three names are always given: a row without a version is taken
    only by the latest registered one, and one without an application by anybody.
    """  # noqa: D205

    dbos_schema: str
    queue: str
    app_version: str
    application: str


async def enqueue_turn(
    tx: Transaction, to: QueueAddress, *, run_id: str, workflow_id: str, priority: int, delay_seconds: float
) -> None:
    """Enqueue one stretch in the caller's transaction.

    `workflow_id` must be fresh: an enqueue with a used id silently does nothing.
    """
    statement = cast("LiteralString", _ENQUEUE.format(dbos=to.dbos_schema))
    await tx.send(
        statement,
        (
            to.queue,
            run_id,
            workflow_id,
            to.app_version,
            priority,
            to.application,
            delay_seconds,
            delay_seconds,
        ),
    )
