"""Conversations through the public surface: history, keys, conflicts, handles, ids."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from helix_dbos import (
    Agent,
    ConflictError,
    FilePart,
    Helix,
    ModelRequest,
    NotFoundError,
    RequestError,
    RunStatus,
    StoreError,
    TextPart,
    ToolContext,
    tool,
)
from helix_dbos.testing import ScriptedModel, call, calls, say, turns
from tests.integration.turn.looks import history_shape, scripted
from tests.integration.turn.started import PATIENCE, small_settings, started, turn

Open = Callable[..., Awaitable[Helix]]


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Open]:
    """Starts an app of the given agents on the test's own database."""
    async with AsyncExitStack() as stack:

        async def start(*agents: Agent[Any, Any, Any], **more: Any) -> Helix:
            return await stack.enter_async_context(started(agents, small_settings(database_url, **more)))

        yield start


@tool
async def echo(n: int) -> int:
    return n


class Gate:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.opened = asyncio.Event(), asyncio.Event()

    async def reply(self, _request: ModelRequest) -> str:
        self.asked.set()
        await self.opened.wait()
        return "done"


async def test_the_history_of_a_conversation_in_exact_order(app: Open) -> None:
    script = turns(
        [calls(call("echo", {"n": 1}, id="a"), call("echo", {"n": 2}, id="b"), text="Two."), say("one")],
        [say("two")],
        [call("echo", {"n": 3}, id="c"), call("nope", id="d"), say("three")],
    )
    desk, told = scripted(script, tools=[echo], instructions="Be brief.")
    helix = await app(desk)
    for message in ("first", "second", "third"):
        outcome = await turn(helix, desk, message, session_id="s")
        assert outcome.session_id == "s"
    assert [len(request.history) for request in told] == [1, 3, 5, 7, 9, 11]
    assert history_shape(told.last) == [
        "user:first",
        "calls:a,b",
        "answers:a,b",
        "assistant:one",
        "user:second",
        "assistant:two",
        "user:third",
        "calls:c",
        "answers:c",
        "calls:d",
        "answers:d",
    ]
    assert [request.step_index for request in told] == list(range(6)), "steps count through the session"
    assert {request.session_id for request in told} == {"s"}
    assert len({request.run_id for request in told}) == 3
    assert told.last.instructions == "Be brief."
    assert [definition.name for definition in told.last.tools] == ["echo"]


async def test_sessions_do_not_see_each_other(app: Open) -> None:
    desk, _ = scripted(lambda request: say(f"{request.session_id} {len(request.history)}"))
    helix = await app(desk)
    names = [f"s-{n}" for n in range(6)]
    for length in (1, 3):
        outcomes = await asyncio.gather(*(turn(helix, desk, session_id=name) for name in names))
        assert [outcome.output for outcome in outcomes] == [f"{name} {length}" for name in names]


async def test_without_a_session_id_each_turn_has_its_own(app: Open) -> None:
    desk, told = scripted([say("hi")])
    helix = await app(desk)
    outcomes = [await turn(helix, desk) for _ in range(2)]
    assert len({outcome.session_id for outcome in outcomes}) == 2
    assert [len(request.history) for request in told] == [1, 1]


async def test_messages_of_parts_and_of_any_text(app: Open) -> None:
    desk, told = scripted([say("ok")])
    helix = await app(desk)
    parts = [
        TextPart(text="look: "),
        FilePart(media_type="image/png", url="https://example.org/a.png"),
        FilePart(media_type="text/plain", data="aGk="),
        TextPart(text="grüße 🙂\u2028\x00\ud800"),
    ]
    assert (await turn(helix, desk, parts, session_id="s")).output == "ok"  # type: ignore[arg-type]
    assert (await turn(helix, desk, "a\x00b\udfff \t\n", session_id="s")).output == "ok"
    first, _, second = told.last.history
    assert first.parts == (*parts[:3], TextPart(text="grüße 🙂\u2028\ufffd\ufffd"))
    assert second.parts == (TextPart(text="a\ufffdb\ufffd \t\n"),)


@pytest.mark.parametrize("message", [[], "x" * 9_000_000], ids=["empty", "huge"])
async def test_messages_that_cannot_be_stored_are_refused(app: Open, message: Any) -> None:
    desk, told = scripted([say("ok")])
    helix = await app(desk)
    with pytest.raises(RequestError):
        await helix.execute(desk, message, session_id="s")
    assert told == []
    assert (await turn(helix, desk, session_id="s")).output == "ok", "nothing was left behind"


async def test_a_large_message_passes(app: Open) -> None:
    desk, told = scripted([say("ok")])
    assert (await turn(await app(desk), desk, "x" * 4_000_000)).output == "ok"
    assert len(told.last.history[0].parts[0].text) == 4_000_000


