"""What an agent's declaration must be: each check refuses with a sentence naming the agent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from helix_dbos.agents.limits import UsageLimits
from helix_dbos.agents.provided import check_callable
from helix_dbos.agents.tool import Tool
from helix_dbos.errors import DefinitionError

__all__ = [
    "check_functions",
    "check_model",
    "check_name",
    "check_numbers",
    "frozen_settings",
    "tools_by_name",
]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SETTINGS = TypeAdapter(dict[str, JsonValue])


def check_name(name: object) -> None:
    """Refuse a name that is not fit for URLs, queues and SQL."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(f"The agent name {name!r} is not allowed; allowed: {_NAME.pattern}.")


def check_model(agent: str, model: object) -> None:
    """Refuse what is neither a model's name nor something that can be asked."""
    named = isinstance(model, str) and bool(model.strip())
    askable = not isinstance(model, type) and callable(getattr(model, "request", None))
    if not (named or askable):
        raise DefinitionError(
            f"The model of agent '{agent}' must be a model's name or a model object, not {model!r}."
        )


def check_functions(agent: str, instructions: object, deps: object, process_deps: object) -> None:
    """Refuse instructions and factories that could not be called."""
    if not isinstance(instructions, str):
        check_callable(f"The instructions of agent '{agent}'", instructions, 1)
    if deps is not None:
        check_callable(f"The deps factory of agent '{agent}'", deps, 1)
    if process_deps is not None:
        check_callable(f"The process_deps factory of agent '{agent}'", process_deps, 0)


def check_numbers(agent: str, max_steps: object, usage_limits: object) -> None:
    """Refuse limits that no run could keep."""
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise DefinitionError(f"max_steps of agent '{agent}' is {max_steps!r}; it must be at least 1.")
    if usage_limits is not None and not isinstance(usage_limits, UsageLimits):
        raise DefinitionError(f"usage_limits of agent '{agent}' must be UsageLimits, not {usage_limits!r}.")


def tools_by_name(agent: str, tools: object) -> Mapping[str, Tool[Any, Any]]:
    """The tools in their order; refuses what is no tool, and two of one name."""
    if not isinstance(tools, Iterable) or isinstance(tools, str):
        raise DefinitionError(f"The tools of agent '{agent}' must be a list, not {tools!r}.")
    found: dict[str, Tool[Any, Any]] = {}
    for tool in cast("Iterable[object]", tools):
        if not isinstance(tool, Tool):
            raise DefinitionError(f"Agent '{agent}' is given {tool!r} as a tool; decorate it with @tool.")
        if tool.name in found:
            raise DefinitionError(f"Agent '{agent}' has two tools of the name '{tool.name}'.")
        found[tool.name] = tool
    return MappingProxyType(found)


def frozen_settings(agent: str, settings: object) -> Mapping[str, JsonValue]:
    """The model settings as a copy that nobody can change."""
    try:
        copied = _SETTINGS.validate_python(settings)
    except ValidationError as error:
        raise DefinitionError(
            f"model_settings of agent '{agent}' must map names to JSON values.", detail=str(error)
        ) from error
    return MappingProxyType(deepcopy(copied))
