"""The main function of a worker process of the crash tests."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from helix_dbos import Helix, Settings, process
from tests.fault.witness import Witness
from tests.fault.world import Trap, make_agent, make_reach

if TYPE_CHECKING:
    from tests.fault.processes import Start

__all__ = ["main"]


def main(start: Start, orders: Connection) -> None:
    """Run until SIGTERM or death, or until the test process is gone."""
    logging.basicConfig(level=os.environ.get("HELIX_TEST_LOG", "ERROR"))
    asyncio.run(_work(start, orders))


async def _work(start: Start, orders: Connection) -> None:
    witness = Witness(start.script.witness)
    settings = Settings(
        database_url=SecretStr(start.database_url),
        pool_size=4,
        dbos_pool_size=4,
        **{"sweep_seconds": 0.2, **start.settings},
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.set_exception_handler(lambda _loop, context: witness.saw("loop_error", context=str(context)))
    reach = make_reach(witness, start.script.kill)
    if start.store_format is not None:
        process.STORE_FORMAT = start.store_format
    agents = [make_agent(script, reach) for script in (start.script, *start.also)]
    async with Helix(agents, name=start.app, settings=settings, role=start.role, reach=reach) as helix:
        witness.saw("up", role=start.role)
        _listen(orders, helix, reach)
        if start.message is not None:
            run = await helix.execute(start.script.agent, start.message, session_id=start.session_id)
            witness.saw("accepted", session_id=run.session_id, run_id=run.run_id)
        await stop.wait()
    witness.saw("stopped")


def _listen(orders: Connection, helix: Helix, trap: Trap) -> None:
    """Carry out what the test asks for, side by side, while the loop runs."""
    loop, working = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    async def carry_out(number: int, what: str, arguments: dict[str, Any]) -> None:
        try:
            reply = number, True, await obey(helix, trap, what, arguments)
        except Exception as problem:
            reply = number, False, repr(problem)
        orders.send(reply)

    def readable() -> None:
        try:
            task = loop.create_task(carry_out(*orders.recv()))
        except EOFError:
            os._exit(1)  # the test process is gone, and must leave nothing behind
        working.add(task)
        task.add_done_callback(working.discard)

    loop.add_reader(orders.fileno(), readable)


async def obey(helix: Helix, trap: Trap, what: str, arguments: dict[str, Any]) -> Any:
    """The orders there are."""
    match what:
        case "execute":
            return (await helix.execute(**arguments)).run_id
        case "result":
            outcome = await (await helix.get_run(arguments["run_id"])).result()
            return {"status": outcome.status.value, "output": outcome.output}
        case "carrying":
            return list(helix._process.runtime.live)
        case "draining":
            return helix._process.runtime.draining
        case "arm":
            trap.arm(arguments["kill"])
            return None
        case _:
            raise ValueError(what)
