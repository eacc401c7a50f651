"""What is known after the performance: from the store, from the witness, and from the shop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row
from pydantic import JsonValue

from helix_dbos.cli.demo.script import ORDER
from helix_dbos.cli.demo.shop import Shop
from helix_dbos.cli.demo.stage import Stage
from helix_dbos.cli.demo.witness import Seen, Sight
from helix_dbos.store.database import connection_info

__all__ = ["Body", "CallFacts", "Facts", "gather", "open_bodies", "standing_by"]

_CALLS = """
SELECT c.dispatch_id, c.step_index, c.tool_name, c.replay, c.concurrency_group, c.sequential, c.bodies,
       a.outcome, a.reason, a.origin,
       (SELECT count(*) FROM answers n WHERE n.dispatch_id = c.dispatch_id AND n.superseded_by IS NULL)
           AS answers
  FROM calls c
  LEFT JOIN LATERAL (SELECT outcome, reason, origin FROM answers
                      WHERE dispatch_id = c.dispatch_id AND superseded_by IS NULL
                      ORDER BY n DESC LIMIT 1) a ON true
 WHERE c.run_id = %s AND c.superseded_by IS NULL
 ORDER BY c.step_index, c.call_index
"""

_OPEN_BODIES = "SELECT dispatch_id, replay FROM calls WHERE run_id = %s AND state = 'open' AND bodies > 0"


@dataclass(frozen=True, slots=True)
class Body:
    """One body as the witness saw it."""

    process: str
    finished: bool


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One call: what the store holds of it, and the bodies that the witness saw."""

    dispatch_id: str
    step_index: int
    tool_name: str
    replay: str
    concurrency_group: str | None
    sequential: bool
    bodies: int
    outcome: str | None
    reason: str | None
    origin: str | None
    answers: int
    seen: tuple[Body, ...]

    @property
    def cut_off(self) -> bool:
        """Whether a body of it was killed."""
        return any(not body.finished for body in self.seen)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the verdict rests on.

    Args:
        asked: The steps that the model was asked for, with the process that asked, in order.
        replies: How many replies the store holds.
        took_over_seconds: From the kill to the first thing the witness saw of B.
        shop: What the shop holds of the order.
    """

    status: str
    output: JsonValue
    calls: tuple[CallFacts, ...]
    asked: tuple[tuple[int, str], ...]
    replies: int
    took_over_seconds: float
    strangers: int
    shop: dict[str, JsonValue]


def _connect(stage: Stage) -> psycopg.Connection[dict[str, Any]]:
    conninfo = connection_info(stage.url, stage.schema, application="helix-dbos demo")
    return psycopg.Connection[dict[str, Any]].connect(conninfo, autocommit=True, row_factory=dict_row)


def open_bodies(stage: Stage, run_id: str) -> dict[str, str]:
    """The calls whose bodies are claimed and not answered, with their policies."""
    with _connect(stage) as connection:
        rows = connection.execute(_OPEN_BODIES, (run_id,)).fetchall()
    return {str(row["dispatch_id"]): str(row["replay"]) for row in rows}


def standing_by(stage: Stage, pid: int, settled_seconds: float) -> bool:
    """Whether the worker with this pid has been an executor for so long."""
    with _connect(stage) as connection:
        row = connection.execute(
            "SELECT 1 AS there FROM executors WHERE pid = %s AND role = 'worker'"
            " AND started_at <= now() - make_interval(secs => %s)",
            (pid, settled_seconds),
        ).fetchone()
    return row is not None


async def gather(stage: Stage, run_id: str, killed_at: float) -> Facts:
    """Ask all three, once the run has ended."""
    seen = stage.witness.read()
    with _connect(stage) as connection:
        run = connection.execute("SELECT status, output FROM runs WHERE run_id = %s", (run_id,)).fetchone()
        rows = connection.execute(_CALLS, (run_id,)).fetchall()
        replies = connection.execute(
            "SELECT count(*)::int AS number FROM messages WHERE run_id = %s AND kind = 'assistant'", (run_id,)
        ).fetchone()
    assert run is not None, "the run was accepted"
    assert replies is not None, "a count gives a row"
    calls = tuple(_call(row, seen) for row in rows)
    known = {call.dispatch_id for call in calls}
    shop = Shop(connection_info(stage.url, stage.shop_schema, application="helix-dbos demo"))
    return Facts(
        status=run["status"],
        output=run["output"],
        calls=calls,
        asked=tuple((int(line.about), line.process) for line in seen if line.sight is Sight.MODEL_ASKED),
        replies=replies["number"],
        took_over_seconds=min(line.at for line in seen if line.process == "B") - killed_at,
        strangers=len({line.dispatch_id for line in seen if line.dispatch_id} - known),
        shop=await shop.look_up(ORDER),
    )


def _call(row: dict[str, Any], seen: Sequence[Seen]) -> CallFacts:
    mine = [line for line in seen if line.dispatch_id == row["dispatch_id"]]
    finished = {(line.process, line.attempt) for line in mine if line.sight is Sight.BODY_FINISHED}
    bodies = tuple(
        Body(line.process, (line.process, line.attempt) in finished)
        for line in mine
        if line.sight is Sight.BODY_STARTED
    )
    return CallFacts(**row, seen=bodies)
