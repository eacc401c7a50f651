"""The command `helix-dbos doctor`, and how its findings look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, cast

import typer
from pydantic import JsonValue
from rich.console import Console
from rich.table import Table
from rich.text import Text

from helix_dbos.cli.console import load_settings, plain, print_json, reported, to_stdout
from helix_dbos.cli.doctor.examine import examine
from helix_dbos.cli.doctor.finding import Finding, Level
from helix_dbos.cli.logs import configure_logging
from helix_dbos.cli.target import load_target

__all__ = ["doctor"]

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Use the settings and the name of this app (module:attribute).", show_default=False
        ),
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Start the embedded server, if it does not run, to look inside.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at the database, the schemas, the executors and the runs; change nothing.

    Every line says ok, warn or fail, and what to do. Exit code 1 when something fails.
    """
    with reported():
        configure_logging("ERROR")
        helix = load_target(target) if target else None
        settings = helix.settings if helix else load_settings()
        found = asyncio.run(examine(settings, helix.name if helix else None, start=start))
        healthy = all(finding.level is not Level.FAIL for finding in found)
        if as_json:
            print_json({"healthy": healthy, "findings": cast("JsonValue", [_json(each) for each in found])})
        else:
            _print(to_stdout(), found)
        if not healthy:
            raise typer.Exit(1)


def _json(finding: Finding) -> dict[str, JsonValue]:
    return {
        "name": finding.name,
        "level": finding.level.value,
        "found": finding.found,
        "advice": finding.advice,
        "data": finding.data,
    }


def _print(console: Console, found: Sequence[Finding]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        text = plain(finding.found)
        for line in finding.details:
            text.append_text(Text("\n- ") + plain(line))
        if finding.advice:
            text.append_text(Text("\n-> ", style="bold") + plain(finding.advice))
        table.add_row(Text(finding.level.value, style=_STYLES[finding.level]), finding.name, text)
    console.print(table)
    console.print()
    console.print(_summary(found))


def _summary(found: Sequence[Finding]) -> str:
    failing = sum(finding.level is Level.FAIL for finding in found)
    warning = sum(finding.level is Level.WARN for finding in found)
    if failing:
        return f"{failing} failing, {warning} to look at"
    return f"healthy, {warning} to look at" if warning else "healthy"
