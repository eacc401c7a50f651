"""States and reasons: each value equals the database text and the wire text."""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "DOUBTFUL",
    "FINISH_TOOL",
    "MAX_BODIES",
    "OPEN_RUN",
    "CallKind",
    "CallState",
    "CheckpointKind",
    "DispatchState",
    "EndStatus",
    "MessageKind",
    "Origin",
    "Outcome",
    "Reason",
    "Replay",
    "RunStatus",
]

MAX_BODIES = 3
"""A call that may run again starts at most this many bodies in all (recoverable tools page)."""

FINISH_TOOL = "__finish__"
"""The tool through which a model hands over a typed output; it has no body."""


class RunStatus(StrEnum):
    """Where a run stands; see `docs/state_machine.md`."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SUPERSEDED = "superseded"


OPEN_RUN = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.SUSPENDED})
"""A session has at most one run in these states."""

EndStatus = RunStatus
"""A run status that ends the run: completed, failed, interrupted or superseded."""


class Replay(StrEnum):
    """What recovery may do with a body that may have run."""

    UNSAFE = "unsafe"
    SAFE = "safe"
    TRANSACTIONAL = "transactional"
    VERIFIED = "verified"


class CallKind(StrEnum):
    """What answers a call."""

    LOCAL = "local"
    INLINE_AGENT = "inline_agent"
    REMOTE = "remote"
    CLIENT = "client"
    APPROVAL = "approval"
    COMPANION = "companion"
    FINISH = "finish"


class CallState(StrEnum):
    """Open calls are for an execution to answer, waiting ones for somebody else."""

    OPEN = "open"
    WAITING = "waiting"
    ANSWERED = "answered"


class Outcome(StrEnum):
    """How a call was answered."""

    RETURNED = "returned"
    RAISED = "raised"
    NOT_EXECUTED = "not_executed"


class Reason(StrEnum):
    """Why a call did not simply return."""

    OUTCOME_UNKNOWN = "outcome_unknown"
    REPLAY_LIMIT_REACHED = "replay_limit_reached"
    RUN_STOPPED = "run_stopped"
    CLIENT_TOOL_ABANDONED = "client_tool_abandoned"
    APPROVAL_DENIED = "approval_denied"
    INVALID_ARGUMENTS = "invalid_arguments"
    UNKNOWN_TOOL = "unknown_tool"
    TOOL_ERROR = "tool_error"
    TOOL_FAILED = "tool_failed"
    TIMED_OUT = "timed_out"
    RESULT_NOT_STORABLE = "result_not_storable"


DOUBTFUL = frozenset({Reason.OUTCOME_UNKNOWN, Reason.REPLAY_LIMIT_REACHED})
"""Answers that put every call behind them in doubt."""


class Origin(StrEnum):
    """Who answered: `reply` is an answer that the saved reply itself called for."""

    REPLY = "reply"
    BODY = "body"
    RECOVERY = "recovery"
    FAILURE = "failure"
    STOP = "stop"
    ENTRY = "entry"
    CLIENT = "client"
    OPERATOR = "operator"
    CHILD = "child"
    DEADLINE = "deadline"


class DispatchState(StrEnum):
    """Where a remote call's dispatch stands."""

    HELD = "held"
    PENDING = "pending"
    SENDING = "sending"
    STARTED = "started"
    SETTLED = "settled"
    ABANDONED = "abandoned"
    LOST = "lost"


class MessageKind(StrEnum):
    """Tool results are not messages: the history interleaves them from the answers."""

    USER = "user"
    ASSISTANT = "assistant"
    NOTICE = "notice"
    SUMMARY = "summary"


class CheckpointKind(StrEnum):
    """`append` is the saved commit, `step_commit` says that a step's results are recorded."""

    APPEND = "append"
    STEP_COMMIT = "step_commit"
    SUSPENSION = "suspension"
    END = "end"
