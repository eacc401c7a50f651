"""An agent's custom state: a pydantic model in Python, a JSON object in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, JsonValue, RootModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from helix_dbos.agents.schema import ArgumentsInvalid, read_json
from helix_dbos.core.storable import NotStorable, storable, storable_json
from helix_dbos.errors import DefinitionError, HelixError

__all__ = ["StateSchema"]


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Reads, writes and compares the state of one agent; an agent without state has None and {}.

    Args:
        agent: The agent's name, for messages.
        model: A model whose fields all have defaults.
    """

    agent: str
    model: type[BaseModel] | None

    @classmethod
    def declare(cls, agent: str, model: object) -> StateSchema:
        """The schema of a declared state class, known to survive the way to the store and back.

        Raises:
            DefinitionError: The class is not a pydantic model that starts from nothing.
        """
        if model is None:
            return cls(agent, None)
        what = f"The state of agent '{agent}'"
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or issubclass(model, RootModel):
            raise DefinitionError(f"{what} must be a pydantic BaseModel class, not {model!r}.")
        required = [name for name, field in model.model_fields.items() if field.is_required()]
        if required:
            raise DefinitionError(f"{what} needs a default for every field; missing: {', '.join(required)}.")
        schema = cls(agent, model)
        try:
            schema.load(schema.dump(schema.load(None)))
        except Exception as error:
            raise DefinitionError(
                f"{what} cannot be made from its defaults, stored and read again.", detail=str(error)
            ) from error
        return schema

    def load(self, stored: Mapping[str, JsonValue] | None) -> Any:
        """The state as stored, with defaults for what is missing.

        Raises:
            HelixError: The stored state does not fit the class this deployment declares.
        """
        if self.model is None:
            return None
        try:
            return self._read(self.model, stored or {})
        except ArgumentsInvalid as invalid:
            raise HelixError(
                f"The session's stored state does not fit agent '{self.agent}' any more.",
                code="framework_state_unreadable",
                detail=invalid.problem,
            ) from invalid

    def dump(self, state: object) -> dict[str, JsonValue]:
        """The state as it can be stored.

        Raises:
            NotStorable: Some value in it has no JSON form.
        """
        if not isinstance(state, BaseModel):
            return {}
        try:
            plain: dict[str, JsonValue] = state.model_dump(mode="json", round_trip=True, warnings="none")
        except (PydanticSerializationError, RecursionError) as error:
            raise NotStorable(f"the state has no JSON form: {type(error).__name__}") from error
        return {name: storable_json(value) for name, value in plain.items()}

    def diff(self, before: Mapping[str, JsonValue], state: object) -> dict[str, JsonValue]:
        """The top-level fields the state changed, as they can be stored and are known to load again.

        A field that was not stored yet has changed only if it no longer has its default: bodies
        that run beside each other do not overwrite each other's fields with defaults.

        Args:
            before: The stored form that the state was loaded from.

        Raises:
            NotStorable: A changed field has no JSON form, a form of the wrong type, or too large a one.
        """
        known, after = self.dump(self.load(before)), self.dump(state)
        changed = {
            name: value for name, value in after.items() if name not in known or _differ(known[name], value)
        }
        if changed and self.model is not None:
            storable(changed)
            try:
                self._read(self.model, {**before, **changed})
            except ArgumentsInvalid as invalid:
                raise NotStorable(f"the state does not fit its class: {invalid.problem}") from invalid
        return changed

    @staticmethod
    def _read(model: type[BaseModel], stored: Mapping[str, JsonValue]) -> BaseModel:
        # By field names, as `dump` writes: aliases are for the outside.
        return read_json(TypeAdapter(model), stored, by_name=True, by_alias=False)


def _differ(one: JsonValue, other: JsonValue) -> bool:
    """Whether two JSON values differ as JSON; Python would call 1, 1.0 and True equal."""
    return json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)
