"""The witness: a file outside every database, one line per thing seen. No table of ours is asked."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from helix_dbos.models.port import ModelPort, ModelReply, ModelRequest

__all__ = ["Observed", "Seen", "Sight", "Witness"]


READS = frozenset({"look_up_order"})
"""Tools without an effect: they are not made to last."""


class Sight(StrEnum):
    """What can be seen of a worker from outside."""

    MODEL_ASKED = "model_asked"
    BODY_STARTED = "body_started"
    EFFECT_MADE = "effect_made"
    BODY_FINISHED = "body_finished"


@dataclass(frozen=True, slots=True)
class Seen:
    """One line of the witness.

    Args:
        process: A or B.
        about: The tool's name, or the step that the model was asked for.
        dispatch_id: The call's; empty for a model request.
        attempt: Which body of the call; 0 for a model request.
        at: Seconds since 1970, by this machine's clock.
    """

    process: str
    sight: Sight
    about: str
    dispatch_id: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class Witness:
    """Appends to the file and reads it.

    Args:
        process: Who writes here.
        pause_seconds: How long a body goes on after its effect, before it returns.
    """

    path: Path
    process: str = ""
    pause_seconds: float = 0.0

    def saw(self, sight: Sight, about: str, dispatch_id: str = "", attempt: int = 0) -> None:
        """Append one line; it is there whole, or not at all, whatever kills us afterwards."""
        seen = Seen(self.process, sight, about, dispatch_id, attempt, time.time())
        line = json.dumps(asdict(seen)).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read(self) -> list[Seen]:
        """Every line, in the order in which they were written."""
        if not self.path.exists():
            return []
        return [_seen(json.loads(line)) for line in self.path.read_text().splitlines()]

    @asynccontextmanager
    async def body(self, tool_name: str, dispatch_id: str, attempt: int) -> AsyncGenerator[None]:
        """Watch one body: its start, its effect, and its end a while later."""
        self.saw(Sight.BODY_STARTED, tool_name, dispatch_id, attempt)
        yield
        self.saw(Sight.EFFECT_MADE, tool_name, dispatch_id, attempt)
        await asyncio.sleep(0 if tool_name in READS else self.pause_seconds)
        self.saw(Sight.BODY_FINISHED, tool_name, dispatch_id, attempt)


def _seen(values: dict[str, Any]) -> Seen:
    values["sight"] = Sight(values["sight"])
    return Seen(**values)


@dataclass(frozen=True, slots=True)
class Observed:
    """A model whose every request the witness sees."""

    model: ModelPort
    witness: Witness

    async def request(self, request: ModelRequest) -> ModelReply:
        """Ask the model behind, and have it witnessed first."""
        self.witness.saw(Sight.MODEL_ASKED, str(request.step_index))
        return await self.model.request(request)
