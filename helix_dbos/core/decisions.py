"""What recovery can decide about one unanswered call: a closed union of values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from helix_dbos.core.states import Reason

__all__ = [
    "AskHook",
    "Decision",
    "Leave",
    "Pair",
    "Reattach",
    "ReattachHow",
    "Reenter",
    "Release",
    "RunAgain",
    "Start",
]


class ReattachHow(StrEnum):
    """How a remote call finds its one child again."""

    TAKE_RESULT = "take_result"
    ATTACH = "attach"
    START = "start"


@dataclass(frozen=True, slots=True)
class Leave:
    """Somebody else answers this call; recovery does nothing."""


@dataclass(frozen=True, slots=True)
class Reattach:
    """Find the child under the call's dispatch id, or start it once under that id."""

    how: ReattachHow


@dataclass(frozen=True, slots=True)
class Reenter:
    """Repeat a companion operation; it is keyed by the dispatch id."""


@dataclass(frozen=True, slots=True)
class Release:
    """Let a held remote or companion call go when its turn comes."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the first body when the call's turn comes: it never started."""


@dataclass(frozen=True, slots=True)
class RunAgain:
    """Start one more body when the call's turn comes: same arguments, same dispatch id."""


@dataclass(frozen=True, slots=True)
class AskHook:
    """Ask the tool's verify hook; it may supply the result, allow a body, or not know."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Answer the call `not_executed` with this reason."""

    reason: Reason


Decision = Leave | Reattach | Reenter | Release | Start | RunAgain | AskHook | Pair
