"""`helix-dbos worker`: carry the turns of an app until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import Annotated, Literal

import typer

from helix_dbos.cli.console import reported
from helix_dbos.cli.logs import configure_logging
from helix_dbos.cli.reach import check_reachable
from helix_dbos.cli.signals import on_stop_signal
from helix_dbos.cli.target import load_target
from helix_dbos.errors import RequestError
from helix_dbos.helix import Helix
from helix_dbos.process import TOOL_THREADS
from helix_dbos.source import require_url

__all__ = ["worker"]

logger = logging.getLogger(__name__)

LogLevel = Literal["debug", "info", "warning", "error"]


def worker(
    target: Annotated[str, typer.Argument(help="The app, as module:attribute.")],
    drain_seconds: Annotated[
        float | None,
        typer.Option(min=0, max=600, help="How long bodies may go on after SIGTERM.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Turns carried at the same time.", show_default=False),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="The least level that is logged.")] = "info",
) -> None:
    """Carry the turns of an app until SIGTERM or SIGINT; then drain and exit with 0.

    Logs are JSON lines on stderr. What is not finished when the drain is over is left to another
    worker; a second signal ends the process at once.
    """
    with reported():
        configure_logging(log_level.upper())
        helix = load_target(target)
        if helix.role != "worker":
            raise RequestError(
                "This app only accepts turns.", code="target_invalid", detail=f"its role is {helix.role!r}"
            )
        check_reachable(require_url(helix.settings, "worker"))
        if drain_seconds is not None:
            helix.settings.drain_seconds = drain_seconds
        if concurrency is not None:
            helix.settings.concurrency = concurrency
        asyncio.run(_carry(helix))
        _leave_stuck_bodies(helix)


async def _carry(helix: Helix) -> None:
    stop = asyncio.Event()
    with on_stop_signal(stop.set):
        async with helix:
            _log("worker_ready", helix, agents=", ".join(helix.agents.names))
            await stop.wait()
            _log("worker_draining", helix, seconds=helix.settings.drain_seconds)
    _log("worker_stopped", helix)


def _leave_stuck_bodies(helix: Helix) -> None:
    """Exit although sync bodies still run: the interpreter would wait for their threads for ever.

    Their calls are somebody else's to decide by now, and their late results have nowhere to go.
    """
    stuck = [thread.name for thread in threading.enumerate() if thread.name.startswith(TOOL_THREADS)]
    if stuck:
        _log("worker_left_bodies", helix, threads=len(stuck))
        logging.shutdown()
        os._exit(0)


def _log(event: str, helix: Helix, **values: object) -> None:
    logger.info(event, extra={"event": event, "app": helix.name, "pid": os.getpid(), **values})
