"""One small service through the public surface only: everything an author declares, used together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import BaseModel

from helix_dbos import (
    Agent,
    Outcome,
    Reason,
    RunContext,
    RunInfo,
    RunStatus,
    ToolContext,
    ToolError,
    UsageLimits,
    tool,
)
from helix_dbos.testing import ScriptedModel, call, calls, finish, turns
from tests.integration.turn.started import small_settings, started, turn


class Desk(BaseModel):
    refunded: list[int] = []
    language: str = "en"


class Answer(BaseModel):
    text: str
    refunded: int = 0


@dataclass
class Shop:
    name: str
    paid: dict[int, int]
    open: bool = True


@tool
async def refund(ctx: ToolContext[Shop, Desk], order: int) -> int:
    """Refund an order.

    Args:
        order: Its number.
    """
    if order not in ctx.deps.paid:
        raise ToolError(f"There is no order {order}.")
    assert ctx.deps.open
    assert ctx.idempotency_key == f"{ctx.session_id}:{ctx.dispatch_id}"
    ctx.state.refunded.append(order)
    return ctx.deps.paid[order]


@tool(replay="safe")
def set_language(ctx: ToolContext[Shop, Desk], language: str) -> str:
    """Speak another language from now on."""
    ctx.state.language = language
    return language


def instructions(context: RunContext[Shop, Desk]) -> str:
    return f"You serve {context.user_id} of {context.deps.name} in {context.state.language}."


async def test_a_refund_desk(database_url: str) -> None:
    closed: list[str] = []

    @asynccontextmanager
    async def shop(info: RunInfo) -> AsyncIterator[Shop]:
        made = Shop(str(info.metadata["shop"]), {7: 350, 8: 120})
        yield made
        made.open = False
        closed.append(info.run_id)

    told: list[str] = []
    script = turns(
        [
            calls(
                call("refund", {"order": 7}),
                call("refund", {"order": 9}),
                call("set_language", {"language": "de"}),
            ),
            finish({"text": "Erledigt.", "refunded": 350}),
        ],
        [call("refund", {"order": 8}), finish({"text": "Auch erledigt.", "refunded": 120})],
    )
    desk = Agent(
        name="refund-desk",
        model=ScriptedModel(script, on_request=lambda request: told.append(request.instructions)),
        instructions=instructions,
        tools=[refund, set_language],
        deps=shop,
        state=Desk,
        output_type=Answer,
        usage_limits=UsageLimits(requests=5),
        max_steps=10,
    )
    async with started([desk], small_settings(database_url), name="shop") as helix:
        first = await turn(helix, desk, session_id="s", user_id="u", metadata={"shop": "Corner"})
        assert first.status is RunStatus.COMPLETED
        assert first.unwrap() == Answer(text="Erledigt.", refunded=350)
        assert [
            (each.tool_name, each.outcome, each.reason, each.result, each.bodies) for each in first.calls[:3]
        ] == [
            ("refund", Outcome.RETURNED, None, 350, 1),
            ("refund", Outcome.RAISED, Reason.TOOL_ERROR, "There is no order 9.", 1),
            ("set_language", Outcome.RETURNED, None, "de", 1),
        ]
        second = await turn(helix, "refund-desk", "And order 8?", session_id="s", user_id="u")
        assert second.unwrap() == Answer(text="Auch erledigt.", refunded=120)
        found = await helix.get_run(first.run_id)
        assert (await found.result(timeout=1)).unwrap() == first.unwrap()
        assert second.usage.requests == 2
    assert told == [
        "You serve u of Corner in en.",
        "You serve u of Corner in de.",
        "You serve u of Corner in de.",
        "You serve u of Corner in de.",
    ]
    assert closed == [first.run_id, second.run_id]
