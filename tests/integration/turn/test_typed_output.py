"""A typed output: how it is handed over, refused, waited for, and given back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from helix_dbos import Outcome, Reason, RunError, RunStatus, tool
from helix_dbos.core.texts import TEXTS
from helix_dbos.testing import call, calls, finish, say, turns
from tests.integration.turn.conftest import StartApp
from tests.integration.turn.looks import history_shape, scripted
from tests.integration.turn.started import PATIENCE, turn


class Refund(BaseModel):
    order: int
    due: date = date(2030, 1, 1)
    reasons: list[str] = []


@dataclass
class Point:
    x: int
    y: int


async def test_a_finish_call_alone_ends_the_run(app: StartApp, connection: psycopg.Connection) -> None:
    desk, _ = scripted([finish({"order": 7, "due": "2031-02-03"})], output_type=Refund)
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.COMPLETED
    assert outcome.output == Refund(order=7, due=date(2031, 2, 3))
    assert isinstance(outcome.unwrap(), Refund)
    report = outcome.calls[0]
    assert (report.tool_name, report.outcome, report.bodies) == ("__finish__", Outcome.RETURNED, 0)
    stored = connection.execute("SELECT output FROM runs").fetchone()
    assert stored == ({"order": 7, "due": "2031-02-03"},), "what the model handed over, no more"
    assert connection.execute("SELECT kind FROM checkpoints").fetchall() == [("end",)]


OUTPUTS: list[tuple[Any, Any, Any]] = [
    (int, 42, 42),
    (list[int], [1, 2], [1, 2]),
    (list[Point], [{"x": 1, "y": 2}], [Point(1, 2)]),
    (bool, False, False),
    (int | None, None, None),
    (date, "2031-02-03", date(2031, 2, 3)),
    (dict[str, int], {"a": 1}, {"a": 1}),
]


async def test_outputs_that_are_not_objects_come_back_typed(app: StartApp) -> None:
    made = [
        scripted([finish({"value": value})], name=f"agent-{n}", output_type=output_type)
        for n, (output_type, value, _) in enumerate(OUTPUTS)
    ]
    helix = await app(*(agent for agent, _ in made))
    for (agent, told), (_, _, expected) in zip(made, OUTPUTS, strict=True):
        outcome = await turn(helix, agent)
        assert outcome.status is RunStatus.COMPLETED
        assert outcome.output == expected
        assert type(outcome.output) is type(expected)
        assert outcome.unwrap() == expected
        again = await (await helix.get_run(outcome.run_id)).result(timeout=PATIENCE)
        assert again.output == expected
        assert told.last.tools[-1].is_output


async def test_a_dataclass_is_an_object(app: StartApp) -> None:
    desk, _ = scripted([finish({"x": 1, "y": 2})], output_type=Point)
    assert (await turn(await app(desk), desk)).output == Point(1, 2)


async def test_an_invalid_finish_is_told_and_asked_again(app: StartApp) -> None:
    script = [
        finish({"order": "none"}, id="a"),
        finish({"order": 1, "more": 2}, id="b"),
        call("__finish__", "{not json", id="c"),
        finish({"order": 2}, id="d"),
    ]

    class Strict(BaseModel, extra="forbid"):
        order: int

    desk, told = scripted(script, output_type=Strict)
    outcome = await turn(await app(desk), desk)
    assert outcome.output == Strict(order=2)
    assert [report.reason for report in outcome.calls] == [Reason.INVALID_ARGUMENTS] * 3 + [None]
    for each in "abc":
        text = told.answer(each).content
        assert isinstance(text, str)
        assert text.startswith(TEXTS[Reason.INVALID_ARGUMENTS])
    assert "order: " in str(told.answer("a").content)


async def test_a_finish_beside_other_calls_waits_for_them(
    app: StartApp, connection: psycopg.Connection
) -> None:
    witness: list[str] = []

    @tool
    async def write(n: int) -> str:
        await asyncio.sleep(0.02)
        (status,) = connection.execute("SELECT status FROM runs").fetchone() or ("none",)
        witness.append(f"write {n} while {status}")
        if n == 2:
            raise OSError("down")
        return "written"

    asked = calls(
        call("write", {"n": 1}), finish({"value": 5}), call("write", {"n": 2}), call("nope", id="nope")
    )
    desk, told = scripted([asked], output_type=int, tools=[write])
    outcome = await turn(await app(desk), desk)
    assert outcome.output == 5
    assert sorted(witness) == ["write 1 while running", "write 2 while running"]
    assert len(told) == 1, "a failed sibling does not ask again"
    assert [report.outcome for report in outcome.calls] == [
        Outcome.RETURNED,
        Outcome.RETURNED,
        Outcome.RAISED,
        Outcome.NOT_EXECUTED,
    ]
    (late,) = connection.execute(
        "SELECT (SELECT max(created_at) FROM answers) = f.created_at FROM answers f JOIN calls c"
        " USING (dispatch_id) WHERE c.tool_name = '__finish__'"
    ).fetchone() or (None,)
    assert late is True, "the finish is answered last"
    assert outcome.pending == ()


async def test_an_invalid_finish_beside_other_calls_does_not_end_the_run(app: StartApp) -> None:
    @tool
    async def write() -> str:
        return "written"

    script = [calls(finish({"value": "x"}, id="f"), call("write", id="w")), finish({"value": 6})]
    desk, told = scripted(script, output_type=int, tools=[write])
    outcome = await turn(await app(desk), desk)
    assert outcome.output == 6
    assert told.answer("f").is_error
    assert told.answer("w").content == "written"


@pytest.mark.parametrize("beside", [True, False], ids=["beside_a_body", "alone"])
async def test_of_two_finishes_in_one_reply_the_first_counts(app: StartApp, beside: bool) -> None:
    @tool
    async def write() -> str:
        return "written"

    both = [finish({"value": 1}, id="first"), finish({"value": 2}, id="second")]
    asked = calls(*both, *([call("write", id="w")] if beside else []))
    script = turns([asked], [finish({"value": 3}, id="next")])
    desk, told = scripted(script, output_type=int, tools=[write])
    helix = await app(desk)
    outcome = await turn(helix, desk, session_id="s")
    assert outcome.error is None
    assert outcome.output == 1
    assert outcome.pending == ()
    by_id = {report.tool_call_id: report for report in outcome.calls}
    assert by_id["first"].outcome is Outcome.RETURNED
    assert by_id["second"].outcome is Outcome.NOT_EXECUTED
    assert (await turn(helix, desk, session_id="s")).output == 3
    assert told.answer("second").is_error


async def test_text_where_an_output_is_due_is_noticed_and_asked_again(app: StartApp) -> None:
    script = [say("The answer is 5."), say("Really, 5."), finish({"value": 5})]
    desk, told = scripted(script, output_type=int)
    outcome = await turn(await app(desk), desk)
    assert outcome.output == 5
    assert outcome.steps == 3
    assert history_shape(told.last) == [
        "user:go",
        "assistant:The answer is 5.",
        "notice",
        "assistant:Really, 5.",
        "notice",
    ]


async def test_the_history_after_a_typed_turn_is_paired(app: StartApp) -> None:
    script = turns([finish({"value": 1}, id="f")], [finish({"value": 2}, id="f")])
    desk, told = scripted(script, output_type=int)
    helix = await app(desk)
    assert (await turn(helix, desk, "one", session_id="s")).output == 1
    assert (await turn(helix, desk, "two", session_id="s")).output == 2
    assert history_shape(told.last) == ["user:one", "calls:f", "answers:f", "user:two"]


async def test_unwrap_raises_the_code_of_a_failed_run(app: StartApp) -> None:
    desk, _ = scripted([say("5")], output_type=int, max_steps=1)
    outcome = await turn(await app(desk), desk)
    assert outcome.status is RunStatus.FAILED
    assert outcome.output is None
    with pytest.raises(RunError) as raised:
        outcome.unwrap()
    assert raised.value.code == "max_steps_exceeded"


async def test_unwrap_of_an_open_run_says_so(app: StartApp) -> None:
    released = asyncio.Event()

    async def reply(_request: object) -> str:
        await released.wait()
        return "done"

    desk, _ = scripted(reply)
    run = await (await app(desk)).execute(desk, "go")
    try:
        with pytest.raises(RunError) as raised:
            (await run.outcome()).unwrap()
        assert raised.value.code == "run_not_completed"
    finally:
        released.set()
    assert (await run.result(timeout=PATIENCE)).unwrap() == "done"
