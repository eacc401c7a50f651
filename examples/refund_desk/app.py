"""The refund desk as an app of your own: the agent of `helix-dbos demo`, with a model you choose.

    helix-dbos run examples.refund_desk.app:helix "Order 7 arrived broken: refund 49.90, and e-mail me."

REFUND_DESK_MODEL names a model, for example openai:gpt-5; without it a script plays the clerk.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from helix_dbos import Helix, Settings
from helix_dbos.cli.demo.desk import Desk, refund_desk
from helix_dbos.cli.demo.script import scripted_clerk
from helix_dbos.cli.demo.shop import open_shop

settings = Settings()  # from HELIX_* variables; without a database URL the embedded database is used


@asynccontextmanager
async def open_desk() -> AsyncGenerator[Desk]:
    """What the tools work with, opened once per process and closed when it stops."""
    async with open_shop(settings, "refund_desk") as shop:
        yield Desk(shop)


helix = Helix(
    [refund_desk(os.environ.get("REFUND_DESK_MODEL") or scripted_clerk(), open_desk)],
    name="refund-desk",
    settings=settings,
)
