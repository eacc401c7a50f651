"""What authors touch: agents, tools, and what tools are given. It knows no store, engine or provider."""

from __future__ import annotations

from helix_dbos.agents.abort import AbortSignal
from helix_dbos.agents.agent import Agent, Instructions
from helix_dbos.agents.context import RunContext, RunInfo, ToolContext
from helix_dbos.agents.dependencies import ProcessDependencies, run_dependencies
from helix_dbos.agents.limits import UsageLimits
from helix_dbos.agents.provided import Provided
from helix_dbos.agents.registry import AgentRegistry
from helix_dbos.agents.schema import ArgumentsInvalid
from helix_dbos.agents.tool import Tool, tool

__all__ = [
    "AbortSignal",
    "Agent",
    "AgentRegistry",
    "ArgumentsInvalid",
    "Instructions",
    "ProcessDependencies",
    "Provided",
    "RunContext",
    "RunInfo",
    "Tool",
    "ToolContext",
    "UsageLimits",
    "run_dependencies",
    "tool",
]
