"""Started apps on the test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from helix_dbos import Agent, Helix
from helix_dbos.faults import Reach, unreached
from helix_dbos.settings import Role
from tests.integration.turn.started import small_settings, started

StartApp = Callable[..., Awaitable[Helix]]


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[StartApp]:
    """Starts an app of the given agents; more keywords are settings. Stopped when the test ends."""
    async with AsyncExitStack() as stack:

        async def start(
            *agents: Agent[Any, Any, Any],
            name: str = "helix",
            role: Role = "worker",
            reach: Reach = unreached,
            **more: Any,
        ) -> Helix:
            settings = small_settings(database_url, **more)
            return await stack.enter_async_context(
                started(agents, settings, name=name, role=role, reach=reach)
            )

        yield start
