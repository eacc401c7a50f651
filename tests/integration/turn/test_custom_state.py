"""A session's custom state: set by bodies, committed with their answers, seen by whoever comes next."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from pydantic import BaseModel, Field, model_serializer

from helix_dbos import Outcome, Reason, RunContext, RunStatus, ToolContext, ToolError, tool
from helix_dbos.testing import call, calls, say, turns
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import everything_stored, scripted
from tests.integration.turn.started import PATIENCE, turn


class Hostile(BaseModel):
    armed: bool = False

    @model_serializer(mode="wrap")
    def _explode(self, handler: Any) -> Any:
        if self.armed:
            raise OSError("in the serialiser")
        return handler(self)


class Cart(BaseModel):
    name: str = "empty"
    count: int = 0
    lines: list[dict[str, Any]] = Field(default_factory=list)
    note: str | None = None
    price: float = 0.0
    hostile: Hostile = Field(default_factory=Hostile)


Ctx = ToolContext[None, Cart]


def _stored(connection: psycopg.Connection) -> Any:
    row = connection.execute("SELECT state FROM session_state").fetchone()
    assert row is not None
    return row[0]


async def test_what_a_body_sets_is_committed_with_its_answer_and_seen_afterwards(
    app: StartApp, connection: psycopg.Connection
) -> None:
    seen: list[Any] = []

    @tool
    async def put(ctx: Ctx, name: str) -> str:
        ctx.state.name = name
        ctx.state.count += 1
        seen.append(("before the commit", _stored(connection)))
        return "put"

    @tool
    def look(ctx: Ctx) -> str:
        seen.append(("committed", _stored(connection)))
        return f"{ctx.state.name} {ctx.state.count}"

    def instructions(context: RunContext[None, Cart]) -> str:
        return f"The cart is {context.state.name}."

    script = turns(
        [call("put", {"name": "a"}), call("look"), say("one")],
        [call("look"), call("put", {"name": "b"}), say("two")],
    )
    desk, told = scripted(script, state=Cart, tools=[put, look], instructions=instructions)
    helix = await app(desk)
    first = await turn(helix, desk, session_id="s")
    second = await turn(helix, desk, session_id="s")
    assert [report.result for report in (*first.calls, *second.calls)] == ["put", "a 1", "a 1", "put"]
    assert seen[0] == ("before the commit", {})
    committed = [stored for moment, stored in seen if moment == "committed"]
    assert [(each["name"], each["count"]) for each in committed] == [("a", 1), ("a", 1)]
    assert [request.instructions for request in told] == [
        "The cart is empty.",
        "The cart is a.",
        "The cart is a.",
        "The cart is a.",
        "The cart is a.",
        "The cart is b.",
    ]
    assert (_stored(connection)["name"], _stored(connection)["count"]) == ("b", 2)


async def test_only_bodies_that_return_write(app: StartApp, connection: psycopg.Connection) -> None:
    @tool(replay="safe", timeout_seconds=0.05)
    async def put(ctx: Ctx, how: str) -> object:
        ctx.state.name = f"set by {how}"
        ctx.state.lines.append({"by": how})
        if how == "tool_error":
            raise ToolError("no")
        if how == "exception":
            raise OSError("down")
        if how == "timeout":
            await asyncio.sleep(PATIENCE)
        return object() if how == "not_storable" else "put"

    ways = ["tool_error", "exception", "timeout", "not_storable"]
    desk, _ = scripted(
        [calls(*(call("put", {"how": how}) for how in ways)), say("done")], state=Cart, tools=[put]
    )
    outcome = await turn(await app(desk), desk)
    assert [report.reason for report in outcome.calls] == [
        Reason.TOOL_ERROR,
        Reason.TOOL_FAILED,
        Reason.TIMED_OUT,
        Reason.RESULT_NOT_STORABLE,
    ]
    assert _stored(connection) == {}
    assert "set by" not in everything_stored(connection)


async def test_parallel_bodies_that_set_different_fields_both_land(
    app: StartApp, connection: psycopg.Connection
) -> None:
    both = asyncio.Barrier(3)

    @tool
    async def set_name(ctx: Ctx) -> str:
        await asyncio.wait_for(both.wait(), PATIENCE)
        ctx.state.name = "n"
        return "ok"

    @tool
    async def set_count(ctx: Ctx) -> str:
        await asyncio.wait_for(both.wait(), PATIENCE)
        ctx.state.count = 5
        return "ok"

    @tool
    async def set_nothing(ctx: Ctx) -> str:
        await asyncio.wait_for(both.wait(), PATIENCE)
        return f"{ctx.state.name} {ctx.state.count}"

    step = calls(call("set_name"), call("set_count"), call("set_nothing"))
    desk, _ = scripted([step, step, say("done")], state=Cart, tools=[set_name, set_count, set_nothing])
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED
    stored = _stored(connection)
    assert (stored["name"], stored["count"]) == ("n", 5)
    assert [report.result for report in outcome.calls][2::3] == ["empty 0", "n 5"]


async def test_a_call_behind_another_sees_what_that_one_set(app: StartApp) -> None:
    @tool(concurrency_group="cart")
    async def add(ctx: Ctx, n: int) -> int:
        ctx.state.count += n
        return ctx.state.count

    desk, _ = scripted(
        [calls(*(call("add", {"n": n}) for n in (1, 10, 100))), say("done")], state=Cart, tools=[add]
    )
    outcome = await turn(await app(desk), desk)
    assert [report.result for report in outcome.calls] == [1, 11, 111]


async def test_a_nested_value_changed_in_place_is_noticed(
    app: StartApp, connection: psycopg.Connection
) -> None:
    @tool
    async def add(ctx: Ctx, sku: str) -> int:
        ctx.state.lines.append({"sku": sku, "more": [1]})
        if len(ctx.state.lines) > 1:
            ctx.state.lines[0]["more"].append(2)
        return len(ctx.state.lines)

    desk, _ = scripted(
        [call("add", {"sku": "a"}), call("add", {"sku": "b"}), say("done")], state=Cart, tools=[add]
    )
    outcome = await turn(await app(desk), desk)
    assert [report.result for report in outcome.calls] == [1, 2]
    assert _stored(connection)["lines"] == [{"sku": "a", "more": [1, 2]}, {"sku": "b", "more": [1]}]


async def test_a_body_that_changes_nothing_writes_nothing(
    app: StartApp, connection: psycopg.Connection
) -> None:
    @tool
    async def look(ctx: Ctx) -> int:
        return ctx.state.count

    desk, _ = scripted([call("look"), say("done")], state=Cart, tools=[look])
    await turn(await app(desk), desk)
    assert connection.execute("SELECT state, version FROM session_state").fetchone() == ({}, 0)


async def test_state_that_cannot_be_stored_is_refused_with_the_answer(
    app: StartApp, connection: psycopg.Connection
) -> None:
    @tool
    async def put(ctx: Ctx, what: str) -> str:
        ctx.state.name = "half"
        if what == "nan":
            ctx.state.price = float("nan")
        if what == "object":
            ctx.state.lines = [{"x": object()}]
        if what == "huge":
            ctx.state.note = "x" * 2_000_000
        if what == "wrong_type":
            ctx.state.count = "many"  # type: ignore[assignment]
        if what == "recursive":
            ctx.state.lines.append({"again": ctx.state.lines})
        if what == "hostile":
            ctx.state.hostile.armed = True
        return "put"

    kinds = ["nan", "object", "huge", "wrong_type", "recursive", "hostile"]
    desk, _ = scripted(
        [calls(*(call("put", {"what": what}) for what in kinds)), say("done")], state=Cart, tools=[put]
    )
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED, outcome.error
    for report, what in zip(outcome.calls, kinds, strict=True):
        assert (report.outcome, report.reason) == (Outcome.RAISED, Reason.RESULT_NOT_STORABLE), what
    assert _stored(connection) == {}


async def test_text_in_state_is_cleaned(app: StartApp, connection: psycopg.Connection) -> None:
    @tool
    async def put(ctx: Ctx) -> str:
        ctx.state.note = "a\x00b\ud800"
        return "put"

    @tool
    async def look(ctx: Ctx) -> str | None:
        return ctx.state.note

    desk, _ = scripted([call("put"), call("look"), say("done")], state=Cart, tools=[put, look])
    outcome = await turn(await app(desk), desk)
    assert outcome.calls[1].result == "a\ufffdb\ufffd"
    assert _stored(connection)["note"] == "a\ufffdb\ufffd"


async def test_each_checkpoint_keeps_the_state_of_its_moment(
    app: StartApp, connection: psycopg.Connection
) -> None:
    @tool
    async def add(ctx: Ctx) -> int:
        ctx.state.count += 1
        return ctx.state.count

    desk, _ = scripted([call("add"), call("add"), say("done")], state=Cart, tools=[add])
    await turn(await app(desk), desk)
    rows = connection.execute(
        "SELECT step_index, kind, coalesce((state->>'count')::int, 0) FROM checkpoints"
        " ORDER BY step_index, kind"
    ).fetchall()
    assert rows == [
        (0, "append", 0),
        (0, "step_commit", 1),
        (1, "append", 1),
        (1, "step_commit", 2),
        (2, "end", 2),
    ]


async def test_instructions_cannot_change_the_state(app: StartApp, connection: psycopg.Connection) -> None:
    def instructions(context: RunContext[None, Cart]) -> str:
        context.state.count += 1
        return str(context.state.count)

    desk, told = scripted([call("nope"), say("done")], state=Cart, instructions=instructions)
    await turn(await app(desk), desk)
    assert [request.instructions for request in told] == ["1", "1"]
    assert _stored(connection) == {}


async def test_state_that_a_deploy_made_unreadable_fails_the_run(
    app: StartApp, connection: psycopg.Connection
) -> None:
    desk, told = scripted([say("done")], state=Cart)
    helix = await app(desk)
    await turn(helix, desk, session_id="s")
    connection.execute("""UPDATE session_state SET state = '{"count": "many"}'""")
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.error is not None
    assert outcome.error.code == "framework_state_unreadable"
    assert len(told) == 1
