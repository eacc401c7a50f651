"""What every driver of one process shares. No decisions live here."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helix_dbos.agents import AgentRegistry, ProcessDependencies
from helix_dbos.agents.erased import AnyAgent
from helix_dbos.engine.port import Engine
from helix_dbos.faults import Reach
from helix_dbos.models.port import ModelPort
from helix_dbos.settings import Settings
from helix_dbos.store.database import Database

if TYPE_CHECKING:
    from helix_dbos.workflows.execution import Execution

__all__ = ["Runtime"]


@dataclass
class Runtime:
    """One process of one app.

    Args:
        queue: The turn queue's name, recorded on every run.
        threads: Where sync tools run; not asyncio's default pool, which DBOS replaces.
        ended: Called with a run id when a run's end was committed here.
        clean_context: A context from before any workflow, so that tool bodies are not inside one.
        carries_turns: Whether this process is a worker.
        draining: No new step is begun once this is set.
        live: The executions of this process by run id.
    """

    database: Database
    engine: Engine
    agents: AgentRegistry
    settings: Settings
    executor_id: str
    queue: str
    process_dependencies: ProcessDependencies
    model_for: Callable[[AnyAgent], ModelPort]
    threads: ThreadPoolExecutor
    reach: Reach
    ended: Callable[[str], None]
    clean_context: contextvars.Context = field(default_factory=contextvars.copy_context)
    carries_turns: bool = True
    draining: bool = False
    live: dict[str, Execution] = field(default_factory=dict[str, "Execution"])
