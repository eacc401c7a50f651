"""`@tool`: from a typed function to a tool a model can call. A wrong one fails at import."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, cast, overload

from pydantic import JsonValue
from typing_extensions import ParamSpec, TypeVar

from helix_dbos.agents.body import run_body
from helix_dbos.agents.context import ToolContext
from helix_dbos.agents.docstring import read_docstring
from helix_dbos.agents.schema import ArgumentsInvalid, ArgumentsSchema, build_arguments_schema
from helix_dbos.agents.signature import read_signature, refuse
from helix_dbos.core.calls import ToolNow
from helix_dbos.core.states import FINISH_TOOL, CallKind, Replay
from helix_dbos.errors import DefinitionError
from helix_dbos.models.port import ToolDefinition

__all__ = ["Tool", "ToolDecorator", "tool"]

DepsT = TypeVar("DepsT")
StateT = TypeVar("StateT")
DepsT_contra = TypeVar("DepsT_contra", default=None, contravariant=True)
StateT_contra = TypeVar("StateT_contra", default=None, contravariant=True)
P = ParamSpec("P")
ParamsP = ParamSpec("ParamsP", default=...)
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", default=object, covariant=True)

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_RESERVED_PREFIXES = ("subagent__", "companion__")
_POLICIES = (Replay.UNSAFE, Replay.SAFE)


@dataclass(frozen=True, eq=False, repr=False)
class Tool(Generic[DepsT_contra, StateT_contra, ParamsP, ResultT_co]):
    """A tool of an agent; called like the function it was made from, it just runs that function.

    A `Tool[Deps, State]` fits every agent whose dependencies and state are of these types or
    of subtypes; a tool without a context fits every agent. Made by `tool`; immutable.

    Args:
        replay: What recovery may do with a body that may have run.
        timeout_seconds: How long one body may take; None leaves it to the runtime.
    """

    function: Callable[ParamsP, ResultT_co]
    name: str
    description: str
    replay: Replay
    concurrency_group: str | None
    sequential: bool
    timeout_seconds: float | None
    takes_context: bool
    schema: ArgumentsSchema

    def __post_init__(self) -> None:
        """Look like the function to `help` and to `inspect.signature`."""
        vars(self).update(__wrapped__=self.function, __name__=self.name, __doc__=self.function.__doc__)

    def __call__(self, *args: ParamsP.args, **kwargs: ParamsP.kwargs) -> ResultT_co:
        """Call the function itself: no ledger, no validation; for unit tests of the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, replay={self.replay.value!r})"

    @property
    def definition(self) -> ToolDefinition:
        """The tool as the model sees it."""
        return ToolDefinition(self.name, self.description, self.schema.json_schema)

    def now(self) -> ToolNow:
        """The tool as this deployment declares it, for the pure core."""
        return ToolNow(
            name=self.name,
            kind=CallKind.LOCAL,
            replay=self.replay,
            concurrency_group=self.concurrency_group,
            sequential=self.sequential,
            problem_with=self.problem_with,
        )

    def problem_with(self, arguments: dict[str, JsonValue]) -> str | None:
        """What is wrong with the arguments, in words for the model; None when nothing is."""
        try:
            self.validate(arguments)
        except ArgumentsInvalid as invalid:
            return invalid.problem
        return None

    def validate(self, arguments: dict[str, JsonValue]) -> dict[str, object]:
        """The Python values of a call's arguments, defaults included, freshly made.

        Raises:
            ArgumentsInvalid: They do not fit the schema; its `problem` is for the model.
        """
        return self.schema.validate(arguments)

    async def run(
        self,
        ctx: ToolContext[DepsT_contra, StateT_contra],
        values: dict[str, object],
        *,
        executor: Executor,
    ) -> object:
        """Start one body and give back what it returned, or raise what it raised.

        An async function runs here, on the event loop; a sync one in the executor, with a copy
        of the context variables. Cancelling ends an async body; a thread goes on.

        Args:
            values: What `validate` made of the call's arguments.
        """
        function = cast("Callable[..., object]", self.function)
        leading = (ctx,) if self.takes_context else ()
        return await run_body(function, lambda: function(*leading, **values), executor)


