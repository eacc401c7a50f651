"""The hot writes of a live execution: one statement each, one round trip, fenced in itself.

Each locks the session row where its generation is still the execution's, and writes only if
it is. That is enough of a fence: attach, rescue, hand-over and every end raise the generation,
so while it stands nobody else can have changed what the statement writes. These statements
decide nothing from other rows, which a statement that waited for a lock would see as they
were before the wait; what has to look first is a transaction of *lock, then look, then write*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg.types.json import Jsonb
from pydantic import JsonValue

from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.messages import AssistantContent, NoticeContent, Usage
from helix_dbos.core.states import CheckpointKind
from helix_dbos.ids import new_checkpoint_id
from helix_dbos.store.database import Transaction

__all__ = ["Holder", "Reply", "write_answers", "write_end", "write_reply"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who writes: an execution, named by what the fence checks."""

    session_id: str
    run_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to write, with what it costs and the calls it makes.

    Args:
        claimed: The calls whose first body is claimed with it.
        notice: A sentence to the model right behind the reply.
        checkpoint: The mark to set, if any.
    """

    step_index: int
    steps_used: int
    usage: Usage
    content: AssistantContent
    calls: Sequence[Call] = ()
    claimed: frozenset[str] = frozenset()
    notice: NoticeContent | None = None
    checkpoint: CheckpointKind | None = None

    def values(self, holder: Holder) -> dict[str, Any]:
        """The statement's parameters."""
        contents = [("assistant", self.content), *([("notice", self.notice)] if self.notice else [])]
        return {
            "session": holder.session_id,
            "run": holder.run_id,
            "generation": holder.generation,
            "step": self.step_index,
            "steps_used": self.steps_used,
            "usage": Jsonb(self.usage.model_dump()),
            "messages": Jsonb(
                [
                    {"kind": kind, "content": content.model_dump(mode="json", exclude_none=True)}
                    for kind, content in contents
                ]
            ),
            "message_count": len(contents),
            "calls": Jsonb([_call(call, call.dispatch_id in self.claimed, holder) for call in self.calls]),
            "answers": Jsonb([_answer(call.dispatch_id, call.answer) for call in self.calls if call.answer]),
            "checkpoint_id": new_checkpoint_id(),
            "checkpoint": self.checkpoint.value if self.checkpoint else None,
        }


def _call(call: Call, claimed: bool, holder: Holder) -> dict[str, Any]:
    return {
        "dispatch_id": call.dispatch_id,
        "call_index": call.call_index,
        "tool_call_id": call.tool_call_id,
        "tool_name": call.tool_name,
        "arguments": call.arguments,
        "kind": call.kind.value,
        "replay": call.replay.value,
        "concurrency_group": call.concurrency_group,
        "sequential": call.sequential,
        "generation": holder.generation if claimed else 0,
        "bodies": 1 if claimed else 0,
        "state": call.state.value,
    }


def _answer(dispatch_id: str, answer: Answer) -> dict[str, Any]:
    return {
        "dispatch_id": dispatch_id,
        "outcome": answer.outcome.value,
        "reason": answer.reason.value if answer.reason else None,
        "result": answer.result,
        "origin": answer.origin.value,
    }


# What a reply writes once `run` holds its run; `run` is empty when the fence refuses.
_REPLY: LiteralString = """
    place AS (
        UPDATE session_counters c SET message_seq = c.message_seq + %(message_count)s
          FROM run WHERE c.session_id = %(session)s RETURNING c.message_seq),
    new_messages AS (
        INSERT INTO messages (session_id, seq, run_id, step_index, kind, content)
        SELECT %(session)s, place.message_seq - %(message_count)s + m.n, %(run)s,
               CASE m.value->>'kind' WHEN 'assistant' THEN %(step)s::int END,
               m.value->>'kind', m.value->'content'
          FROM place, jsonb_array_elements(%(messages)s) WITH ORDINALITY AS m (value, n)),
    new_calls AS (
        INSERT INTO calls (dispatch_id, session_id, run_id, owner_run_id, step_index, call_index,
                           tool_call_id, tool_name, arguments, kind, replay, concurrency_group, sequential,
                           generation, bodies, state, answered_at)
        SELECT c.dispatch_id, %(session)s, %(run)s, %(run)s, %(step)s::int, c.call_index, c.tool_call_id,
               c.tool_name, c.arguments, c.kind, c.replay, c.concurrency_group, c.sequential, c.generation,
               c.bodies, c.state, CASE c.state WHEN 'answered' THEN now() END
          FROM run, jsonb_to_recordset(%(calls)s) AS c (
               dispatch_id text, call_index int, tool_call_id text, tool_name text, arguments jsonb,
               kind text, replay text, concurrency_group text, sequential boolean, generation bigint,
               bodies int, state text)),
    new_answers AS (
        INSERT INTO answers (dispatch_id, n, outcome, reason, result, origin, run_id, generation)
        SELECT a->>'dispatch_id', 1, a->>'outcome', a->>'reason', a->'result', a->>'origin', %(run)s,
               %(generation)s
          FROM run, jsonb_array_elements(%(answers)s) AS a),
    mark AS (
        INSERT INTO checkpoints (checkpoint_id, session_id, run_id, step_index, kind, message_seq, state)
        SELECT %(checkpoint_id)s, %(session)s, %(run)s, %(step)s::int, %(checkpoint)s::text,
               place.message_seq, s.state
          FROM place, session_state s
         WHERE s.session_id = %(session)s AND %(checkpoint)s::text IS NOT NULL)
    SELECT count(*) AS written FROM run
"""

