"""Agents by name."""

from __future__ import annotations

import pytest

from helix_dbos.agents import Agent, AgentRegistry
from helix_dbos.errors import DefinitionError


def test_agents_are_found_by_name():
    one, two = Agent(name="one", model="m"), Agent(name="two", model="m")
    registry = AgentRegistry([one, two])
    assert registry.names == ("one", "two")
    assert registry.get("two") is two
    assert registry.get("three") is None
    assert AgentRegistry([]).names == ()


def test_two_agents_of_one_name_are_refused():
    with pytest.raises(DefinitionError, match="'one'"):
        AgentRegistry([Agent(name="one", model="m"), Agent(name="one", model="m")])
