"""The one look at DBOS's own table: which runs will the engine not bring any further?

Names of DBOS 3.4's `workflow_status` appear in this file and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, cast

from helix_dbos.engine.port import StrandedCause, StrandedRun
from helix_dbos.store.database import Row, Transaction
from helix_dbos.store.executors import LIVE_EXECUTORS

__all__ = ["find_claims", "find_leftovers", "find_lost_runs"]

# A claim under a reused id whose live holder started later belongs to that holder's predecessor;
# our own ids are never reused. A row started without the queue has created_at only.
_LOST = """
WITH live AS MATERIALIZED ({live})
SELECT run_id, session_id, workflow_id, generation, status, cause
  FROM (
    SELECT r.run_id, r.session_id, r.workflow_id, r.generation, r.status, r.queued_at,
           CASE
             WHEN w.workflow_uuid IS NULL THEN
               CASE WHEN r.queued_at < now() - interval '5 seconds' THEN 'missing' END
             WHEN w.status = 'PENDING' THEN
               CASE WHEN NOT EXISTS (
                        SELECT 1 FROM live
                         WHERE live.dbos_executor_id = w.executor_id
                           AND (live.executor_id = w.executor_id
                                OR live.started_at <= to_timestamp(
                                     coalesce(w.started_at_epoch_ms, w.created_at) / 1000.0)))
                    THEN 'dead_executor' END
             WHEN w.status IN ('ENQUEUED', 'DELAYED') THEN
               CASE WHEN NOT EXISTS (SELECT 1 FROM live
                                      WHERE live.role = 'worker' AND live.version = w.application_version)
                     AND EXISTS (SELECT 1 FROM live WHERE live.role = 'worker')
                    THEN 'no_worker' END
             ELSE 'ended'
           END AS cause
      FROM runs r
      LEFT JOIN "{dbos}".workflow_status w ON w.workflow_uuid = r.workflow_id
     WHERE r.status IN ('queued', 'running')
       AND (r.next_rescue_at IS NULL OR r.next_rescue_at <= now())
  ) seen
 WHERE cause IS NOT NULL
 ORDER BY queued_at
 LIMIT %s
"""

_CLAIMS = """
SELECT r.run_id, r.session_id, r.workflow_id, r.generation, r.status, 'unknown_here' AS cause
  FROM runs r JOIN "{dbos}".workflow_status w ON w.workflow_uuid = r.workflow_id
 WHERE r.status IN ('queued', 'running') AND w.status = 'PENDING' AND w.executor_id = %s
   AND coalesce(w.started_at_epoch_ms, w.created_at) < (extract(epoch FROM now()) - 5) * 1000
   AND (r.next_rescue_at IS NULL OR r.next_rescue_at <= now())
 LIMIT %s
"""

_LEFTOVERS = """
SELECT w.workflow_uuid AS workflow_id
  FROM "{dbos}".workflow_status w
  JOIN runs r ON r.run_id = split_part(w.workflow_uuid, ':', 2)
 WHERE w.name = 'helix.turn' AND w.status IN ('ENQUEUED', 'DELAYED', 'PENDING')
   AND w.application_name = %s
   AND (r.workflow_id <> w.workflow_uuid OR r.status NOT IN ('queued', 'running'))
   AND r.queued_at < now() - interval '3 seconds'
   AND (r.ended_at IS NULL OR r.ended_at < now() - interval '3 seconds')
 LIMIT %s
"""


def _sql(template: str, dbos_schema: str) -> LiteralString:
    # The schema is a checked identifier (settings), never user input.
    return cast("LiteralString", template.format(live=LIVE_EXECUTORS, dbos=dbos_schema))


def _lost(row: Row) -> StrandedRun:
    known: dict[str, Any] = {**row, "cause": StrandedCause(row["cause"])}
    return StrandedRun(**known)


async def find_lost_runs(tx: Transaction, dbos_schema: str, limit: int) -> Sequence[StrandedRun]:
    """The lost runs whose pause is over, longest waiting first; one statement, no locks."""
    rows = await tx.rows(_sql(_LOST, dbos_schema), (limit,))
    return [_lost(row) for row in rows]


async def find_claims(
    tx: Transaction, dbos_schema: str, dbos_executor_id: str, limit: int
) -> Sequence[StrandedRun]:
    """The open runs whose stretch has been this executor's for five seconds, by the engine's rows."""
    rows = await tx.rows(_sql(_CLAIMS, dbos_schema), (dbos_executor_id, limit))
    return [_lost(row) for row in rows]


async def find_leftovers(tx: Transaction, dbos_schema: str, application: str, limit: int) -> Sequence[str]:
    """Workflow ids of unfinished engine rows that no run is carried by any more."""
    rows = await tx.rows(_sql(_LEFTOVERS, dbos_schema), (application, limit))
    return [str(row["workflow_id"]) for row in rows]