_SAVE: LiteralString = (
    """
WITH fence AS (
        SELECT 1 FROM sessions WHERE session_id = %(session)s AND generation = %(generation)s
           FOR NO KEY UPDATE),
    run AS (
        UPDATE runs r SET step_index = %(step)s::int, steps_used = %(steps_used)s, usage = %(usage)s,
                          rescues = 0, next_rescue_at = NULL
          FROM fence WHERE r.run_id = %(run)s AND r.step_index = %(step)s::int - 1 RETURNING 1),
"""
    + _REPLY
)

_END: LiteralString = (
    """
WITH fence AS (
        UPDATE sessions SET generation = generation + 1, updated_at = now()
         WHERE session_id = %(session)s AND generation = %(generation)s RETURNING 1),
    run AS (
        UPDATE runs r SET step_index = %(step)s::int, steps_used = %(steps_used)s, usage = %(usage)s,
                          rescues = 0, next_rescue_at = NULL, status = 'completed', output = %(output)s,
                          ended_at = now()
          FROM fence WHERE r.run_id = %(run)s RETURNING 1),
"""
    + _REPLY
)

_ANSWER: LiteralString = """
WITH fence AS (
        SELECT 1 FROM sessions WHERE session_id = %(session)s AND generation = %(generation)s
           FOR NO KEY UPDATE),
    given AS (SELECT a FROM fence, jsonb_array_elements(%(answers)s) AS a),
    answered AS (
        UPDATE calls c SET state = 'answered', answered_at = now() FROM given
         WHERE c.dispatch_id = given.a->>'dispatch_id' AND c.state <> 'answered' RETURNING c.dispatch_id),
    new_answers AS (
        INSERT INTO answers (dispatch_id, n, outcome, reason, result, origin, run_id, generation)
        SELECT dispatch_id, 1 + (SELECT count(*) FROM answers o WHERE o.dispatch_id = answered.dispatch_id),
               a->>'outcome', a->>'reason', a->'result', a->>'origin', %(run)s, %(generation)s
          FROM answered JOIN given ON given.a->>'dispatch_id' = answered.dispatch_id),
    claimed AS (
        UPDATE calls c SET bodies = c.bodies + 1, generation = %(generation)s FROM fence
         WHERE c.dispatch_id = ANY(%(claims)s) AND c.generation <> %(generation)s),
    changed AS (
        UPDATE session_state s SET state = s.state || %(changed)s, version = s.version + 1 FROM fence
         WHERE s.session_id = %(session)s AND %(changed)s <> '{}'::jsonb
           AND EXISTS (SELECT 1 FROM answered) RETURNING s.state),
    forgiven AS (
        UPDATE runs r SET rescues = 0, next_rescue_at = NULL FROM fence
         WHERE r.run_id = %(run)s AND %(rescued)s),
    mark AS (
        INSERT INTO checkpoints (checkpoint_id, session_id, run_id, step_index, kind, message_seq, state)
        SELECT %(checkpoint_id)s, %(session)s, %(run)s, %(step)s, 'step_commit', c.message_seq,
               coalesce((SELECT state FROM changed), s.state)
          FROM session_counters c JOIN session_state s USING (session_id)
         WHERE c.session_id = %(session)s AND %(settled)s AND EXISTS (SELECT 1 FROM answered))
SELECT (SELECT count(*) FROM fence) AS held
"""


async def write_reply(tx: Transaction, holder: Holder, reply: Reply) -> bool:
    """Save a reply, all of it or nothing; False when nothing was written.

    Then either the fence refused, or the run is at this step already: the caller looks.
    """
    row = await tx.one(_SAVE, reply.values(holder))
    return bool(row and row["written"])


async def write_end(tx: Transaction, holder: Holder, reply: Reply, output: JsonValue) -> bool:
    """Save a run's last reply and end the run completed; False when the fence refused."""
    row = await tx.one(_END, {**reply.values(holder), "output": Jsonb(output)})
    return bool(row and row["written"])


async def write_answers(
    tx: Transaction,
    holder: Holder,
    *,
    step_index: int,
    answers: Sequence[tuple[str, Answer]],
    claims: Sequence[str],
    changed: Mapping[str, JsonValue],
    settled: bool,
    rescued: bool,
) -> bool:
    """Answer calls of the current step and claim what that lets start; False when the fence refused.

    Idempotent: a call that has its answer keeps it, a claim of this generation counts once.

    Args:
        changed: The fields of the custom state that the body set.
        settled: Whether these were the step's last answers.
        rescued: Whether rescues were counted that this progress forgives.
    """
    row = await tx.one(
        _ANSWER,
        {
            "session": holder.session_id,
            "run": holder.run_id,
            "generation": holder.generation,
            "step": step_index,
            "answers": Jsonb([_answer(dispatch_id, answer) for dispatch_id, answer in answers]),
            "claims": list(claims),
            "changed": Jsonb(dict(changed)),
            "settled": settled,
            "rescued": rescued,
            "checkpoint_id": new_checkpoint_id(),
        },
    )
    return bool(row and row["held"])
