"""Which entries a session takes in which state; pure, decided before anything is written."""

from __future__ import annotations

from enum import StrEnum

from helix_dbos.core.states import OPEN_RUN, RunStatus

__all__ = ["EntryDecision", "decide_new_turn"]


class EntryDecision(StrEnum):
    """What becomes of an entry."""

    START = "start"
    BUSY = "busy"


def decide_new_turn(current: RunStatus | None) -> EntryDecision:
    """A new turn starts on an idle session and is refused while a run is open.

    Args:
        current: The status of the session's current run; None for a session without runs.
    """
    return EntryDecision.BUSY if current in OPEN_RUN else EntryDecision.START
