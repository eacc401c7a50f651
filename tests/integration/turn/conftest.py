"""Started apps on the test's own database, and the looks at its rows that the tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import SecretStr

from helix_dbos import Agent, Helix, Settings
from helix_dbos.faults import Reach, unreached
from helix_dbos.settings import Role

StartApp = Callable[..., Awaitable[Helix]]


@pytest.fixture
def settings(database_url: str) -> Callable[..., Settings]:
    """Settings of the test's own database with small pools."""

    def make(**more: Any) -> Settings:
        return Settings(**{"database_url": SecretStr(database_url), "pool_size": 4, "dbos_pool_size": 4, **more})

    return make


@pytest.fixture
async def app(settings: Callable[..., Settings]) -> AsyncIterator[StartApp]:
    """Starts an app of these agents; it is stopped when the test ends."""
    async with AsyncExitStack() as stack:

        async def start(
            *agents: Agent[Any, Any, Any],
            name: str = "helix",
            role: Role = "worker",
            reach: Reach = unreached,
            **more: Any,
        ) -> Helix:
            helix = Helix(agents, name=name, role=role, reach=reach, settings=settings(**more))
            return await stack.enter_async_context(helix)

        yield start
