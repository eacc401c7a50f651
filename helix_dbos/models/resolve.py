"""From what an author writes as a model to the port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helix_dbos.errors import DefinitionError
from helix_dbos.models.port import ModelPort
from helix_dbos.models.pydantic_ai import PydanticAIModel, is_pydantic_ai_model

if TYPE_CHECKING:
    from pydantic_ai.models import Model

__all__ = ["resolve_model"]


def resolve_model(model: str | Model[Any] | ModelPort) -> ModelPort:
    """The model behind the port: a port passes through, a name or a pydantic-ai model is wrapped.

    Nothing is sent and no key is needed; whether the provider accepts the name is known only
    when it is asked.

    Raises:
        DefinitionError: It is none of the three, or the name is malformed or of no known provider.
    """
    # A pydantic-ai model has a `request` too and would pass for a port.
    if isinstance(model, str) or is_pydantic_ai_model(model):
        return PydanticAIModel(model)
    if isinstance(model, type) or not callable(getattr(model, "request", None)):
        raise DefinitionError(
            "A model is a name, a pydantic-ai model, or an object with a `request` method.",
            detail=f"not {model!r}",
        )
    return model
