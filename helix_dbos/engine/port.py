"""The port to the durable engine, small enough that a plain in-process loop can stand in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pydantic import JsonValue

from helix_dbos.store.database import Transaction

__all__ = ["Engine", "RunStretch", "StrandedCause", "StrandedRun"]

RunStretch = Callable[[str, str], Awaitable[str]]
"""Carries one stretch: run id and workflow id in, one word about its end out."""


class StrandedCause(StrEnum):
    """Why the engine will not bring a run any further by itself."""

    DEAD_EXECUTOR = "dead_executor"
    ENDED = "ended"
    NO_WORKER = "no_worker"
    MISSING = "missing"
    UNKNOWN_HERE = "unknown_here"


@dataclass(frozen=True, slots=True)
class StrandedRun:
    """A run that needs a new stretch, as the sweeper saw it."""

    run_id: str
    session_id: str
    workflow_id: str
    generation: int
    status: str
    cause: StrandedCause


class Engine(Protocol):
    """What Helix asks of its durable engine."""

    @property
    def starting(self) -> int:
        """How many direct starts are under way."""
        ...

    async def launch(self, run_stretch: RunStretch, *, worker: bool) -> None:
        """Start taking stretches (workers) or only be able to enqueue them."""
        ...

    async def close(self, grace_seconds: float) -> None:
        """Take no new stretch, give those running the grace, then give back what was borrowed."""
        ...

    async def enqueue(
        self, tx: Transaction, *, run_id: str, workflow_id: str, priority: int, delay_seconds: float = 0.0
    ) -> None:
        """Enqueue a stretch in the caller's transaction: it exists if and only if that commits."""
        ...

    async def start(self, run_id: str, workflow_id: str) -> None:
        """Start a stretch in this process at once; its accept is committed already."""
        ...

    async def record(self, step: Callable[[], Awaitable[dict[str, JsonValue]]]) -> dict[str, JsonValue]:
        """Run a model step so that the engine's tools show it; its record is never trusted."""
        ...

    async def find_lost(self, tx: Transaction, limit: int) -> Sequence[StrandedRun]:
        """The queued and running runs that no live process will bring any further."""
        ...

    async def unknown_claims(self, tx: Transaction, limit: int) -> Sequence[StrandedRun]:
        """Runs that the engine's rows give to this very process, and that it does not carry."""
        ...

    async def cancel(self, workflow_ids: Sequence[str]) -> None:
        """Housekeeping: mark left-over engine rows cancelled. Never needed for the truth."""
        ...

    async def leftovers(self, tx: Transaction, limit: int) -> Sequence[str]:
        """Unfinished engine rows of runs that have ended or moved on to another stretch."""
        ...