async def test_a_request_key_returns_the_run_it_made(app: Open) -> None:
    gate = Gate()
    desk, told = scripted(gate.reply)
    helix = await app(desk)
    given: dict[str, Any] = {"session_id": "s", "request_key": "k", "metadata": {"a": [1], "b": None}}
    run = await helix.execute(desk, "go", **given)
    await asyncio.wait_for(gate.asked.wait(), PATIENCE)
    while_open = await helix.execute("desk", "go", **given)
    gate.opened.set()
    await run.result(timeout=PATIENCE)
    afterwards = await helix.execute(desk, "go", **given | {"metadata": {"b": None, "a": [1]}})
    assert {run.run_id, while_open.run_id, afterwards.run_id} == {run.run_id}
    assert (await afterwards.result(timeout=PATIENCE)).output == "done"
    assert len(told) == 1
    for other in ({"message": "else"}, {"metadata": None}):
        with pytest.raises(ConflictError) as refused:
            await helix.execute(desk, **{"message": "go", **given, **other})
        assert refused.value.code == "request_key_reused"
    assert run.run_id in str(refused.value)
    elsewhere = await helix.execute(desk, "go", **given | {"session_id": "t"})
    assert elsewhere.run_id != run.run_id, "keys are per session"
    await elsewhere.result(timeout=PATIENCE)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "queued"])
async def test_concurrent_duplicates_of_a_request_make_one_run(
    app: Open, connection: psycopg.Connection, direct: bool
) -> None:
    bodies: list[str] = []

    @tool
    async def charge(ctx: ToolContext) -> str:
        bodies.append(ctx.dispatch_id)
        return "charged"

    desk, told = scripted([call("charge"), say("done")], tools=[charge])
    helix = await app(desk, direct_start=direct)

    async def once() -> str:
        run = await helix.execute(desk, "go", session_id="s", request_key="k")
        outcome = await run.result(timeout=PATIENCE)
        assert outcome.output == "done"
        return run.run_id

    made = await asyncio.gather(*(once() for _ in range(30)))
    assert len(set(made)) == 1
    assert (len(bodies), len(told)) == (1, 2)
    for table, expected in (("runs", 1), ("requests", 1), ("sessions", 1), ("messages", 3)):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (expected,), table


async def test_concurrent_turns_without_a_key_are_one_run_and_conflicts(app: Open) -> None:
    gate = Gate()
    desk, told = scripted(gate.reply)
    helix = await app(desk)
    tries = await asyncio.gather(
        *(helix.execute(desk, "go", session_id="s") for _ in range(10)), return_exceptions=True
    )
    gate.opened.set()
    kinds = Counter(type(each).__name__ for each in tries)
    assert kinds == {"Run": 1, "ConflictError": 9}
    (run,) = [each for each in tries if not isinstance(each, BaseException)]
    assert (await run.result(timeout=PATIENCE)).output == "done"
    assert len(told) == 1


async def test_a_busy_session_refuses_with_the_stable_code(app: Open) -> None:
    gate = Gate()
    desk, told = scripted(gate.reply)
    helix = await app(desk)
    run = await helix.execute(desk, "go", session_id="s")
    with pytest.raises(ConflictError) as refused:
        await helix.execute(desk, "again", session_id="s")
    assert refused.value.code == "state_concurrency_conflict"
    assert run.run_id in (refused.value.detail or "")
    gate.opened.set()
    await run.result(timeout=PATIENCE)
    assert (await turn(helix, desk, "again", session_id="s")).output == "done"
    assert history_shape(told.last) == ["user:go", "assistant:done", "user:again"]


async def test_a_session_keeps_its_agent_and_its_user(app: Open) -> None:
    desk, _ = scripted([say("desk")])
    other, _ = scripted([say("other")], name="other")
    helix = await app(desk, other)
    assert (await turn(helix, desk, session_id="s", user_id="u-1")).output == "desk"
    with pytest.raises(ConflictError) as refused:
        await helix.execute(other, "go", session_id="s", user_id="u-1")
    assert refused.value.code == "state_agent_mismatch"
    with pytest.raises(ConflictError) as refused:
        await helix.execute(desk, "go", session_id="s", user_id="u-2")
    assert refused.value.code == "state_user_mismatch"
    assert (await turn(helix, desk, session_id="s")).output == "desk", "no user is named"
    assert (await turn(helix, "other", session_id="t")).output == "other"
    assert (await turn(helix, "desk", session_id="s", user_id="u-1")).output == "desk"


BAD_IDS = ["", "x" * 257, "a\x00b", "a\nb", "\ud800", "\u202e"]


@pytest.mark.parametrize("field", ["session_id", "request_key", "user_id"])
async def test_bad_ids_are_refused(app: Open, field: str) -> None:
    desk, told = scripted([say("ok")])
    helix = await app(desk)
    for bad in BAD_IDS:
        with pytest.raises(RequestError):
            await helix.execute(desk, "go", **{"session_id": "s", field: bad})
    assert told == []
    good = "ü" * 256
    assert (await turn(helix, desk, **{"session_id": "s", field: good})).output == "ok"