@dataclass(frozen=True, slots=True)
class ToolDecorator:
    """`@tool(...)` with its options, waiting for the function."""

    replay: str = "unsafe"
    concurrency_group: str | None = None
    sequential: bool = False
    timeout_seconds: float | None = None
    name: str | None = None
    description: str | None = None

    @overload
    def __call__(
        self, function: Callable[Concatenate[ToolContext[DepsT, StateT], P], ResultT], /
    ) -> Tool[DepsT, StateT, Concatenate[ToolContext[DepsT, StateT], P], ResultT]: ...
    @overload
    def __call__(self, function: Callable[P, ResultT], /) -> Tool[object, object, P, ResultT]: ...
    def __call__(self, function: Callable[..., Any], /) -> Tool[Any, Any, ..., Any]:
        """The function as a tool.

        Raises:
            DefinitionError: The function or an option is not what a tool can have.
        """
        return self.define(function, _names_of_caller())

    def define(
        self, function: Callable[..., Any], local_names: Mapping[str, object]
    ) -> Tool[Any, Any, ..., Any]:
        """The function as a tool, its annotations resolved with these names beside its module's."""
        _check_function(function)
        name = function.__name__ if self.name is None else self.name
        replay = self._checked(function, name)
        signature = read_signature(function, local_names)
        text = read_docstring(function.__doc__)
        return Tool(
            function=function,
            name=name,
            description=text.description if self.description is None else self.description,
            replay=replay,
            concurrency_group=self.concurrency_group,
            sequential=self.sequential,
            timeout_seconds=self.timeout_seconds,
            takes_context=signature.takes_context,
            schema=build_arguments_schema(function, signature, text),
        )

    def _checked(self, function: Callable[..., Any], name: str) -> Replay:
        """The replay policy, once every option is known to be right."""
        if not (isinstance(name, str) and _NAME.fullmatch(name)):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse(function, f"has the tool name {name!r}; allowed: {_NAME.pattern}")
        if name == FINISH_TOOL or name.startswith(_RESERVED_PREFIXES):
            refuse(function, f"has the tool name {name!r}, which is reserved")
        if self.replay not in _POLICIES:
            allowed = ", ".join(f"'{policy.value}'" for policy in _POLICIES)
            refuse(function, f"is declared with replay={self.replay!r}; allowed: {allowed}")
        if self.concurrency_group is not None and not self.concurrency_group:
            refuse(function, "is declared with an empty concurrency_group; leave it out instead")
        if self.timeout_seconds is not None and not _is_positive(self.timeout_seconds):
            refuse(
                function,
                f"is declared with timeout_seconds={self.timeout_seconds!r}; it must be a positive number",
            )
        return Replay(self.replay)


@overload
def tool(
    function: Callable[Concatenate[ToolContext[DepsT, StateT], P], ResultT], /
) -> Tool[DepsT, StateT, Concatenate[ToolContext[DepsT, StateT], P], ResultT]: ...
@overload
def tool(function: Callable[P, ResultT], /) -> Tool[object, object, P, ResultT]: ...
@overload
def tool(
    *,
    replay: Literal["unsafe", "safe"] = "unsafe",
    concurrency_group: str | None = None,
    sequential: bool = False,
    timeout_seconds: float | None = None,
    name: str | None = None,
    description: str | None = None,
) -> ToolDecorator: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    replay: str = "unsafe",
    concurrency_group: str | None = None,
    sequential: bool = False,
    timeout_seconds: float | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Tool[Any, Any, ..., Any] | ToolDecorator:
    """Declare a function as a tool, as `@tool` or `@tool(...)`; a wrong declaration raises at once.

    The function is async or sync; its first parameter may be a `ToolContext`; every other
    parameter is an argument the model gives. The docstring describes the tool and its arguments.

    Args:
        replay: `"safe"` promises that two bodies of one call, even overlapping, leave the same
            result as one; then recovery may run it again, at most three bodies in all. An
            `"unsafe"` tool is never run again.
        concurrency_group: Calls of one step in the same group run one at a time, in reply order.
        sequential: Calls of sequential tools in one step run one at a time, in reply order.
        timeout_seconds: How long one body may take.
        name: The tool's name for the model; the function's when omitted.
        description: The tool's description for the model; the docstring's when omitted.

    Raises:
        DefinitionError: The function or an option is not what a tool can have.
    """
    decorator = ToolDecorator(replay, concurrency_group, sequential, timeout_seconds, name, description)
    return decorator if function is None else decorator.define(function, _names_of_caller())


def _is_positive(number: object) -> bool:
    if not isinstance(number, int | float) or isinstance(number, bool):
        return False
    return math.isfinite(number) and number > 0


def _check_function(function: object) -> None:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise DefinitionError(f"A tool is made from a function, not from {function!r}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        refuse(function, "is a generator; a tool returns its result once")


def _names_of_caller() -> Mapping[str, object]:
    """The local names where the decorator is applied: annotations as strings may mean them."""
    here = inspect.currentframe()
    applied = here.f_back.f_back if here and here.f_back else None
    return applied.f_locals if applied else {}
