"""The agents of the crash tests: every kind of call, each body seen by the witness.

Built anew in each process from a `Script`, so that a test can deploy a changed world.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helix_dbos import Agent, ModelRequest, Tool, ToolContext, ToolError, tool
from helix_dbos.core.messages import AnsweredCall, AssistantContent, TextPart, UserContent
from helix_dbos.faults import FaultPoint
from helix_dbos.testing.scripted import Reply, ScriptedModel, call, calls, say
from tests.fault.witness import Witness

__all__ = ["IN_BODY", "Kill", "Script", "Trap", "make_agent", "make_reach"]

IN_BODY = "in_body"
"""A point of the test's own: inside a tool's function, its start seen and its end not."""


Steps = tuple[tuple[tuple[str, dict[str, Any]], ...], ...]


@dataclass(frozen=True)
class Kill:
    """When this process sends itself a signal.

    Args:
        point: A fault point, or `IN_BODY`.
        about: Only for this tool; any when None.
        nth: At the nth time the point is reached.
    """

    point: str
    about: str | None = None
    nth: int = 1
    signal: int = signal.SIGKILL


@dataclass(frozen=True)
class Script:
    """What a process's world looks like.

    Args:
        steps: Each step's calls as (tool, arguments); the reply after them is the text `done`.
        without: Tools that this deployment has removed.
        changed: Tools whose policy this deployment has turned unsafe.
        eased: Tools whose policy this deployment has turned safe.
        strict: Whether `put` refuses its stored arguments now.
        body_seconds: How long a body takes whose call does not give its own `seconds`.
        suicidal: Tools each body of which kills its process, after the call's `seconds` if any.
        turns: Other steps, for turns whose message is the key.
        model_seconds: How long the model takes to reply.
    """

    witness: Path
    steps: Steps
    without: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    eased: tuple[str, ...] = ()
    strict: bool = False
    body_seconds: float = 0.0
    agent: str = "desk"
    kill: Kill | None = None
    suicidal: tuple[str, ...] = field(default=())
    turns: dict[str, Steps] = field(default_factory=dict[str, "Steps"])
    model_seconds: float = 0.0


MIXED = (
    (
        ("charge", {"n": 1}),
        ("put", {"n": 2}),
        ("fail", {"n": 3}),
        ("grouped", {"n": 4}),
        ("grouped", {"n": 5}),
        ("chained", {"n": 6}),
        ("chained", {"n": 7}),
    ),
    (("put", {"n": 8}),),
)
"""A step with every kind of call, then a small one."""


_NOTED = {
    FaultPoint.AFTER_ATTACH: "attach",
    FaultPoint.BEFORE_RESCUE_COMMIT: "rescue",
    FaultPoint.AFTER_HANDOVER: "handover",
}
"""Points that the witness always sees, with the run's id: what tests time and count."""


class Trap:
    """Sends the signal at the wanted point; remembers in the witness that it was reached."""

    def __init__(self, witness: Witness, kill: Kill | None) -> None:
        self._witness, self._kill, self._seen = witness, kill, 0

    def arm(self, kill: Kill | None) -> None:
        """Be set anew, for a process that outlives its signals."""
        self._kill, self._seen = kill, 0

    def __call__(self, point: str, about: str) -> None:
        if note := _NOTED.get(point):  # pyright: ignore[reportArgumentType]
            self._witness.saw(note, run_id=about)
        kill = self._kill
        if kill is None or point != kill.point or kill.about not in (None, about):
            return
        self._seen += 1
        if self._seen == kill.nth:
            self._witness.saw("signal", point=str(point), about=about)
            os.kill(os.getpid(), kill.signal)


def make_reach(witness: Witness, kill: Kill | None) -> Trap:
    """Send the signal at the wanted point; remember in the witness that it was reached."""
    return Trap(witness, kill)


