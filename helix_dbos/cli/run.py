"""`helix-dbos run`: one turn from the command line, carried by this process."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from helix_dbos.cli.console import print_json, reported, to_stderr, to_stdout
from helix_dbos.cli.logs import configure_logging
from helix_dbos.cli.outcome import outcome_json, print_outcome
from helix_dbos.cli.reach import check_reachable
from helix_dbos.cli.signals import run_interruptibly
from helix_dbos.cli.target import load_target
from helix_dbos.core.states import RunStatus
from helix_dbos.errors import RequestError
from helix_dbos.helix import Helix
from helix_dbos.run import Run, RunOutcome

__all__ = ["run"]


def run(
    target: Annotated[str, typer.Argument(help="The app, as module:attribute.")],
    message: Annotated[str, typer.Argument(help="The user's message.")],
    agent: Annotated[
        str | None, typer.Option(help="The agent; needed when the app has several.", show_default=False)
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="The conversation; a new one when omitted.", show_default=False)
    ] = None,
    request_key: Annotated[
        str | None,
        typer.Option(help="The same key on a session never starts a second run.", show_default=False),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Whose session it is.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Execute one turn and print its output and every call it made.

    Exit code 0 when the run completed, 1 otherwise. Without a database URL the embedded database
    is used. An interrupted run is not lost: any process of the app brings it to its end.
    """
    with reported():
        configure_logging("WARNING")
        helix = load_target(target)
        name = agent or _only_agent(helix)
        if helix.settings.database_url is not None:
            check_reachable(helix.settings.database_url.get_secret_value())
        outcome = run_interruptibly(_turn(helix, name, message, session, request_key, user))
        if as_json:
            print_json(outcome_json(outcome, helix.agents.get(name)))
        else:
            print_outcome(to_stdout(), outcome, helix.agents.get(name))
        if outcome.status is not RunStatus.COMPLETED:
            raise typer.Exit(1)


def _only_agent(helix: Helix) -> str:
    if len(helix.agents.names) != 1:
        raise RequestError(
            "The agent must be named with --agent.", detail=f"known: {', '.join(helix.agents.names)}"
        )
    return helix.agents.names[0]


async def _turn(
    helix: Helix, agent: str, message: str, session: str | None, request_key: str | None, user: str | None
) -> RunOutcome[Any]:
    async with helix:
        started: Run[Any] = await helix.execute(
            agent, message, session_id=session, request_key=request_key, user_id=user
        )
        to_stderr().print(f"run {started.run_id} of session {started.session_id}", style="dim", markup=False)
        try:
            return await started.result()
        except asyncio.CancelledError:
            to_stderr().print("The run is not lost: it goes on in the next process of this app.")
            raise
