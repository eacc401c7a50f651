"""What functions written by users are given: about a run, and about one call of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from pydantic import JsonValue
from typing_extensions import TypeVar

from helix_dbos.agents.abort import AbortSignal

__all__ = ["RunContext", "RunInfo", "ToolContext"]

DepsT_co = TypeVar("DepsT_co", default=None, covariant=True)
StateT_co = TypeVar("StateT_co", default=None, covariant=True)
ProcessT_co = TypeVar("ProcessT_co", default=None, covariant=True)
# A bare `ToolContext` asks for nothing of them, so that its tool fits every agent.
AnyDepsT_co = TypeVar("AnyDepsT_co", default=object, covariant=True)
AnyStateT_co = TypeVar("AnyStateT_co", default=object, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Generic[ProcessT_co]):
    """What a dependency factory knows of the run it serves.

    Args:
        process: What the agent's `process_deps` gave in this process; None without one.
    """

    session_id: str
    run_id: str
    user_id: str | None
    metadata: Mapping[str, JsonValue]
    process: ProcessT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(Generic[DepsT_co, StateT_co]):
    """What an instructions function knows of the run it writes for.

    Args:
        deps: What the agent's dependency factory gave for this run.
        state: The session's custom state; None for an agent without one.
    """

    session_id: str
    run_id: str
    user_id: str | None
    metadata: Mapping[str, JsonValue]
    deps: DepsT_co
    state: StateT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(RunContext[AnyDepsT_co, AnyStateT_co]):
    """What a tool's body knows of its call.

    A tool that names the types of its dependencies and state fits agents that have them; plain
    `ToolContext` asks for neither and fits every agent.

    Args:
        dispatch_id: The call's own id, the same on every attempt and in every later run.
        tool_call_id: The provider's id; do not key an effect on it.
        attempt: Which body of this call this is: 1, 2 or 3.
        abort: Set when the run is lost or stopped, or when the call's time is up.
    """

    dispatch_id: str
    tool_call_id: str
    attempt: int
    abort: AbortSignal

    @property
    def idempotency_key(self) -> str:
        """The key to give to an outside service: one per call, the same on every attempt."""
        return f"{self.session_id}:{self.dispatch_id}"
