"""What one look of the doctor's gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

__all__ = ["Finding", "Level", "fail", "ok", "warn"]


class Level(StrEnum):
    """`warn` works but deserves a look; `fail` does not work, or does not mend itself."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        found: What is so; never a secret.
        advice: What to do about it.
        details: Further lines, one per thing found.
        data: The same for machines.
    """

    name: str
    level: Level
    found: str
    advice: str | None = None
    details: tuple[str, ...] = ()
    data: JsonValue = None


def ok(name: str, found: str, *, details: tuple[str, ...] = (), data: JsonValue = None) -> Finding:
    """All is well."""
    return Finding(name, Level.OK, found, None, details, data)


def warn(name: str, found: str, advice: str, *, data: JsonValue = None) -> Finding:
    """It works, but."""
    return Finding(name, Level.WARN, found, advice, (), data)


def fail(name: str, found: str, advice: str, *, data: JsonValue = None) -> Finding:
    """It does not work."""
    return Finding(name, Level.FAIL, found, advice, (), data)
