"""How the performance and its facts are shown: readable without colour, at most 100 columns."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from helix_dbos.cli.console import plain
from helix_dbos.cli.demo.facts import CallFacts, Facts
from helix_dbos.cli.demo.verdict import Promise

__all__ = ["show_event", "show_facts", "show_opening", "show_promises"]


def show_opening(console: Console, described: str, model: str | None) -> None:
    """What is about to happen, and where."""
    console.print(
        "A refund is asked for, and the worker that carries it is killed in the middle.", style="bold"
    )
    console.print(Text.assemble("  database  ", plain(described)))
    console.print(Text.assemble("  model     ", plain(model or "scripted, offline")))
    console.print()


def show_event(console: Console, seconds: float, event: str, detail: str) -> None:
    """One line of the story, as it happens."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", width=7)
    table.add_column(width=34)
    table.add_column(overflow="fold")
    table.add_row(f"{seconds:.2f} s", plain(event), plain(detail))
    console.print(table)


def show_facts(console: Console, facts: Facts) -> None:
    """Every call with its bodies and its answer, who asked the model, and the last word."""
    console.print()
    table = Table(title="Every call of the turn", title_justify="left", box=None, pad_edge=False)
    for name in ("step", "call", "policy", "bodies", "answer", "why"):
        table.add_column(name, overflow="fold", no_wrap=name != "why")
    for call in facts.calls:
        ahead = _ahead(call, facts.calls)
        style = "yellow" if call.reason else "green"
        table.add_row(
            str(call.step_index),
            plain(call.tool_name),
            call.replay,
            _bodies(call),
            Text(call.reason or call.outcome or "none", style=style),
            _why(call, ahead),
        )
    console.print(table)
    console.print(
        "Bodies are what an outside witness saw; 0 proves that the call never started.", style="dim"
    )
    console.print()
    asks = ", ".join(f"step {step} by {process}" for step, process in facts.asked)
    table = Table.grid(padding=(0, 2))
    table.add_row("model asked", plain(asks))
    table.add_row("taken over", f"{facts.took_over_seconds:.2f} s after the kill, B started its first body")
    table.add_row("last word", plain(_said(facts)))
    console.print(table)


def show_promises(console: Console, promises: Sequence[Promise]) -> None:
    """One line per promise, and the sum of them."""
    console.print()
    table = Table.grid(padding=(0, 2))
    for promise in promises:
        mark = Text("✓ kept", style="green") if promise.kept else Text("✗ BROKEN", style="bold red")
        table.add_row(mark, promise.says, Text(promise.because, style="dim"))
    console.print(table)
    broken = sum(not promise.kept for promise in promises)
    console.print()
    if broken:
        console.print(f"{broken} of {len(promises)} promises broken", style="bold red")
    else:
        console.print(f"All {len(promises)} promises kept.", style="bold green")


def _said(facts: Facts) -> str:
    return facts.output if isinstance(facts.output, str) else json.dumps(facts.output)


def _bodies(call: CallFacts) -> str:
    return ", ".join(f"{body.process}{'' if body.finished else ' killed'}" for body in call.seen) or "0"


def _ahead(call: CallFacts, calls: Sequence[CallFacts]) -> CallFacts | None:
    """The nearest call of the same reply that this one had to wait for."""
    before = [other for other in calls if other.step_index == call.step_index][: _place(call, calls)]
    return next((other for other in reversed(before) if _one_line(other, call)), None)


def _place(call: CallFacts, calls: Sequence[CallFacts]) -> int:
    return [other for other in calls if other.step_index == call.step_index].index(call)


def _one_line(one: CallFacts, other: CallFacts) -> bool:
    same_group = one.concurrency_group is not None and one.concurrency_group == other.concurrency_group
    return same_group or (one.sequential and other.sequential)


def _why(call: CallFacts, ahead: CallFacts | None) -> str:
    """What recovery decided about the call, in words."""
    processes = {body.process for body in call.seen}
    if call.reason == "outcome_unknown":
        behind = f"behind {ahead.tool_name}, which is in doubt" if ahead else "in doubt"
        return "killed after its effect: never repeated" if call.seen else behind
    if call.cut_off:
        return "safe: run again, same dispatch id"
    if processes == {"B"} and ahead is not None and ahead.cut_off:
        return "never started before: first start"
    return "asked for after the kill" if processes == {"B"} else "answered before the kill"