def make_agent(script: Script, reach: Callable[[str, str], None] | None = None) -> Agent[Any, Any, Any]:
    """The agent as this deployment declares it."""
    witness = Witness(script.witness)

    async def body(ctx: ToolContext, name: str, n: int, seconds: float | None = None) -> str:
        facts = {"session_id": ctx.session_id, "dispatch_id": ctx.dispatch_id, "tool": name, "n": n}
        witness.saw("start", attempt=ctx.attempt, run_id=ctx.run_id, **facts)
        if name in script.suicidal:
            await asyncio.sleep(seconds or 0.0)
            os.kill(os.getpid(), signal.SIGKILL)
        if reach is not None:
            reach(IN_BODY, name)
        await asyncio.sleep(script.body_seconds if seconds is None else seconds)
        witness.saw("end", attempt=ctx.attempt, **facts)
        return f"{name} {n}"

    tools = [_tool(script, name, body) for name in _POLICIES if name not in script.without]

    async def on_request(request: ModelRequest) -> None:
        _witness_ask(witness, request)
        await asyncio.sleep(script.model_seconds)

    model = ScriptedModel(lambda request: _reply(script, request), on_request=on_request)
    return Agent(name=script.agent, model=model, instructions="Obey the script.", tools=tools)


def _reply(script: Script, request: ModelRequest) -> Reply:
    """The turn's next reply: its steps in order, then the text."""
    last = max(place for place, item in enumerate(request.history) if isinstance(item, UserContent))
    message = "".join(part.text for part in request.history[last].parts if isinstance(part, TextPart))
    steps = script.turns.get(message, script.steps)
    replied = sum(isinstance(item, AssistantContent) for item in request.history[last:])
    if replied == len(steps):
        return say("done")
    return calls(*(call(name, arguments) for name, arguments in steps[replied]))


_POLICIES: dict[str, dict[str, Any]] = {
    "charge": {},
    "put": {"replay": "safe"},
    "fail": {"replay": "safe"},
    "grouped": {"replay": "safe", "concurrency_group": "g"},
    "chained": {"sequential": True},
    "safely_chained": {"replay": "safe", "sequential": True},
    "solo": {"replay": "safe"},
    "threaded": {"replay": "safe"},
    "both": {"replay": "safe", "concurrency_group": "a", "sequential": True},
    "fail_in_a": {"replay": "safe", "concurrency_group": "a"},
    "brief_in_b": {"concurrency_group": "b", "timeout_seconds": 0.2},
    **{f"in_{group}": {"replay": "safe", "concurrency_group": group} for group in "abc"},
    **{f"risky_in_{group}": {"concurrency_group": group} for group in "abc"},
}

Body = Callable[[ToolContext, str, int, float | None], Coroutine[Any, Any, str]]


def _tool(script: Script, name: str, body: Body) -> Tool[Any, Any, ..., Any]:
    options = dict(_POLICIES[name])
    if name in script.changed:
        options["replay"] = "unsafe"
    if name in script.eased:
        options["replay"] = "safe"

    if script.strict and name == "put":

        @tool(name=name, **options)
        async def strict_function(ctx: ToolContext, n: int, reason: str) -> str:
            """Do it, giving a reason."""
            return await body(ctx, name, n, None)

        return strict_function

    if name == "threaded":

        @tool(name=name, **options)
        def sync_function(ctx: ToolContext, n: int, seconds: float | None = None) -> str:
            """Do it in a thread."""
            return asyncio.run(body(ctx, name, n, seconds))

        return sync_function

    @tool(name=name, **options)
    async def function(ctx: ToolContext, n: int, seconds: float | None = None) -> str:
        """Do it."""
        result = await body(ctx, name, n, seconds)
        if name.startswith("fail"):
            raise ToolError("it cannot be done")
        return result

    return function


def _witness_ask(witness: Witness, request: ModelRequest) -> None:
    answered: list[AnsweredCall] = [
        item for group in request.history if isinstance(group, tuple) for item in group
    ]
    witness.saw(
        "ask",
        session_id=request.session_id,
        run_id=request.run_id,
        step=request.step_index,
        answered=[item.tool_call_id for item in answered],
        texts=[item.content for item in answered],
    )
