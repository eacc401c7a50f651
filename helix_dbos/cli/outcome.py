"""A run's outcome for people and for machines."""

from __future__ import annotations

import json
from typing import Any

from pydantic import JsonValue
from rich.console import Console
from rich.table import Table
from rich.text import Text

from helix_dbos.agents import Agent
from helix_dbos.cli.console import plain
from helix_dbos.core.states import Outcome, RunStatus
from helix_dbos.run import CallReport, RunOutcome

__all__ = ["answer_of", "calls_table", "outcome_json", "print_outcome"]

_RESULT_WIDTH = 300


def outcome_json(outcome: RunOutcome[Any], agent: Agent[Any, Any, Any] | None) -> dict[str, JsonValue]:
    """The outcome as JSON; a typed output in its JSON form."""
    error = outcome.error
    return {
        "run_id": outcome.run_id,
        "session_id": outcome.session_id,
        "status": outcome.status.value,
        "output": _output(outcome, agent),
        "error": {"code": error.code, "error": error.error, "detail": error.detail} if error else None,
        "usage": outcome.usage.model_dump(mode="json"),
        "steps": outcome.steps,
        "rescues": outcome.rescues,
        "calls": [_call_json(call) for call in outcome.calls],
    }


def _output(outcome: RunOutcome[Any], agent: Agent[Any, Any, Any] | None) -> JsonValue:
    if outcome.status is not RunStatus.COMPLETED:
        return None
    return agent.dump_output(outcome.output) if agent else outcome.output


def _call_json(call: CallReport) -> dict[str, JsonValue]:
    return {
        "tool_name": call.tool_name,
        "arguments": call.arguments,
        "dispatch_id": call.dispatch_id,
        "tool_call_id": call.tool_call_id,
        "replay": call.replay,
        "bodies": call.bodies,
        "outcome": call.outcome.value if call.outcome else None,
        "reason": call.reason.value if call.reason else None,
        "result": call.result,
    }


def print_outcome(console: Console, outcome: RunOutcome[Any], agent: Agent[Any, Any, Any] | None) -> None:
    """The output or the error, then every call in the order of the replies."""
    if outcome.error is not None:
        console.print(Text.assemble(("failed: ", "bold red"), plain(outcome.error.error)))
        console.print(Text.assemble("  ", plain(outcome.error.detail or ""), f" [{outcome.error.code}]"))
    else:
        output = _output(outcome, agent)
        shown = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
        console.print(plain(shown))
    console.print()
    if outcome.calls:
        console.print(calls_table(outcome))
    usage = outcome.usage
    console.print(
        f"{outcome.status.value}: {outcome.steps} steps, {usage.requests} model requests,"
        f" {usage.input_tokens} + {usage.output_tokens} tokens, session {outcome.session_id}",
        style="dim",
        markup=False,
    )


def calls_table(outcome: RunOutcome[Any]) -> Table:
    """One row per call: what was asked for, what ran, and what the model was told."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("call", "policy", "bodies", "answer", "result"):
        table.add_column(name, overflow="fold", no_wrap=name in ("policy", "bodies"))
    for call in outcome.calls:
        table.add_row(
            plain(call.tool_name),
            call.replay,
            str(call.bodies),
            answer_of(call),
            plain(_shortened(json.dumps(call.result, ensure_ascii=False))),
        )
    return table


def answer_of(call: CallReport) -> Text:
    """The call's answer in one word."""
    if call.outcome is None:
        return Text("none yet", style="yellow")
    word = call.reason.value if call.reason else call.outcome.value
    return Text(word, style="green" if call.outcome is Outcome.RETURNED else "yellow")


def _shortened(text: str) -> str:
    return text if len(text) <= _RESULT_WIDTH else text[: _RESULT_WIDTH - 1] + "…"
