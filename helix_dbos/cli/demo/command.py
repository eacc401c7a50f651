"""The command `helix-dbos demo`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from helix_dbos.cli.console import load_settings, reported, to_stderr, to_stdout
from helix_dbos.cli.demo.place import demo_place
from helix_dbos.cli.demo.play import play
from helix_dbos.cli.demo.report import show_event, show_facts, show_opening, show_promises
from helix_dbos.cli.demo.verdict import judge
from helix_dbos.cli.demo.workers import worker_processes
from helix_dbos.cli.logs import configure_logging
from helix_dbos.cli.signals import run_interruptibly, terminated_as_interrupted
from helix_dbos.models.resolve import resolve_model

__all__ = ["demo"]


def demo(
    model: Annotated[
        str | None,
        typer.Option(
            help="A real model, such as openai:gpt-5; needs its key. Offline when omitted.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave database, witness and logs to look at.")
    ] = False,
) -> None:
    """Kill a worker in the middle of a refund and watch another one take over.

    Plays in a throw-away embedded database; with HELIX_DATABASE_URL in three schemas of its own,
    dropped at the end. Exit code 1 when a promise was broken.
    """
    with reported(), terminated_as_interrupted():
        configure_logging("ERROR")
        settings = load_settings()
        if model is not None:
            resolve_model(model)
        console, started = to_stdout(), time.monotonic()
        with demo_place(settings, model, keep=keep) as place:
            show_opening(console, place.described, model)
            with worker_processes(place.stage, place.folder) as workers:
                facts = run_interruptibly(
                    play(place, workers, lambda at, event, detail: show_event(console, at, event, detail))
                )
            promises = judge(facts, scripted=model is None)
            show_facts(console, facts)
            show_promises(console, promises)
        console.print(f"{time.monotonic() - started:.1f} s in all", style="dim")
        if place.left:
            to_stderr().print(f"kept: {place.left}", markup=False)
        if not all(promise.kept for promise in promises):
            raise typer.Exit(1)
