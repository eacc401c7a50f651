"""Section 6 and the save: what one reply of a model leads to."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helix_dbos.core.messages import AssistantContent, CallPart, TextPart, ThinkingPart
from helix_dbos.core.reply import Empty, FinalOutput, FinalText, MissingOutput, SaveStep, plan_reply
from helix_dbos.core.states import FINISH_TOOL, CallKind, CallState, Origin, Outcome, Reason, Replay
from tests.unit.core.core_builders import a_tool

FINISH_OK = {"answer": 1}


def check_output(arguments) -> str | None:
    return None if arguments == FINISH_OK else "answer: missing"


def ask(tool: str, arguments=None, call_id: str = "x") -> CallPart:
    return CallPart(tool_call_id=call_id, tool_name=tool, arguments={} if arguments is None else arguments)


def finish(arguments=None) -> CallPart:
    return ask(FINISH_TOOL, FINISH_OK if arguments is None else arguments, "fin")


def plan(*parts, tools=(), taken=(), typed=False):
    """The plan of a reply; texts may be written as plain strings."""
    content = AssistantContent(parts=tuple(TextPart(text=p) if isinstance(p, str) else p for p in parts))
    ids = count()
    return plan_reply(
        content,
        {tool.name: tool for tool in tools},
        taken_ids=taken,
        mint=lambda: f"d{next(ids)}",
        check_output=check_output if typed else None,
    )


def test_text_alone_ends_the_run():
    ended = plan("Hello", " there")
    assert isinstance(ended, FinalText)
    assert ended.content.text == "Hello there"


def test_text_alone_where_a_typed_output_is_due_is_missing_its_output():
    missing = plan("Hello", typed=True)
    assert isinstance(missing, MissingOutput)
    assert missing.content.text == "Hello"


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("parts", [(), ("",), (" \n",), (ThinkingPart(text="hm"),)])
def test_neither_text_nor_calls_is_no_reply(parts, typed):
    assert plan(*parts, typed=typed) == Empty()


def test_a_valid_finish_alone_is_the_output():
    ended = plan("Here:", finish(), typed=True)
    assert isinstance(ended, FinalOutput)
    assert ended.call.kind is CallKind.FINISH
    assert ended.call.arguments == FINISH_OK
    assert ended.content.text == "Here:"


@pytest.mark.parametrize("arguments", [{"answer": 2}, "not json"])
def test_an_invalid_finish_alone_is_answered_as_an_error_and_the_run_goes_on(arguments):
    step = plan(finish(arguments), typed=True)
    assert isinstance(step, SaveStep)
    assert step.settled
    assert not step.starts_bodies
    assert step.calls[0].answer.reason is Reason.INVALID_ARGUMENTS


def test_a_finish_beside_other_calls_waits_for_them():
    step = plan(finish(), ask("t"), tools=[a_tool()], typed=True)
    waiting, other = step.calls
    assert (waiting.kind, waiting.state, waiting.answer) == (CallKind.FINISH, CallState.WAITING, None)
    assert step.starting == {other.dispatch_id}
    assert not step.settled


def test_an_invalid_finish_beside_other_calls_is_answered_at_once():
    step = plan(ask("t"), finish({"answer": 2}), tools=[a_tool()], typed=True)
    assert [call.answer and call.answer.reason for call in step.calls] == [None, Reason.INVALID_ARGUMENTS]


def test_without_an_output_type_finish_is_an_unknown_tool():
    (call,) = plan(finish()).calls
    assert call.answer.reason is Reason.UNKNOWN_TOOL


def test_an_unknown_tool_is_answered_as_an_error_that_names_the_tools_there_are():
    step = plan(ask("nope"), tools=[a_tool("b"), a_tool("a")])
    (call,) = step.calls
    assert call.state is CallState.ANSWERED
    assert (call.answer.outcome, call.answer.reason) == (Outcome.NOT_EXECUTED, Reason.UNKNOWN_TOOL)
    assert call.answer.origin is Origin.REPLY
    assert "a, b" in call.answer.result
    assert step.settled
    assert step.starting == frozenset()


def test_an_unknown_tool_of_an_agent_without_tools_is_answered_too():
    assert plan(ask("nope")).settled


@pytest.mark.parametrize("arguments", ["{oops", "[1]", ""])
def test_arguments_that_are_no_json_object_start_no_body(arguments):
    step = plan(ask("t", arguments), tools=[a_tool()])
    assert step.calls[0].answer.reason is Reason.INVALID_ARGUMENTS
    assert step.calls[0].bodies == 0
    assert not step.starts_bodies
    assert step.content.calls[0].arguments == arguments


def test_arguments_that_fail_the_schema_start_no_body_and_say_why():
    strict = a_tool(problem_with=lambda _arguments: "n: field required")
    (call,) = plan(ask("t", {"m": 1}), tools=[strict]).calls
    assert call.answer.reason is Reason.INVALID_ARGUMENTS
    assert "n: field required" in call.answer.result


def test_the_saved_calls_carry_arguments_policy_order_and_dispatch_id():
    tools = [
        a_tool("u", kind=CallKind.REMOTE, replay=Replay.SAFE),
        a_tool("v", replay=Replay.VERIFIED, concurrency_group="g", sequential=True),
    ]
    one, two = plan("Hm", ask("u", {"n": 1}, "p"), ask("v", {"n": 2}, "q"), tools=tools).calls
    assert (one.dispatch_id, one.call_index, one.tool_call_id, one.arguments) == ("d0", 0, "p", {"n": 1})
    assert (one.kind, one.replay, one.bodies, one.generation) == (CallKind.REMOTE, Replay.SAFE, 0, 0)
    assert (two.dispatch_id, two.call_index, two.tool_call_id, two.arguments) == ("d1", 1, "q", {"n": 2})
    assert (two.replay, two.concurrency_group, two.sequential) == (Replay.VERIFIED, "g", True)


@pytest.mark.parametrize("kind", [CallKind.LOCAL, CallKind.INLINE_AGENT, CallKind.REMOTE, CallKind.COMPANION])
def test_kinds_with_a_body_are_saved_first_and_started_by_the_save(kind):
    step = plan(ask("t"), tools=[a_tool(kind=kind)])
    assert step.starts_bodies
    assert step.starting == {"d0"}
    assert step.calls[0].state is CallState.OPEN


def test_the_save_starts_the_first_of_each_group_and_of_the_chain():
    tools = [
        a_tool("g", concurrency_group="g"),
        a_tool("c", sequential=True),
        a_tool("f"),
        a_tool("gc", concurrency_group="g", sequential=True),
    ]
    step = plan(*(ask(name) for name in ("g", "c", "g", "f", "gc", "f")), tools=tools)
    assert step.starting == {"d0", "d1", "d3", "d5"}


def test_a_call_behind_one_that_the_reply_itself_answers_may_start():
    strict = a_tool(sequential=True, problem_with=lambda given: None if given else "n: required")
    step = plan(ask("t"), ask("t", {"n": 1}), tools=[strict])
    assert step.calls[0].answer.reason is Reason.INVALID_ARGUMENTS
    assert step.starting == {"d1"}


def test_client_calls_start_no_body_and_wait():
    step = plan(ask("t"), tools=[a_tool(kind=CallKind.CLIENT)])
    assert step.calls[0].state is CallState.WAITING
    assert step.starting == frozenset()
    assert not step.starts_bodies
    assert not step.settled


def test_gated_calls_start_no_body_and_wait_for_a_person():
    gated = a_tool(replay=Replay.SAFE, needs_approval=lambda _arguments: True)
    step = plan(ask("t"), tools=[gated])
    (call,) = step.calls
    assert (call.kind, call.state) == (CallKind.APPROVAL, CallState.WAITING)
    assert (call.approval_required, call.approved, call.replay) == (True, False, Replay.SAFE)
    assert step.starting == frozenset()
    assert not step.starts_bodies
    assert not step.settled


def test_only_arguments_that_need_an_approval_are_gated():
    tool = a_tool(needs_approval=lambda given: given["n"] > 100)
    small, large = plan(ask("t", {"n": 1}), ask("t", {"n": 101}), tools=[tool]).calls
    assert (small.kind, small.approval_required) == (CallKind.LOCAL, False)
    assert (large.kind, large.approval_required) == (CallKind.APPROVAL, True)


def test_only_arguments_that_pass_the_schema_are_looked_at_for_an_approval():
    tool = a_tool(problem_with=lambda _arguments: "n: required", needs_approval=lambda given: given["n"] > 1)
    (call,) = plan(ask("t"), tools=[tool]).calls
    assert call.answer.reason is Reason.INVALID_ARGUMENTS


def test_a_gated_delegation_keeps_its_kind():
    tool = a_tool(kind=CallKind.REMOTE, needs_approval=lambda _arguments: True)
    (call,) = plan(ask("t"), tools=[tool]).calls
    assert (call.kind, call.state, call.approval_required) == (CallKind.REMOTE, CallState.WAITING, True)


def test_bodies_beside_calls_that_others_answer_are_saved_first():
    tools = [a_tool("ui", kind=CallKind.CLIENT), a_tool("t")]
    step = plan(ask("ui"), ask("t"), tools=tools)
    assert step.starts_bodies
    assert step.starting == {"d1"}


def test_a_body_behind_a_waiting_call_is_saved_first_but_not_started():
    tools = [a_tool("ui", kind=CallKind.CLIENT, sequential=True), a_tool("t", sequential=True)]
    step = plan(ask("ui"), ask("t"), tools=tools)
    assert step.starts_bodies
    assert step.starting == frozenset()


@pytest.mark.parametrize(
    ("given_ids", "taken", "expected"),
    [
        (["x"], [], ["x"]),
        (["x", "x"], [], ["x", "x_2"]),
        (["x"], ["x"], ["x_2"]),
        (["x"], ["x", "x_2"], ["x_3"]),
        (["x", "x"], ["x", "x_2"], ["x_3", "x_4"]),
        (["x", "x_2", "x"], [], ["x", "x_2", "x_3"]),
        (["x", "x", "x_2"], [], ["x", "x_2", "x_2_2"]),
        (["x"], ["x", "x_3"], ["x_2"]),
        ([""], [], ["call"]),
        (["", ""], [], ["call", "call_2"]),
        (["", "call"], ["call"], ["call_2", "call_3"]),
    ],
)
def test_call_ids_are_made_unique_within_the_session(given_ids, taken, expected):
    step = plan(*(ask("t", {}, call_id) for call_id in given_ids), tools=[a_tool()], taken=taken)
    assert [call.tool_call_id for call in step.calls] == expected
    assert [part.tool_call_id for part in step.content.calls] == expected


@given(
    st.lists(st.sampled_from(["", "x", "x_2", "x_3", "call", "call_2"]), min_size=1, max_size=8),
    st.sets(st.sampled_from(["x", "x_2", "x_4", "call", "x_2_2"])),
)
@settings(deadline=None, max_examples=150)
def test_whatever_the_ids_every_call_has_one_place_and_an_id_of_its_own(given_ids, taken):
    step = plan("a", *(ask("t", {}, call_id) for call_id in given_ids), "b", tools=[a_tool()], taken=taken)
    ids = [call.tool_call_id for call in step.calls]
    assert len(set(ids) | taken) == len(ids) + len(taken)
    assert all(ids)
    assert [part.tool_call_id for part in step.content.calls] == ids
    assert [call.call_index for call in step.calls] == list(range(len(given_ids)))
    assert len({call.dispatch_id for call in step.calls}) == len(given_ids)
    assert step.content.text == "ab"
