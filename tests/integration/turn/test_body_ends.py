"""Every way in which a body can end, and what the model, the outcome and the rows say of it."""

from __future__ import annotations

import asyncio
import threading
from datetime import date
from typing import Any

import psycopg
import pytest

from helix_dbos import Outcome, Reason, RunStatus, ToolContext, ToolError, tool
from helix_dbos.core.texts import TEXTS
from helix_dbos.testing import call, calls, say
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import everything_stored, scripted
from tests.integration.turn.started import PATIENCE, turn
from tests.support.waiting import poll_until

SECRET = "sk-live-7f3a9"

VALUES: list[tuple[object, Any]] = [
    (None, None),
    (True, True),
    (0, 0),
    (-1.5, -1.5),
    ("", ""),
    ("grüße 🙂 \u2028", "grüße 🙂 \u2028"),
    ([], []),
    ([1, [2, {"a": None}]], [1, [2, {"a": None}]]),
    ({"a": {"b": [False]}}, {"a": {"b": [False]}}),
    ((1, 2), [1, 2]),
    (date(2031, 2, 3), "2031-02-03"),
    (2**70, 2**70),
]


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_returned_values_of_every_json_kind(app: StartApp, sync: bool) -> None:
    def plain(n: int) -> object:
        return VALUES[n][0]

    async def coroutine(n: int) -> object:
        return VALUES[n][0]

    give = tool(name="give")(plain if sync else coroutine)
    asked = calls(*(call("give", {"n": n}, id=f"c{n}") for n in range(len(VALUES))))
    desk, told = scripted([asked, say("done")], tools=[give])
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED
    for n, (_, expected) in enumerate(VALUES):
        report = outcome.calls[n]
        assert (report.outcome, report.reason, report.bodies) == (Outcome.RETURNED, None, 1)
        assert report.result == expected
        assert type(report.result) is type(expected)
        assert told.answer(f"c{n}").content == expected
        assert not told.answer(f"c{n}").is_error


async def test_a_tool_errors_text_reaches_the_model_and_the_outcome(app: StartApp) -> None:
    @tool
    def refuse(text: str) -> None:
        raise ToolError(text)

    texts = ["The order is closed.", "", "nul\x00 and \ud800 surrogate", "x" * 20_000]
    asked = calls(*(call("refuse", {"text": text}, id=f"c{n}") for n, text in enumerate(texts)))
    clean = ["The order is closed.", TEXTS[Reason.TOOL_ERROR], "nul\ufffd and \ufffd surrogate", "x" * 8192]
    desk, told = scripted([asked, say("done")], tools=[refuse])
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED
    for n, text in enumerate(clean):
        report = outcome.calls[n]
        assert (report.outcome, report.reason) == (Outcome.RAISED, Reason.TOOL_ERROR)
        assert report.result == told.answer(f"c{n}").content == text
        assert told.answer(f"c{n}").is_error


async def test_a_tool_error_with_a_nul_made_in_the_body(app: StartApp) -> None:
    @tool
    async def refuse() -> None:
        raise ToolError("bad\x00byte \udfff")

    desk, told = scripted([call("refuse", id="c"), say("done")], tools=[refuse])
    outcome = await turn(await app(desk), desk)
    assert outcome.calls[0].result == told.answer("c").content == "bad\ufffdbyte \ufffd"


