"""For users' own tests: a model that answers from a script."""

from __future__ import annotations

from helix_dbos.testing.scripted import (
    Reply,
    Script,
    ScriptedCall,
    ScriptedFailure,
    ScriptedModel,
    ScriptedReply,
    call,
    calls,
    fails_once,
    finish,
    say,
    turns,
)

__all__ = [
    "Reply",
    "Script",
    "ScriptedCall",
    "ScriptedFailure",
    "ScriptedModel",
    "ScriptedReply",
    "call",
    "calls",
    "fails_once",
    "finish",
    "say",
    "turns",
]
