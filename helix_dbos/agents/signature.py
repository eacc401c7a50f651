"""What a tool's function takes: its context, when it asks for one, and the model's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from helix_dbos.agents.abort import AbortSignal
from helix_dbos.agents.context import RunContext, RunInfo, ToolContext
from helix_dbos.errors import DefinitionError

__all__ = ["Parameter", "Signature", "read_signature", "refuse"]

_OURS = (RunContext, RunInfo, AbortSignal)

_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values; a tool's arguments have names",
    inspect.Parameter.VAR_KEYWORD: "takes arguments of any name; a tool's arguments are declared one by one",
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only; a tool's arguments are given by name",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument the model gives.

    Args:
        hint: Its resolved type, `Annotated` metadata included.
        default: `inspect.Parameter.empty` when the model must give it.
    """

    name: str
    hint: Any
    default: Any


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters, all of them fit for a tool."""

    takes_context: bool
    parameters: tuple[Parameter, ...]


def refuse(function: Callable[..., object], problem: str) -> NoReturn:
    """Raise the DefinitionError that names the function and says what to change."""
    name = getattr(function, "__qualname__", repr(function))
    module = getattr(function, "__module__", "?")
    raise DefinitionError(f"The tool function '{name}' {problem}.", detail=f"in {module}") from None


def read_signature(function: Callable[..., object], local_names: Mapping[str, object]) -> Signature:
    """Read a tool's function; annotations may be strings and may name locals of the defining function.

    Args:
        local_names: What the code that defines the tool can see beside its module's globals.

    Raises:
        DefinitionError: A parameter is of a kind, or annotated in a way, that no tool can have.
    """
    found = [
        (parameter, _resolve(function, parameter, local_names))
        for parameter in _parameters_of(function).values()
    ]
    takes_context = bool(found) and _is_context(found[0][1])
    if takes_context:
        context, _ = found.pop(0)
        if context.kind is inspect.Parameter.KEYWORD_ONLY:
            refuse(function, f"takes its context '{context.name}' by keyword; it is given as first value")
    return Signature(takes_context, tuple(_argument(function, *each) for each in found))


def _parameters_of(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (NameError, TypeError, ValueError) as problem:
        refuse(function, f"has no readable signature: {problem}")


def _resolve(
    function: Callable[..., object], parameter: inspect.Parameter, local_names: Mapping[str, object]
) -> Any:
    """The parameter's type; the others' annotations, and the result's, need not be resolvable."""
    if parameter.annotation is inspect.Parameter.empty:
        return inspect.Parameter.empty
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    module_names: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        hints = get_type_hints(holder, module_names, dict(local_names), include_extras=True)
    except Exception as problem:
        refuse(
            function,
            f"annotates '{parameter.name}' with {parameter.annotation!r}, which cannot be resolved "
            f"({problem}); import or define its names at run time, before the tool",
        )
    return hints[parameter.name]


def _argument(function: Callable[..., object], parameter: inspect.Parameter, hint: object) -> Parameter:
    name = parameter.name
    if parameter.kind in _REFUSED_KINDS:
        refuse(function, f"has the parameter '{name}', which {_REFUSED_KINDS[parameter.kind]}")
    if hint is inspect.Parameter.empty:
        refuse(function, f"has no type annotation on the parameter '{name}'")
    if name.startswith("_"):
        refuse(function, f"has the parameter '{name}'; an argument's name may not begin with an underscore")
    if _mentions(hint, (ToolContext,)):
        refuse(
            function, f"takes a ToolContext as '{name}'; it must be the first parameter, plainly annotated"
        )
    if _mentions(hint, _OURS):
        refuse(function, f"takes '{name}' of a type that no model can give; ask for a ToolContext first")
    return Parameter(name, hint, parameter.default)


def _is_context(hint: object) -> bool:
    return hint is ToolContext or get_origin(hint) is ToolContext


def _mentions(hint: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(hint, type) and issubclass(hint, kinds):
        return True
    return any(_mentions(part, kinds) for part in (get_origin(hint), *get_args(hint)) if part is not None)
