"""The table of commands."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from helix_dbos.cli.demo.command import demo
from helix_dbos.cli.doctor.command import doctor
from helix_dbos.cli.migrate import migrate
from helix_dbos.cli.run import run
from helix_dbos.cli.worker import worker

__all__ = ["app"]

app = typer.Typer(
    name="helix-dbos",
    help="A durable agent runtime on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    # Local variables hold database URLs and messages.
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"helix-dbos {importlib.metadata.version('helix-dbos')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A durable agent runtime on Postgres. Settings are read from `HELIX_*` variables."""


for command in (demo, run, worker, migrate, doctor):
    app.command()(command)
