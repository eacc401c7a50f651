"""What dependency factories may return, and how it becomes a dependency."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

from helix_dbos.errors import DefinitionError

__all__ = ["Provided", "check_callable", "entered"]

T = TypeVar("T")

Provided = T | Awaitable[T] | AbstractContextManager[T, Any] | AbstractAsyncContextManager[T, Any]
"""The dependency itself, an awaitable of it, or a context manager that gives it."""


@asynccontextmanager
async def entered(provided: Provided[T]) -> AsyncGenerator[T]:
    """The dependency for as long as the block lasts, closed at its end when it can be.

    A context manager is entered, and what it gives is the dependency; an async one goes before
    a sync one, and both before an awaitable. What an awaitable gives is taken as it is.
    """
    if isinstance(provided, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[T]", provided) as value:
            yield value
    elif isinstance(provided, AbstractContextManager):
        with cast("AbstractContextManager[T]", provided) as value:
            yield value
    elif inspect.isawaitable(provided):
        yield await cast("Awaitable[T]", provided)
    else:
        yield cast("T", provided)


def check_callable(what: str, function: object, arguments: int) -> None:
    """Refuse what cannot be called with that many values, and generators without their decorator.

    Raises:
        DefinitionError: It is not such a function.
    """
    if not callable(function):
        raise DefinitionError(f"{what} must be a function, not {function!r}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(
            f"{what} is a generator; decorate it with contextlib.contextmanager or asynccontextmanager."
        )
    if not _takes(function, arguments):
        values = "one value" if arguments == 1 else "no values"
        raise DefinitionError(f"{what} must be callable with {values}.")


def _takes(function: Callable[..., object], arguments: int) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables tell nothing about themselves
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True
