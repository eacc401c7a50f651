"""Runs that fail: why, what is left behind, and that the session goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest

from helix_dbos import (
    Agent,
    Helix,
    ModelError,
    ModelReply,
    ModelRequest,
    Reason,
    RunError,
    RunStatus,
    TransientModelError,
    UsageLimits,
    tool,
)
from helix_dbos.core.messages import AssistantContent, ThinkingPart, Usage
from helix_dbos.testing import call, calls, fails_once, say, turns
from helix_dbos.workflows import model_step
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import Told, everything_stored, history_shape, scripted
from tests.integration.turn.started import turn

SECRET = "postgres://user:hunter2@host"
SOME = Usage(requests=1, input_tokens=10, output_tokens=4, cache_read_tokens=2, cache_write_tokens=1)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_step, "RETRY_PAUSES_SECONDS", (0.01, 0.02, 0.03))


@tool
async def echo(n: int) -> int:
    return n


async def _next_turn_works(
    helix: Helix, desk: Agent[Any, Any, Any], told: Told, connection: psycopg.Connection
) -> None:
    """Nothing of the failed run is open, and a new turn sees a well-formed history."""
    unanswered = "SELECT count(*) FROM calls WHERE state <> 'answered'"
    assert connection.execute(unanswered).fetchone() == (0,)
    missing = "SELECT count(*) FROM calls LEFT JOIN answers USING (dispatch_id) WHERE answers.n IS NULL"
    assert connection.execute(missing).fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM runs WHERE ended_at IS NULL").fetchone() == (0,)
    outcome = await turn(helix, desk, "next", session_id="s")
    assert outcome.output == "fine", outcome.error
    shapes = history_shape(told.last)
    assert shapes[-1] == "user:next"
    for place, shape in enumerate(shapes):
        if shape.startswith("calls:"):
            assert shapes[place + 1] == "answers:" + shape.removeprefix("calls:")


FINE = [say("fine")]


async def test_max_steps(app: StartApp, connection: psycopg.Connection) -> None:
    script = turns([call("echo", {"n": n}) for n in range(5)], FINE)
    desk, told = scripted(script, tools=[echo], max_steps=3)
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.status is RunStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.code == "max_steps_exceeded"
    assert outcome.error.detail == "max_steps is 3"
    assert (outcome.steps, len(told)) == (3, 3)
    assert [report.result for report in outcome.calls] == [0, 1, 2], "the last step's calls were answered"
    assert outcome.pending == ()
    await _next_turn_works(helix, desk, told, connection)


async def test_exactly_max_steps_is_enough(app: StartApp) -> None:
    desk, _ = scripted([call("echo", {"n": 1}), say("done")], tools=[echo], max_steps=2)
    assert (await turn(await app(desk), desk)).output == "done"


async def test_usage_is_summed_over_the_steps(app: StartApp) -> None:
    script = [
        calls(call("echo", {"n": 1}), usage=SOME),
        calls(call("nope"), usage=SOME),
        say("x", usage=SOME),
    ]
    desk, _ = scripted(script, tools=[echo])
    outcome = await turn(await app(desk), desk)
    assert outcome.usage == SOME + SOME + SOME
    assert outcome.usage.total_tokens == 42


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        (UsageLimits(input_tokens=15), 2),
        (UsageLimits(output_tokens=4), 2),
        (UsageLimits(total_tokens=27), 2),
        (UsageLimits(requests=2), 2),
        (UsageLimits(requests=1), 1),
    ],
    ids=str,
)
async def test_usage_limits(
    app: StartApp, connection: psycopg.Connection, limits: UsageLimits, asked: int
) -> None:
    script = turns([calls(call("echo", {"n": n}), usage=SOME) for n in range(5)], FINE)
    desk, told = scripted(script, tools=[echo], usage_limits=limits)
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.error is not None
    assert outcome.error.code == "usage_limit_exceeded"
    assert len(told) == asked
    assert outcome.usage.requests == asked
    await _next_turn_works(helix, desk, told, connection)


async def test_a_failure_that_may_pass_is_tried_again(app: StartApp) -> None:
    flaky = TransientModelError("busy")
    script = [fails_once(flaky, call("echo", {"n": 1}), times=3), fails_once(flaky, say("done"), times=3)]
    desk, told = scripted(script, tools=[echo])
    outcome = await turn(await app(desk), desk)
    assert outcome.output == "done"
    assert len(told) == 8, "each step has three more tries of its own"
    assert outcome.steps == 2


async def test_after_three_more_tries_the_run_fails_with_the_code(
    app: StartApp, connection: psycopg.Connection
) -> None:
    busy = TransientModelError("The provider is busy.", code="model_rate_limited", detail="429")
    desk, told = scripted(turns([call("echo", {"n": 1}), busy], FINE), tools=[echo])
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.status is RunStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.code == "model_rate_limited"
    assert outcome.error.error == "The provider is busy."
    assert outcome.error.detail == "429"
    assert len(told) == 1 + 4
    assert outcome.calls[0].result == 1
    await _next_turn_works(helix, desk, told, connection)


async def test_retry_after_is_honoured(app: StartApp) -> None:
    times: list[float] = []

    def reply(_request: ModelRequest) -> Any:
        times.append(time.monotonic())
        return TransientModelError("busy", retry_after_seconds=0.3) if len(times) < 2 else say("done")

    desk, _ = scripted(reply)
    assert (await turn(await app(desk), desk)).output == "done"
    assert times[1] - times[0] >= 0.3


async def test_a_final_model_error_fails_at_once(app: StartApp, connection: psycopg.Connection) -> None:
    final = ModelError("The model refused.", code="model_refused", detail="policy")
    desk, told = scripted(turns([final], FINE))
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.error) == ("model_refused", "The model refused.")
    assert (len(told), outcome.steps, outcome.usage.requests) == (1, 0, 0)
    with pytest.raises(RunError) as raised:
        outcome.unwrap()
    assert raised.value.code == "model_refused"
    await _next_turn_works(helix, desk, told, connection)


class _Empty:
    """Replies without text or calls, `times` times."""

    def __init__(self, times: int) -> None:
        self.times, self.asked = times, 0

    async def request(self, request: ModelRequest) -> ModelReply:
        self.asked += 1
        if self.asked <= self.times:
            return ModelReply(AssistantContent(parts=(ThinkingPart(text="hm"),)))
        return ModelReply(AssistantContent(parts=()) if self.times > 99 else _TEXT)


_TEXT = AssistantContent.model_validate({"parts": [{"kind": "text", "text": "at last"}]})


async def test_an_empty_reply_is_asked_for_again(app: StartApp) -> None:
    model = _Empty(3)
    desk = Agent(name="desk", model=model)
    outcome = await turn(await app(desk), desk)
    assert outcome.output == "at last"
    assert model.asked == 4


async def test_nothing_but_empty_replies_fail_the_run(app: StartApp, connection: psycopg.Connection) -> None:
    model = _Empty(100)
    desk = Agent(name="desk", model=model)
    outcome = await turn(await app(desk), desk, session_id="s")
    assert outcome.error is not None
    assert outcome.error.code == "model_empty_reply"
    assert model.asked == 4
    assert connection.execute("SELECT count(*) FROM messages WHERE kind <> 'user'").fetchone() == (0,)


async def test_a_bug_in_the_model_port_fails_the_run(app: StartApp, connection: psycopg.Connection) -> None:
    desk, told = scripted(turns([call("echo", {"n": 1}), ZeroDivisionError(SECRET)], FINE), tools=[echo])
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.error is not None
    assert outcome.error.code == "run_internal_error"
    assert len(told) == 2, "it is not tried again"
    await _next_turn_works(helix, desk, told, connection)
    assert SECRET not in everything_stored(connection)


async def test_a_port_that_returns_no_reply_fails_the_run(app: StartApp) -> None:
    class Wrong:
        async def request(self, request: ModelRequest) -> Any:
            return None

    desk = Agent(name="desk", model=Wrong())
    outcome = await turn(await app(desk), desk)
    assert outcome.error is not None
    assert outcome.error.code == "run_internal_error"


def _stopping(name: str, where: str, stop: type[BaseException]) -> Agent[Any, Any, Any]:
    """An agent whose code raises what stops a process or a task, at one place."""

    def unless(here: str) -> None:
        if here == where:
            raise stop(SECRET)

    async def later() -> None:
        unless("async_deps")

    def deps(_info: object) -> Any:
        unless("deps")
        return later()

    def instructions(_context: object) -> str:
        unless("instructions")
        return ""

    def reply(request: ModelRequest) -> Any:
        unless("model")
        return say("done") if len(request.history) > 1 else call("stop")

    @tool(name="stop")
    async def body() -> None:
        unless("body")

    return scripted(reply, name=name, instructions=instructions, deps=deps, tools=[body])[0]


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
async def test_users_code_that_tries_to_stop_the_process_fails_like_any_other(
    app: StartApp, record: bool
) -> None:
    places = ["model", "instructions", "deps", "async_deps", "body"]
    cases = [(where, stop) for where in places for stop in (SystemExit, asyncio.CancelledError)]
    agents = [_stopping(f"agent-{n}", *case) for n, case in enumerate(cases)]
    helix = await app(*agents, record_model_steps=record)
    for agent, (where, _) in zip(agents, cases, strict=True):
        outcome = await turn(helix, agent)
        if where == "body":
            assert outcome.output == "done"
            assert outcome.calls[0].reason is Reason.TOOL_FAILED
        else:
            assert outcome.error is not None
            assert outcome.error.code == "run_internal_error"


async def test_instructions_that_raise_fail_the_run(app: StartApp, connection: psycopg.Connection) -> None:
    broken = [True]

    def instructions(_context: Any) -> str:
        if broken[0]:
            raise KeyError(SECRET)
        return "Be brief."

    desk, told = scripted(FINE, instructions=instructions)
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.error is not None
    assert (outcome.error.code, len(told)) == ("run_internal_error", 0)
    broken[0] = False
    await _next_turn_works(helix, desk, told, connection)
    assert told.last.instructions == "Be brief."
    assert SECRET not in everything_stored(connection)


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
async def test_a_dependency_factory_that_raises_fails_the_run(
    app: StartApp, connection: psycopg.Connection, asynchronous: bool
) -> None:
    broken = [True]

    def make(_info: Any) -> Any:
        async def later() -> str:
            if broken[0]:
                raise ConnectionError(SECRET)
            return "deps"

        if not asynchronous and broken[0]:
            raise ConnectionError(SECRET)
        return later()

    desk, told = scripted(FINE, deps=make)
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.error is not None
    assert (outcome.error.code, len(told)) == ("run_internal_error", 0)
    broken[0] = False
    await _next_turn_works(helix, desk, told, connection)
    assert SECRET not in everything_stored(connection)


async def test_a_failed_run_answers_what_it_leaves_open(
    app: StartApp, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure while bodies run: only a bug of ours can cause it, so one is put in."""
    from helix_dbos.workflows import settle

    original = settle.settle_call

    def buggy(*given: Any) -> Any:
        raise RuntimeError(SECRET)

    hang = asyncio.Event()

    @tool(replay="safe")
    async def wait() -> str:
        await hang.wait()
        return "never"

    monkeypatch.setattr(settle, "settle_call", buggy)
    script = turns([calls(call("echo", {"n": 1}), call("wait"), call("nope"))], FINE)
    desk, told = scripted(script, tools=[echo, wait])
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    monkeypatch.setattr(settle, "settle_call", original)
    assert outcome.error is not None
    assert outcome.error.code == "run_internal_error"
    assert [report.reason for report in outcome.calls] == [
        Reason.OUTCOME_UNKNOWN,
        Reason.OUTCOME_UNKNOWN,
        Reason.UNKNOWN_TOOL,
    ]
    await _next_turn_works(helix, desk, told, connection)
    assert SECRET not in everything_stored(connection)
