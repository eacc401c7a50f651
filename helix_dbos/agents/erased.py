"""Agents, tools and contexts whose type parameters the runtime does not know."""

from __future__ import annotations

from typing import Any

from helix_dbos.agents.agent import Agent
from helix_dbos.agents.context import ToolContext
from helix_dbos.agents.tool import Tool

__all__ = ["AnyAgent", "AnyContext", "AnyTool"]

AnyAgent = Agent[Any, Any, Any]
AnyContext = ToolContext[Any, Any]
AnyTool = Tool[Any, Any, ..., Any]
