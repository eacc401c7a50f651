"""The model step: ask the model, then save what it said in one transaction.

It is the only DBOS step of a turn, so that DBOS's tools show it. Its record is never trusted:
a re-run workflow counts steps from 1 again, so the record handed back may be an older
generation's. The tables are the truth; the step is repeated until its envelope is ours.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypedDict, cast

from pydantic import JsonValue

from helix_dbos.agents import RunContext
from helix_dbos.core.history import build_history
from helix_dbos.core.messages import AssistantContent
from helix_dbos.core.reply import Empty, ReplyPlan, plan_reply
from helix_dbos.core.storable import storable_json
from helix_dbos.errors import HelixError, ModelError, RunError
from helix_dbos.faults import FaultPoint
from helix_dbos.ids import new_dispatch_id
from helix_dbos.models.port import ModelReply, ModelRequest, TransientModelError
from helix_dbos.workflows.execution import Execution, Refused
from helix_dbos.workflows.save import save_reply

__all__ = ["take_step"]

logger = logging.getLogger(__name__)

RETRY_PAUSES_SECONDS = (1.0, 2.0, 4.0)
_LONGEST_RETRY_AFTER_SECONDS = 60.0


class _Envelope(TypedDict):
    """What the engine keeps of a model step: never the reply, which is in the tables."""

    generation: int
    step: int
    ended: bool
    refused: bool
    error: dict[str, str | None] | None


async def take_step(execution: Execution) -> bool:
    """Take one model step; True when its reply ended the run.

    Raises:
        Refused: The run was lost.
        ModelError: The model failed for good.
        RunError: Something else failed inside the step.
    """

    async def step() -> dict[str, JsonValue]:
        return cast("dict[str, JsonValue]", await _ask_and_save(execution))

    record = execution.runtime.engine.record if execution.runtime.settings.record_model_steps else None
    while True:
        taken = execution.inside_workflow(record(step)) if record else step()
        envelope = cast("_Envelope", await taken)
        if envelope["generation"] == execution.generation:
            break
    if envelope["refused"]:
        raise Refused
    if error := envelope["error"]:
        kind = ModelError if str(error["code"]).startswith("model_") else RunError
        raise kind(error["error"] or "", code=error["code"], detail=error["detail"])
    return envelope["ended"]


async def _ask_and_save(execution: Execution) -> _Envelope:
    """The step's body. It returns an envelope whatever happens: a raised error would be replayed for ever."""
    envelope = _Envelope(
        generation=execution.generation, step=execution.step_index + 1, ended=False, refused=False, error=None
    )
    try:
        reply, plan = await _ask(execution)
        execution.runtime.reach(FaultPoint.AFTER_MODEL_REQUEST, execution.run_id)
        envelope["ended"] = await save_reply(execution, reply, plan)
    except Refused:
        envelope["refused"] = True
    except HelixError as failure:
        envelope["error"] = {"code": failure.code, "error": failure.error, "detail": failure.detail}
    except Exception as failure:
        logger.exception(
            "model_step_failed", extra={"event": "model_step_failed", "run_id": execution.run_id}
        )
        envelope["error"] = {
            "code": "run_internal_error",
            "error": "The run failed with an internal error.",
            "detail": type(failure).__name__,
        }
    return envelope


async def _ask(execution: Execution) -> tuple[ModelReply, ReplyPlan]:
    """Ask, and ask again after a pause when the failure may pass. The save is never inside this loop."""
    model = execution.runtime.model_for(execution.agent)
    request = await execution.until_lost(_request(execution))
    execution.runtime.reach(FaultPoint.BEFORE_MODEL_REQUEST, execution.run_id)
    for pause in (*RETRY_PAUSES_SECONDS, None):
        try:
            reply = await execution.until_lost(model.request(request))
            return reply, _plan(execution, reply)
        except TransientModelError as failure:
            if pause is None:
                raise
            wanted = min(failure.retry_after_seconds or 0.0, _LONGEST_RETRY_AFTER_SECONDS)
            logger.info(
                "model_retry",
                extra={"event": "model_retry", "run_id": execution.run_id, "code": failure.code},
            )
            await execution.until_lost(asyncio.sleep(max(pause, wanted)))
    raise AssertionError("the last round returns or raises")


async def _request(execution: Execution) -> ModelRequest:
    agent = execution.agent
    context = RunContext(
        session_id=execution.session_id,
        run_id=execution.run_id,
        user_id=execution.session.user_id,
        metadata=execution.session.metadata,
        deps=execution.dependencies,
        state=agent.load_state(execution.state),
    )
    return ModelRequest(
        instructions=await agent.write_instructions(context),
        history=build_history(execution.messages, execution.answers),
        tools=agent.definitions(),
        session_id=execution.session_id,
        run_id=execution.run_id,
        step_index=execution.step_index + 1,
        settings=agent.model_settings,
    )


def _storable(content: AssistantContent) -> AssistantContent:
    """The reply as the store can hold it: a port of the user's own vouches for nothing."""
    return AssistantContent.model_validate(storable_json(content.model_dump(mode="json")))


def _plan(execution: Execution, reply: ModelReply) -> ReplyPlan:
    plan = plan_reply(
        _storable(reply.content),
        execution.agent.tools_now(),
        taken_ids=execution.answers,
        mint=new_dispatch_id,
        check_output=execution.agent.check_output,
    )
    if isinstance(plan, Empty):
        raise TransientModelError("The model's reply was empty.", code="model_empty_reply")
    return plan
