"""Identifiers: who mints them and what they look like. Nothing else lives here.

Ids are uuid7 text, so that they sort by the time they were minted.
"""

from __future__ import annotations

from typing import NewType

from uuid_utils.compat import uuid7

__all__ = [
    "DispatchId",
    "ExecutorId",
    "RunId",
    "SessionId",
    "WorkflowId",
    "new_checkpoint_id",
    "new_dispatch_id",
    "new_executor_id",
    "new_run_id",
    "new_session_id",
    "turn_workflow_id",
]

SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
DispatchId = NewType("DispatchId", str)
ExecutorId = NewType("ExecutorId", str)
WorkflowId = NewType("WorkflowId", str)


def new_session_id() -> SessionId:
    """A fresh session id (uuid7)."""
    return SessionId(str(uuid7()))


def new_run_id() -> RunId:
    """A fresh run id (uuid7)."""
    return RunId(str(uuid7()))


def new_dispatch_id() -> DispatchId:
    """A fresh dispatch id (uuid7): the dedupe key of one call."""
    return DispatchId(str(uuid7()))


def new_checkpoint_id() -> str:
    """A fresh checkpoint id (uuid7)."""
    return str(uuid7())


def new_executor_id() -> ExecutorId:
    """A fresh executor id (uuid7): one per start of a process."""
    return ExecutorId(str(uuid7()))


def turn_workflow_id(run_id: str, stretch_no: int) -> WorkflowId:
    """The id of the DBOS workflow that carries one stretch of a run.

    Unique because `stretch_no` is raised under the session's lock: an enqueue with a used
    id would silently do nothing.
    """
    return WorkflowId(f"helix.turn:{run_id}:{stretch_no}")