class _Custom(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even the text fails")


def _wrapped() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as cause:
        raise ValueError(f"no {SECRET}") from cause


def _group() -> None:
    raise ExceptionGroup(SECRET, [ToolError("not the model's"), OSError(SECRET)])


def _custom() -> None:
    raise _Custom


def _exit() -> None:
    raise SystemExit(SECRET)


def _cancelled() -> None:
    raise asyncio.CancelledError(SECRET)


def _stop_iteration() -> None:
    raise StopIteration(SECRET)


def _timeout() -> None:
    raise TimeoutError(SECRET)


FAILURES = {
    "wrapped": _wrapped,
    "group": _group,
    "custom": _custom,
    "exit": _exit,
    "cancelled": _cancelled,
    "stop_iteration": _stop_iteration,
    "timeout": _timeout,
}


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_other_exceptions_say_nothing_and_kill_nothing(
    app: StartApp, connection: psycopg.Connection, sync: bool
) -> None:
    def plain(how: str) -> None:
        FAILURES[how]()

    async def coroutine(how: str) -> None:
        FAILURES[how]()

    fail = tool(name="fail", replay="safe")(plain if sync else coroutine)
    asked = calls(*(call("fail", {"how": how}, id=how) for how in FAILURES))
    desk, told = scripted([asked, say("done")], tools=[fail])
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED
    for report in outcome.calls:
        assert (report.outcome, report.reason, report.bodies) == (Outcome.RAISED, Reason.TOOL_FAILED, 1)
        assert report.result == told.answer(report.tool_call_id).content == TEXTS[Reason.TOOL_FAILED]
    stored = everything_stored(connection)
    assert "tool_failed" in stored, "the look sees the answers"
    assert SECRET not in stored


async def test_an_async_timeout_of_a_safe_tool(app: StartApp) -> None:
    ends: list[str] = []

    @tool(replay="safe", timeout_seconds=0.05)
    async def slow(ctx: ToolContext) -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ends.append(f"cancelled, abort {ctx.abort.is_set()}")
            raise
        return "too late"

    desk, told = scripted([call("slow", id="c"), say("done")], tools=[slow])
    outcome = await turn(await app(desk), desk)
    report = outcome.calls[0]
    assert (report.outcome, report.reason, report.bodies) == (Outcome.RAISED, Reason.TIMED_OUT, 1)
    assert told.answer("c").content == TEXTS[Reason.TIMED_OUT]
    assert ends == ["cancelled, abort True"]
    assert outcome.status is RunStatus.COMPLETED


async def test_an_unsafe_timeout_is_doubt_and_spreads_to_the_calls_behind(app: StartApp) -> None:
    bodies: list[str] = []

    @tool(timeout_seconds=0.05, concurrency_group="g")
    async def charge(n: int) -> str:
        bodies.append(f"charge {n}")
        await asyncio.sleep(PATIENCE)
        return "charged"

    @tool(replay="safe", concurrency_group="g")
    async def notify(n: int) -> str:
        bodies.append(f"notify {n}")
        return "notified"

    @tool(replay="safe")
    async def free(n: int) -> str:
        bodies.append(f"free {n}")
        return "free"

    asked = calls(
        call("notify", {"n": 0}, id="ahead"),
        call("charge", {"n": 1}, id="late"),
        call("free", {"n": 2}, id="beside"),
        call("notify", {"n": 3}, id="behind"),
        call("charge", {"n": 4}, id="further"),
    )
    desk, told = scripted([asked, say("done")], tools=[charge, notify, free])
    outcome = await turn(await app(desk), desk)
    by_id = {report.tool_call_id: report for report in outcome.calls}
    assert by_id["ahead"].outcome is Outcome.RETURNED
    assert by_id["beside"].outcome is Outcome.RETURNED
    for doubtful, started in (("late", 1), ("behind", 0), ("further", 0)):
        report = by_id[doubtful]
        assert (report.outcome, report.reason) == (Outcome.NOT_EXECUTED, Reason.OUTCOME_UNKNOWN)
        assert report.bodies == started
        assert told.answer(doubtful).content == TEXTS[Reason.OUTCOME_UNKNOWN]
        assert told.answer(doubtful).is_error
    assert sorted(bodies) == ["charge 1", "free 2", "notify 0"]


async def test_a_safe_timeout_does_not_spread(app: StartApp) -> None:
    @tool(replay="safe", timeout_seconds=0.05, sequential=True)
    async def step(n: int) -> int:
        await asyncio.sleep(PATIENCE if n == 1 else 0)
        return n

    desk, _ = scripted([calls(call("step", {"n": 1}), call("step", {"n": 2})), say("done")], tools=[step])
    outcome = await turn(await app(desk), desk)
    assert [report.reason for report in outcome.calls] == [Reason.TIMED_OUT, None]


@pytest.mark.parametrize("replay", ["safe", "unsafe"])
async def test_a_sync_tools_thread_goes_on_and_its_late_result_is_refused(
    app: StartApp, connection: psycopg.Connection, replay: Any
) -> None:
    release, aborted, ended = threading.Event(), threading.Event(), threading.Event()

    @tool(replay=replay, timeout_seconds=0.05)
    def slow(ctx: ToolContext) -> str:
        if ctx.abort.wait_sync(PATIENCE):
            aborted.set()
        release.wait(PATIENCE)
        ended.set()
        return "late result"

    desk, _ = scripted([call("slow", id="c"), say("done")], tools=[slow])
    try:
        outcome = await turn(await app(desk), desk)
        assert aborted.wait(PATIENCE), "the body was asked to give up"
        assert not ended.is_set(), "the turn did not wait for the thread"
    finally:
        release.set()
    poll_until(ended.is_set)
    assert outcome.status is RunStatus.COMPLETED
    expected = Reason.TIMED_OUT if replay == "safe" else Reason.OUTCOME_UNKNOWN
    assert outcome.calls[0].reason is expected
    assert connection.execute("SELECT count(*) FROM answers").fetchone() == (1,)
    assert "late result" not in everything_stored(connection)


async def test_a_tool_that_swallows_its_cancellation_does_not_hang_the_turn(app: StartApp) -> None:
    released = asyncio.Event()
    swallowed: list[str] = []

    @tool(timeout_seconds=0.05)
    async def stubborn() -> str:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                swallowed.append("swallowed")
        return "late result"

    desk, told = scripted([call("stubborn", id="c"), say("done")], tools=[stubborn])
    helix = await app(desk)
    try:
        outcome = await turn(helix, desk)
    finally:
        released.set()
    assert swallowed
    assert outcome.status is RunStatus.COMPLETED
    assert outcome.calls[0].reason is Reason.OUTCOME_UNKNOWN
    assert told.answer("c").content == TEXTS[Reason.OUTCOME_UNKNOWN]


async def test_a_failing_call_leaves_its_siblings_alone(app: StartApp) -> None:
    both = asyncio.Barrier(2)

    @tool
    async def good() -> str:
        await asyncio.wait_for(both.wait(), PATIENCE)
        return "good"

    @tool
    async def bad() -> str:
        await asyncio.wait_for(both.wait(), PATIENCE)
        raise OSError("down")

    desk, _ = scripted([calls(call("bad"), call("good")), say("done")], tools=[good, bad])
    outcome = await turn(await app(desk), desk)
    assert [report.reason for report in outcome.calls] == [Reason.TOOL_FAILED, None]
    assert outcome.status is RunStatus.COMPLETED
