"""Settle a step: run the claimed bodies side by side and commit each answer as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from helix_dbos.core.calls import Answer, Call
from helix_dbos.core.settlement import settle_call, step_is_settled
from helix_dbos.core.states import CheckpointKind
from helix_dbos.faults import FaultPoint
from helix_dbos.store.calls import claim_bodies, insert_answers, load_step_calls, mark_answered
from helix_dbos.store.checkpoints import insert_checkpoint
from helix_dbos.store.database import Transaction
from helix_dbos.store.runs import forgive_rescues
from helix_dbos.store.sessions import write_state
from helix_dbos.workflows.bodies import run_body
from helix_dbos.workflows.execution import Execution, Refused, fence

__all__ = ["settle"]


async def settle(execution: Execution) -> None:
    """Return when every call this execution can answer has its answer committed.

    Raises:
        Refused: The run was lost; every sibling body has been cancelled.
    """
    running: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            for call in _claimed(execution):
                if call.dispatch_id not in running:
                    running[call.dispatch_id] = execution.spawn(_answer(execution, call))
            waiting = [task for task in running.values() if not task.done()]
            if not waiting:
                return
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                _raise_failure(execution, task)
    finally:
        await _cancel(running.values())


def _claimed(execution: Execution) -> list[Call]:
    return [
        call for call in execution.calls if call.answer is None and call.generation == execution.generation
    ]


def _raise_failure(execution: Execution, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        if execution.lost:
            raise Refused
        raise asyncio.CancelledError
    if failure := task.exception():
        raise failure


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    if unfinished:
        await asyncio.wait(unfinished)


async def _answer(execution: Execution, call: Call) -> None:
    """Run one body and commit what came of it, with the state it set and the claims it allows."""
    answer, changed = await run_body(execution, call)
    about = call.tool_name

    async def work(tx: Transaction) -> tuple[Call, ...]:
        await fence(tx, execution)
        calls = await load_step_calls(tx, execution.session_id, execution.step_index)
        if any(known.dispatch_id == call.dispatch_id and known.answer is not None for known in calls):
            return tuple(calls)  # our own commit, whose acknowledgement was lost
        after = await _commit(tx, execution, calls, call, answer, changed)
        execution.runtime.reach(FaultPoint.BEFORE_ANSWER_COMMIT, about)
        return after

    async with execution.writing:
        after = await execution.runtime.database.transaction(work)
        execution.state.update(changed)
        execution.rescued = False
        execution.know(after)
    execution.runtime.reach(FaultPoint.AFTER_ANSWER, about)


async def _commit(
    tx: Transaction,
    execution: Execution,
    calls: list[Call],
    call: Call,
    answer: Answer,
    changed: Mapping[str, JsonValue],
) -> tuple[Call, ...]:
    settlement = settle_call(calls, call.dispatch_id, answer, execution.generation)
    async with tx.together():
        await insert_answers(tx, execution.run_id, execution.generation, settlement.answers)
        await mark_answered(tx, [dispatch_id for dispatch_id, _ in settlement.answers])
        await claim_bodies(tx, settlement.claims, execution.generation)
        await write_state(tx, execution.session_id, changed)
        if execution.rescued:
            await forgive_rescues(tx, execution.run_id)
        if step_is_settled(settlement.calls):
            await insert_checkpoint(
                tx, execution.session_id, execution.run_id, execution.step_index, CheckpointKind.STEP_COMMIT
            )
    return settlement.calls
