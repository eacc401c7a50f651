"""helix-dbos: LLM agent turns as DBOS workflows that survive SIGKILL with the truth about every call."""

from __future__ import annotations

from helix_dbos.agents import Agent, RunContext, RunInfo, Tool, ToolContext, UsageLimits, tool
from helix_dbos.core.messages import FilePart, TextPart, Usage
from helix_dbos.core.states import Outcome, Reason, RunStatus
from helix_dbos.errors import (
    ConflictError,
    DefinitionError,
    HelixError,
    ModelError,
    NotFoundError,
    RequestError,
    RunError,
    SchemaError,
    StoreError,
    ToolError,
)
from helix_dbos.helix import Helix
from helix_dbos.models.port import ModelPort, ModelReply, ModelRequest, TransientModelError
from helix_dbos.run import CallReport, Run, RunFailure, RunOutcome
from helix_dbos.settings import Settings

__all__ = [
    "Agent",
    "CallReport",
    "ConflictError",
    "DefinitionError",
    "FilePart",
    "Helix",
    "HelixError",
    "ModelError",
    "ModelPort",
    "ModelReply",
    "ModelRequest",
    "NotFoundError",
    "Outcome",
    "Reason",
    "RequestError",
    "Run",
    "RunContext",
    "RunError",
    "RunFailure",
    "RunInfo",
    "RunOutcome",
    "RunStatus",
    "SchemaError",
    "Settings",
    "StoreError",
    "TextPart",
    "Tool",
    "ToolContext",
    "ToolError",
    "TransientModelError",
    "Usage",
    "UsageLimits",
    "tool",
]
