"""A run's typed output: how the model hands it over, how it is stored, how it is read again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel, TypeAdapter, create_model
from typing_extensions import is_typeddict

from helix_dbos.agents.schema import ArgumentsInvalid, json_schema, read_json
from helix_dbos.core.states import FINISH_TOOL
from helix_dbos.errors import DefinitionError, HelixError
from helix_dbos.models.port import ToolDefinition

__all__ = ["OutputSchema"]

OutputT = TypeVar("OutputT")

_VALUE = "value"
_FINISH = "Hand over your final output and end the run. Call it once, alone, when you are done."


@dataclass(frozen=True, slots=True)
class OutputSchema(Generic[OutputT]):
    """The output of one agent.

    Its stored form is what the model handed over: the text, or the finish call's arguments
    (without the wrapping key of an output that is not an object by itself).

    Args:
        definition: The finish tool as the model sees it; None when the output is text.
    """

    agent: str
    definition: ToolDefinition | None
    _adapter: TypeAdapter[OutputT]
    _arguments: TypeAdapter[Any]
    _wrapped: bool

    @classmethod
    def declare(cls, agent: str, output_type: Any) -> OutputSchema[Any]:
        """The schema of a declared output type.

        Raises:
            DefinitionError: The type has no JSON Schema.
        """
        if isinstance(output_type, str):
            raise DefinitionError(f"The output type of agent '{agent}' must be a type, not a string.")
        try:
            adapter = TypeAdapter[Any](output_type)
            if output_type is str:
                return cls(agent, None, adapter, adapter, False)
            schema = json_schema(adapter)
            wrapped = not (_is_object_type(output_type) and schema.get("type") == "object")
            arguments = TypeAdapter[Any](_wrap(output_type)) if wrapped else adapter
            definition = ToolDefinition(FINISH_TOOL, _FINISH, json_schema(arguments), is_output=True)
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            raise DefinitionError(
                f"The output type of agent '{agent}', {output_type!r}, has no JSON Schema ({first_line})."
            ) from error
        return cls(agent, definition, adapter, arguments, wrapped)

    def problem_with(self, arguments: dict[str, JsonValue]) -> str | None:
        """What is wrong with a finish call's arguments, in words for the model; None when nothing is."""
        try:
            read_json(self._arguments, arguments)
        except ArgumentsInvalid as invalid:
            return invalid.problem
        return None

    def stored(self, arguments: dict[str, JsonValue]) -> JsonValue:
        """The stored form of a finish call's arguments that have no problem."""
        return arguments[_VALUE] if self._wrapped else dict(arguments)

    def parse(self, stored: JsonValue) -> OutputT:
        """The typed output from its stored form.

        Raises:
            HelixError: The stored output does not fit the type this deployment declares.
        """
        try:
            return read_json(self._adapter, stored)
        except ArgumentsInvalid as invalid:
            raise HelixError(
                f"The stored output does not fit agent '{self.agent}' any more.",
                code="framework_output_unreadable",
                detail=invalid.problem,
            ) from invalid

    def dump(self, output: OutputT) -> JsonValue:
        """The JSON form of a typed output, for showing it; defaults included."""
        return self._adapter.dump_python(output, mode="json", by_alias=True)


def _is_object_type(output_type: Any) -> bool:
    kind: Any = get_origin(output_type) or output_type
    if is_typeddict(kind):
        return True
    if dataclasses.is_dataclass(kind):
        return True
    return isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel)


def _wrap(output_type: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {_VALUE: (output_type, ...)}
    return create_model("Output", __config__=ConfigDict(extra="forbid"), **fields)