async def test_a_request_key_needs_a_session(app: Open) -> None:
    desk, _ = scripted([say("ok")])
    helix = await app(desk)
    with pytest.raises(RequestError):
        await helix.execute(desk, "go", request_key="k")


async def test_metadata_is_a_json_object_of_bounded_size(app: Open) -> None:
    seen: list[Any] = []

    @tool
    async def look(ctx: ToolContext) -> None:
        seen.append(ctx.metadata)

    desk, _ = scripted([call("look"), say("ok")], tools=[look])
    helix = await app(desk)
    for bad in ({"x": "y" * 65_536}, {"x": object()}, ["a"], "text", 5):
        with pytest.raises(RequestError):
            await helix.execute(desk, "go", session_id="s", metadata=bad)  # type: ignore[arg-type]
    given = {"tenant": "a\x00", "n": [1, None, {"x": 1.5}], "big": "y" * 60_000}
    await turn(helix, desk, session_id="s", metadata=given)
    await turn(helix, desk, session_id="s")
    await turn(helix, desk, session_id="s", metadata={})
    kept = {**given, "tenant": "a\ufffd"}
    assert seen == [kept, kept, {}], "kept until it is replaced"


async def test_unknown_names(app: Open) -> None:
    desk, _ = scripted([say("ok")])
    stranger, _ = scripted([say("ok")], name="stranger")
    helix = await app(desk)
    for unknown in ("nobody", "", "a\x00", stranger):
        with pytest.raises(NotFoundError) as refused:
            await helix.execute(unknown, "go")
        assert refused.value.code == "agent_unknown"
        assert refused.value.detail == "known: desk"
    for run_id in ("nothing", "", "a\x00b", "\ud800", "x" * 10_000):
        with pytest.raises(NotFoundError) as refused:
            await helix.get_run(run_id)
        assert refused.value.code == "not_found"


async def test_a_handle_can_be_had_again(app: Open) -> None:
    desk, _ = scripted([call("echo", {"n": 1}, id="c"), say("done")], tools=[echo])
    helix = await app(desk)
    first = await turn(helix, desk)
    run = await helix.get_run(first.run_id)
    assert (run.run_id, run.session_id) == (first.run_id, first.session_id)
    assert await run.status() is RunStatus.COMPLETED
    assert await run.outcome() == first
    assert await run.result() == first
    assert await run.result(timeout=0.5) == first


async def test_a_timeout_of_result_leaves_the_run_going(app: Open) -> None:
    gate = Gate()
    desk, _ = scripted(gate.reply)
    run = await (await app(desk)).execute(desk, "go")
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.05)
    assert await run.status() in (RunStatus.QUEUED, RunStatus.RUNNING)
    waiting = [asyncio.create_task(run.result(timeout=PATIENCE)) for _ in range(3)]
    gate.opened.set()
    assert [outcome.output for outcome in await asyncio.gather(*waiting)] == ["done"] * 3


async def test_the_outcome_of_an_open_run_shows_what_is_pending(app: Open) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def slow(n: int) -> int:
        entered.set()
        await release.wait()
        return n

    desk, _ = scripted([calls(call("slow", {"n": 1}), call("nope")), say("done")], tools=[slow])
    run = await (await app(desk)).execute(desk, "go")
    await asyncio.wait_for(entered.wait(), PATIENCE)
    outcome = await run.outcome()
    assert outcome.status is RunStatus.RUNNING
    assert outcome.output is None
    assert [(each.tool_name, each.bodies, each.replay) for each in outcome.pending] == [("slow", 1, "safe")]
    assert outcome.steps == 1
    release.set()
    assert (await run.result(timeout=PATIENCE)).pending == ()


async def test_an_app_that_is_not_started_says_so() -> None:
    desk = Agent(name="desk", model=ScriptedModel([say("ok")]))
    helix = Helix([desk])
    for work in (helix.execute(desk, "go"), helix.get_run("x")):
        with pytest.raises(StoreError) as refused:
            await work
        assert refused.value.code == "app_not_started"


async def test_an_api_process_only_accepts_and_a_worker_carries(
    database_url: str, connection: psycopg.Connection
) -> None:
    desk, told = scripted([say("done")])
    settings = small_settings(database_url)
    async with started([desk], settings, role="api") as helix:
        run = await helix.execute(desk, "go", session_id="s")
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.4)
        assert await run.status() is RunStatus.QUEUED
    assert told == []
    async with started([desk], settings) as helix:
        run = await helix.get_run(run.run_id)
        assert (await run.result(timeout=PATIENCE)).output == "done"
