"""The named points at which a process may die, as the crash tests know them.

Production code announces each point to the `Reach` it was given, which by default does
nothing. The crash matrix is parametrised over this enum, so a point without a test cannot exist.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

__all__ = ["FaultPoint", "Reach", "unreached"]


class FaultPoint(StrEnum):
    """One point of a turn; `before_…_commit` is inside the open transaction."""

    BEFORE_ACCEPT_COMMIT = "before_accept_commit"
    AFTER_ACCEPT = "after_accept"
    BEFORE_ATTACH = "before_attach"
    BEFORE_ATTACH_COMMIT = "before_attach_commit"
    AFTER_ATTACH = "after_attach"
    BEFORE_MODEL_REQUEST = "before_model_request"
    AFTER_MODEL_REQUEST = "after_model_request"
    BEFORE_SAVE_COMMIT = "before_save_commit"
    AFTER_SAVE = "after_save"
    BEFORE_BODY = "before_body"
    AFTER_BODY = "after_body"
    BEFORE_ANSWER_COMMIT = "before_answer_commit"
    AFTER_ANSWER = "after_answer"
    BEFORE_RECOVERY_COMMIT = "before_recovery_commit"
    AFTER_RECOVERY = "after_recovery"
    BEFORE_RESCUE_COMMIT = "before_rescue_commit"
    AFTER_RESCUE = "after_rescue"
    BEFORE_HANDOVER_COMMIT = "before_handover_commit"
    AFTER_HANDOVER = "after_handover"
    BEFORE_END_COMMIT = "before_end_commit"
    AFTER_END = "after_end"


Reach = Callable[[FaultPoint, str], None]
"""Called with the point and what it is about: a tool's name for a call, a run id otherwise."""


def unreached(point: FaultPoint, about: str) -> None:
    """The production reach: nothing happens."""
