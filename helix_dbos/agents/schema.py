"""From a type to the JSON Schema a model reads, and from the model's JSON back to Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from helix_dbos.agents.docstring import DocText
from helix_dbos.agents.problems import describe_problems
from helix_dbos.agents.signature import Parameter, Signature, refuse
from helix_dbos.errors import DefinitionError

__all__ = ["ArgumentsInvalid", "ArgumentsSchema", "build_arguments_schema", "json_schema", "read_json"]

T = TypeVar("T")

_annotated: Any = Annotated


class ArgumentsInvalid(Exception):
    """The JSON does not fit its schema; `problem` says why in a few short lines, for the model."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class _QuietSchema(GenerateJsonSchema):
    """JSON Schema without invented field titles, and without warnings in the user's log."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's name

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never: a field's name says it already."""
        return False

    def is_subclass_schema(self, schema: Any) -> dict[str, Any]:
        """Refused like other values that JSON cannot carry; pydantic would let anything pass."""
        return self.handle_invalid_for_json_schema(schema, "a class")


def json_schema(adapter: TypeAdapter[Any]) -> dict[str, JsonValue]:
    """The type's JSON Schema with its own properties at the root, also when the type is recursive.

    Raises:
        pydantic.PydanticUserError: The type has no JSON Schema.
    """
    schema: dict[str, JsonValue] = adapter.json_schema(schema_generator=_QuietSchema)
    definitions = schema.get("$defs")
    reference = schema.pop("$ref", None)
    if isinstance(reference, str) and isinstance(definitions, dict):
        root = definitions[reference.removeprefix("#/$defs/")]
        schema = {**(root if isinstance(root, dict) else {}), **schema}
    schema.pop("title", None)
    return schema


def read_json(
    adapter: TypeAdapter[T],
    value: JsonValue | Mapping[str, JsonValue],
    *,
    by_name: bool | None = None,
    by_alias: bool | None = None,
) -> T:
    """The Python value of some JSON, by pydantic's JSON rules: dates and the like come as strings.

    Raises:
        ArgumentsInvalid: The JSON does not fit, or a validator of the user's failed on it.
    """
    try:
        return adapter.validate_json(json.dumps(value), by_name=by_name, by_alias=by_alias)
    except ValidationError as error:
        raise ArgumentsInvalid(describe_problems(error)) from error
    except Exception as error:  # a user's validator may raise anything; then no body may start
        raise ArgumentsInvalid(f"They could not be checked ({type(error).__name__}).") from error


@dataclass(frozen=True, slots=True)
class ArgumentsSchema:
    """The arguments of one tool.

    Args:
        json_schema: An object schema; additional properties are refused.
    """

    json_schema: Mapping[str, JsonValue]
    _adapter: TypeAdapter[BaseModel]
    _fields: Mapping[str, str]

    def validate(self, arguments: dict[str, JsonValue]) -> dict[str, object]:
        """The value of every parameter by its name, defaults included, freshly made.

        Raises:
            ArgumentsInvalid: The arguments do not fit the schema.
        """
        model = read_json(self._adapter, arguments)
        return {name: getattr(model, field) for name, field in self._fields.items()}


def build_arguments_schema(
    function: Callable[..., object], signature: Signature, text: DocText
) -> ArgumentsSchema:
    """The schema of a tool's arguments, from its type hints and its docstring.

    Raises:
        DefinitionError: A parameter's type has no JSON Schema.
    """
    # Fields have names of our own, with the parameter's as alias: a parameter may then be
    # called `schema` or `model_config` without shadowing something of pydantic's.
    fields = {parameter.name: f"argument_{n}" for n, parameter in enumerate(signature.parameters)}
    try:
        definitions: dict[str, Any] = {
            fields[parameter.name]: _field(function, parameter, text.parameters.get(parameter.name))
            for parameter in signature.parameters
        }
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **definitions)
        adapter = TypeAdapter[BaseModel](model)
        schema = json_schema(adapter)
    except DefinitionError:
        raise
    except Exception as error:
        _refuse_types(function, signature, error)
    for parameter in signature.parameters:
        if fields[parameter.name] not in model.model_fields:
            refuse(function, f"annotates '{parameter.name}' with {parameter.hint!r}, which no value has")
    return ArgumentsSchema({"properties": {}, **schema}, adapter, fields)


def _field(function: Callable[..., object], parameter: Parameter, description: str | None) -> Any:
    """The parameter as a pydantic field; a `Field(description=…)` outranks the docstring."""
    hint, default = parameter.hint, parameter.default
    if isinstance(default, FieldInfo):
        hint, default = _annotated[hint, default], inspect.Parameter.empty
    own = [part for part in get_args(hint) if isinstance(part, FieldInfo)] if _is_annotated(hint) else []
    if any(field.alias or field.validation_alias for field in own):
        refuse(function, f"gives the parameter '{parameter.name}' an alias; rename the parameter instead")
    if any(field.description for field in own):
        description = None
    words: dict[str, Any] = {"description": description} if description else {}
    hint = _annotated[hint, Field(alias=parameter.name, **words)]
    return hint if default is inspect.Parameter.empty else (hint, default)


def _is_annotated(hint: object) -> bool:
    return get_origin(hint) is Annotated


def _refuse_types(function: Callable[..., object], signature: Signature, error: Exception) -> NoReturn:
    """Refuse the function, naming the first parameter whose type is to blame."""
    for parameter in signature.parameters:
        try:
            json_schema(TypeAdapter[Any](parameter.hint))
        except Exception as cause:
            why = str(cause).strip().partition("\n")[0]
            refuse(
                function,
                f"annotates '{parameter.name}' with {parameter.hint!r}, which has no JSON Schema ({why})",
            )
    refuse(function, f"has parameters that make no JSON Schema ({error})")
