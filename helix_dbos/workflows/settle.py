"""Settle a step: run the claimed bodies side by side and commit each answer as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from pydantic import JsonValue

from helix_dbos.core.calls import Call
from helix_dbos.core.settlement import Settlement, settle_call, step_is_settled
from helix_dbos.faults import FaultPoint
from helix_dbos.store.hot import write_answers
from helix_dbos.workflows.bodies import run_body
from helix_dbos.workflows.execution import Execution, Refused

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


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    if unfinished:
        await asyncio.wait(unfinished)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # taken note of: the first failure is the one that counts


async def _answer(execution: Execution, call: Call) -> None:
    """Run one body and commit what came of it, with the state it set and the claims it allows."""
    answer, changed = await run_body(execution, call)
    async with execution.writing:
        # What is known here is the truth of this step: nobody but this generation answers its calls.
        settlement = settle_call(execution.calls, call.dispatch_id, answer, execution.generation)
        execution.runtime.reach(FaultPoint.BEFORE_ANSWER_COMMIT, call.tool_name)
        await _commit(execution, settlement, changed)
        execution.state.update(changed)
        execution.rescued = False
        execution.know(settlement.calls)
    execution.runtime.reach(FaultPoint.AFTER_ANSWER, call.tool_name)


async def _commit(execution: Execution, settlement: Settlement, changed: Mapping[str, JsonValue]) -> None:
    execution.require_hold()
    held = await execution.runtime.database.statement(
        lambda tx: write_answers(
            tx,
            execution.holder,
            step_index=execution.step_index,
            answers=settlement.answers,
            claims=settlement.claims,
            changed=changed,
            settled=step_is_settled(settlement.calls),
            rescued=execution.rescued,
        )
    )
    if not held:
        execution.lose()
        raise Refused
