"""Running one body: async functions on the event loop, sync functions in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import cast

__all__ = ["run_body"]


async def run_body(function: Callable[..., object], call: Callable[[], object], executor: Executor) -> object:
    """What the body returned, or what it raised; never more than one start.

    A sync function runs in the executor, with a copy of the caller's context variables; when
    this coroutine is cancelled its thread goes on. A body that raises `SystemExit`, or is
    cancelled by nobody but itself, has failed like any other: it raises `RuntimeError`.

    Args:
        function: The function as its author wrote it; decides where it runs.
        call: Calls it with its arguments.
    """
    try:
        if inspect.iscoroutinefunction(function):
            result = call()
        else:
            result = await _run_in_thread(call, executor)
        return await result if inspect.isawaitable(result) else result
    except SystemExit as error:
        raise RuntimeError("the tool tried to end the process") from error
    except asyncio.CancelledError as error:
        if _cancel_was_requested():
            raise
        raise RuntimeError("the tool was cancelled from within") from error


async def _run_in_thread(call: Callable[[], object], executor: Executor) -> object:
    # The outcome travels as a value: set on a future, StopIteration would hang the waiter
    # (Python 3.11) and concurrent.futures.CancelledError would look like a cancelled run.
    def attempt() -> tuple[object, BaseException | None]:
        try:
            return call(), None
        except BaseException as error:
            return None, error

    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    result, error = await loop.run_in_executor(executor, lambda: context.run(attempt))
    if error is not None:
        raise error
    return result


def _cancel_was_requested() -> bool:
    task = cast("asyncio.Task[object] | None", asyncio.current_task())
    return task is None or task.cancelling() > 0
