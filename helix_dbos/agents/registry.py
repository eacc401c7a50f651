"""The agents of one deployment, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from helix_dbos.agents.agent import Agent
from helix_dbos.errors import DefinitionError

__all__ = ["AgentRegistry"]


class AgentRegistry:
    """Finds an agent by its name; which agents there are never changes.

    Raises:
        DefinitionError: Two agents have the same name.
    """

    def __init__(self, agents: Iterable[Agent[Any, Any, Any]]) -> None:
        self._agents: dict[str, Agent[Any, Any, Any]] = {}
        for agent in agents:
            if agent.name in self._agents:
                raise DefinitionError(f"Two agents have the name '{agent.name}'.")
            self._agents[agent.name] = agent

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order given."""
        return tuple(self._agents)

    def get(self, name: str) -> Agent[Any, Any, Any] | None:
        """The agent of that name, or None when this deployment lacks it."""
        return self._agents.get(name)
