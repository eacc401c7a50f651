"""The sentences given to the model: short, ours, and saying what to do."""

from __future__ import annotations

from helix_dbos.core.calls import Answer
from helix_dbos.core.states import Origin, Outcome, Reason

__all__ = ["TEXTS", "not_executed", "raised"]

TEXTS: dict[Reason, str] = {
    Reason.OUTCOME_UNKNOWN: (
        "The outcome is unknown: the tool may have run, but no result was recorded. "
        "Check whether it took effect before repeating it."
    ),
    Reason.REPLAY_LIMIT_REACHED: (
        "The tool was started three times without a recorded result. It will not be run again "
        "automatically. Check whether it took effect before asking for it again."
    ),
    Reason.RUN_STOPPED: "The run was stopped before this call had a result.",
    Reason.CLIENT_TOOL_ABANDONED: "The user sent a new message instead of answering this call.",
    Reason.APPROVAL_DENIED: "A person declined this call. It was not run.",
    Reason.INVALID_ARGUMENTS: "The arguments do not fit the tool's schema. It was not run.",
    Reason.UNKNOWN_TOOL: "There is no tool of this name. Nothing was run.",
    Reason.TOOL_ERROR: "The tool reported an error.",
    Reason.TOOL_FAILED: "The tool failed with an internal error. It may have had part of its effect.",
    Reason.TIMED_OUT: "The tool did not finish in time and was cancelled. It may have had some effect.",
    Reason.RESULT_NOT_STORABLE: (
        "The tool ran to its end, but its result could not be recorded. "
        "Do not repeat it only to see the result."
    ),
}


def not_executed(reason: Reason, origin: Origin, detail: str | None = None) -> Answer:
    """An answer saying that no result exists, with the reason's sentence and an optional detail."""
    text = f"{TEXTS[reason]} {detail}" if detail else TEXTS[reason]
    return Answer(Outcome.NOT_EXECUTED, reason, text, origin)


def raised(reason: Reason, text: str | None = None) -> Answer:
    """An answer of a body that ran and did not return: the text, or the reason's sentence."""
    return Answer(Outcome.RAISED, reason, text or TEXTS[reason], Origin.BODY)
