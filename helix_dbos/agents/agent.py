"""The agent: a model, its instructions, its tools, and the types of what goes in and comes out."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, overload

from pydantic import JsonValue
from typing_extensions import TypeForm, TypeVar, Unpack

from helix_dbos.agents import declaration
from helix_dbos.agents.context import RunContext, RunInfo
from helix_dbos.agents.limits import UsageLimits
from helix_dbos.agents.output import OutputSchema
from helix_dbos.agents.provided import Provided
from helix_dbos.agents.state import StateSchema
from helix_dbos.agents.tool import Tool
from helix_dbos.core.calls import ToolNow
from helix_dbos.core.reply import OutputCheck
from helix_dbos.errors import HelixError
from helix_dbos.models.port import ModelPort, ToolDefinition

if TYPE_CHECKING:
    from pydantic_ai.models import Model

__all__ = ["Agent", "Instructions"]

DepsT = TypeVar("DepsT", default=None)
OutputT = TypeVar("OutputT", default=str)
StateT = TypeVar("StateT", default=None)
ProcessT = TypeVar("ProcessT", default=None)

Instructions = str | Callable[[RunContext[DepsT, StateT]], str | Awaitable[str]]
"""The text, or a function of the run that writes it; asked before each model request."""


class _Options(TypedDict, Generic[DepsT, OutputT, StateT], total=False):
    """What every agent may be given; see `Agent` for what each means."""

    name: Required[str]
    model: Required[str | ModelPort | Model]
    instructions: Instructions[DepsT, StateT]
    tools: Sequence[Tool[DepsT, StateT]]
    output_type: TypeForm[OutputT]
    model_settings: Mapping[str, JsonValue]
    usage_limits: UsageLimits | None
    max_steps: int
    description: str


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Agent(Generic[DepsT, OutputT, StateT]):
    """An agent as declared: immutable, and known to be sound once its construction returned.

    Args:
        name: Lower-case letters, digits, `-` and `_`; sessions remember their agent by it.
        model: A name such as `openai:gpt-…`, a model of pydantic-ai's, or a port of your own.
        instructions: The system prompt, or a function of the run that writes it.
        tools: What the model may call; their names are unique.
        deps: A factory, called once for every stretch of a run with a `RunInfo`. It returns the
            dependencies, an awaitable of them, or a context manager that is left at the end.
        process_deps: A factory without arguments, called once per process, of the same forms;
            its value is `info.process`, and `ctx.deps` too when there is no `deps`.
        state: A pydantic model with a default for every field: the session's own state.
        output_type: What a run gives back: text by default, else any type with a JSON Schema.
        model_settings: Passed on with every model request.
        usage_limits: The most one run may use.
        max_steps: The most model replies one run may take.
        description: What the agent is for, in a sentence.

    Raises:
        DefinitionError: Something in the declaration is wrong.
    """

    name: str
    model: str | ModelPort | Model
    instructions: Instructions[DepsT, StateT]
    tools: tuple[Tool[DepsT, StateT], ...]
    deps: Callable[[RunInfo[Any]], Provided[DepsT]] | None
    process_deps: Callable[[], Provided[Any]] | None
    state: type[StateT] | None
    output_type: TypeForm[OutputT]
    model_settings: Mapping[str, JsonValue]
    usage_limits: UsageLimits | None
    max_steps: int
    description: str
    _output: OutputSchema[OutputT]
    _state: StateSchema
    _tools: Mapping[str, Tool[DepsT, StateT]]
    _tools_now: Mapping[str, ToolNow]
    _definitions: tuple[ToolDefinition, ...]

    # One overload per combination of dependencies and state, so that what is left out is None
    # to the checker: a tool that wants dependencies of an agent without any is refused.
    @overload
    def __init__(self, **options: Unpack[_Options[None, OutputT, None]]) -> None: ...
    @overload
    def __init__(
        self, *, state: type[StateT], **options: Unpack[_Options[None, OutputT, StateT]]
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        deps: Callable[[RunInfo], Provided[DepsT]],
        **options: Unpack[_Options[DepsT, OutputT, None]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        deps: Callable[[RunInfo], Provided[DepsT]],
        state: type[StateT],
        **options: Unpack[_Options[DepsT, OutputT, StateT]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        process_deps: Callable[[], Provided[DepsT]],
        **options: Unpack[_Options[DepsT, OutputT, None]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        process_deps: Callable[[], Provided[DepsT]],
        state: type[StateT],
        **options: Unpack[_Options[DepsT, OutputT, StateT]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        deps: Callable[[RunInfo[ProcessT]], Provided[DepsT]],
        process_deps: Callable[[], Provided[ProcessT]],
        **options: Unpack[_Options[DepsT, OutputT, None]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        deps: Callable[[RunInfo[ProcessT]], Provided[DepsT]],
        process_deps: Callable[[], Provided[ProcessT]],
        state: type[StateT],
        **options: Unpack[_Options[DepsT, OutputT, StateT]],
    ) -> None: ...
    def __init__(
        self,
        *,
        name: str,
        model: Any,
        instructions: Any = "",
        tools: Any = (),
        deps: Any = None,
        process_deps: Any = None,
        state: Any = None,
        output_type: Any = str,
        model_settings: Any = MappingProxyType({}),
        usage_limits: Any = None,
        max_steps: Any = 50,
        description: Any = "",
    ) -> None:
        declaration.check_name(name)
        declaration.check_model(name, model)
        declaration.check_functions(name, instructions, deps, process_deps)
        declaration.check_numbers(name, max_steps, usage_limits)
        by_name = declaration.tools_by_name(name, tools)
        output = OutputSchema[OutputT].declare(name, output_type)
        definitions = tuple(tool.definition for tool in by_name.values())
        vars(self).update(
            name=name,
            model=model,
            instructions=instructions,
            tools=tuple(by_name.values()),
            deps=deps,
            process_deps=process_deps,
            state=state,
            output_type=output_type,
            model_settings=declaration.frozen_settings(name, model_settings),
            usage_limits=usage_limits,
            max_steps=max_steps,
            description=description,
            _output=output,
            _state=StateSchema.declare(name, state),
            _tools=by_name,
            _tools_now=MappingProxyType({tool.name: tool.now() for tool in by_name.values()}),
            _definitions=(*definitions, output.definition) if output.definition else definitions,
        )

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as the model sees them, with `__finish__` last when the output is typed."""
        return self._definitions

    def tools_now(self) -> Mapping[str, ToolNow]:
        """The tools as this deployment declares them, by name; without `__finish__`."""
        return self._tools_now

    def tool(self, name: str) -> Tool[DepsT, StateT] | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    @property
    def check_output(self) -> OutputCheck | None:
        """Says what is wrong with a finish call's arguments; None when the output is text."""
        return self._output.problem_with if self._output.definition else None

    def stored_output(self, arguments: dict[str, JsonValue]) -> JsonValue:
        """What is stored as the run's output when a finish call with these arguments ends it."""
        return self._output.stored(arguments)

    def parse_output(self, stored: JsonValue) -> OutputT:
        """The typed output from what was stored.

        Raises:
            HelixError: It does not fit the output type of this deployment.
        """
        return self._output.parse(stored)

    def dump_output(self, output: OutputT) -> JsonValue:
        """The JSON form of a typed output, defaults included."""
        return self._output.dump(output)

    def load_state(self, stored: Mapping[str, JsonValue] | None) -> StateT:
        """The state as stored, with defaults for what is missing; a fresh object every time.

        Raises:
            HelixError: It does not fit the state class of this deployment.
        """
        return self._state.load(stored)

    def dump_state(self, state: StateT) -> dict[str, JsonValue]:
        """The state as it can be stored.

        Raises:
            NotStorable: Some value in it has no JSON form.
        """
        return self._state.dump(state)

    def diff_state(self, before: Mapping[str, JsonValue], state: StateT) -> dict[str, JsonValue]:
        """The top-level fields a body changed, as they can be stored; they are known to load again.

        Args:
            before: The stored form that the state was loaded from; it may lack fields.

        Raises:
            NotStorable: A changed field could not be stored, or could not be read again.
        """
        return self._state.diff(before, state)

    async def write_instructions(self, context: RunContext[DepsT, StateT]) -> str:
        """The instructions for a model request; a function's own error goes through as it is."""
        if isinstance(self.instructions, str):
            return self.instructions
        written = self.instructions(context)
        text: Any = await written if inspect.isawaitable(written) else written
        if not isinstance(text, str):
            raise HelixError(
                f"The instructions function of agent '{self.name}' returned no text.",
                detail=f"it returned a {type(text).__name__}",
            )
        return text
