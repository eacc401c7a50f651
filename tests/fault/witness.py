"""The outside witness: lines in a file that no database transaction can undo."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Event", "Witness"]


@dataclass(frozen=True)
class Event:
    """One thing that really happened.

    Args:
        what: `start` and `end` of a body, `ask` of the model, `reach` of a fault point, …
    """

    what: str
    pid: int
    at: float
    facts: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Witness:
    """Appends whole lines, so that processes may write side by side and die at any moment."""

    path: Path

    def saw(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), "facts": facts}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def events(self, what: str | None = None, **facts: Any) -> list[Event]:
        """What was seen so far, in order, restricted to these facts."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        events = [Event(**json.loads(line)) for line in lines]
        return [
            event
            for event in events
            if (what is None or event.what == what)
            and all(event.facts.get(name) == value for name, value in facts.items())
        ]

    def bodies(self, session_id: str) -> Counter[str]:
        """Started bodies by dispatch id."""
        return Counter(event.dispatch_id for event in self.events("start", session_id=session_id))

    def asks(self, session_id: str) -> Counter[int]:
        """Model requests by the step they were for."""
        return Counter(event.step for event in self.events("ask", session_id=session_id))
