"""The main function of a worker process of the crash tests."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

from pydantic import SecretStr

from helix_dbos import Helix, Settings, process
from tests.fault.witness import Witness
from tests.fault.world import make_agent, make_reach

if TYPE_CHECKING:
    from tests.fault.processes import Start

__all__ = ["main"]


def main(start: Start) -> None:
    """Run until SIGTERM or death."""
    logging.basicConfig(level=os.environ.get("HELIX_TEST_LOG", "ERROR"))
    asyncio.run(_work(start))


async def _work(start: Start) -> None:
    witness = Witness(start.script.witness)
    settings = Settings(
        database_url=SecretStr(start.database_url),
        pool_size=4,
        dbos_pool_size=4,
        **{"sweep_seconds": 0.2, **start.settings},
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    reach = make_reach(witness, start.script.kill)
    if start.store_format is not None:
        process.STORE_FORMAT = start.store_format
    agents = [make_agent(script) for script in (start.script, *start.also)]
    async with Helix(agents, name=start.app, settings=settings, role=start.role, reach=reach) as helix:
        witness.saw("up", role=start.role)
        if start.message is not None:
            run = await helix.execute(start.script.agent, start.message, session_id=start.session_id)
            witness.saw("accepted", session_id=run.session_id, run_id=run.run_id)
        await stop.wait()
    witness.saw("stopped")
