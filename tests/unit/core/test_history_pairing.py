"""The history for a model: every call paired with its answer, once, right behind its reply."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helix_dbos.core.calls import Answer
from helix_dbos.core.history import Unpaired, build_history
from helix_dbos.core.messages import (
    AnsweredCall,
    AssistantContent,
    CallPart,
    NoticeContent,
    TextPart,
    user_content,
)
from helix_dbos.core.states import Origin, Outcome, Reason
from helix_dbos.core.texts import not_executed, raised
from tests.unit.core.core_builders import RETURNED

HELLO, NOTICE = user_content("Hello"), NoticeContent(text="A note.")


def reply(*ids: str, text: str = "") -> AssistantContent:
    calls = tuple(CallPart(tool_call_id=id_, tool_name=f"t-{id_}", arguments={}) for id_ in ids)
    return AssistantContent(parts=(*((TextPart(text=text),) if text else ()), *calls))


def test_an_empty_conversation_has_an_empty_history():
    assert build_history([], {}) == ()


def test_answers_follow_their_reply_in_reply_order():
    messages = [HELLO, reply("b", "a", text="Let me see."), NOTICE, reply(text="Done."), user_content("More")]
    history = build_history(messages, {"a": RETURNED, "b": not_executed(Reason.RUN_STOPPED, Origin.STOP)})
    assert [item for item in history if not isinstance(item, tuple)] == messages
    results = history[2]
    assert [(r.tool_call_id, r.tool_name, r.is_error) for r in results] == [
        ("b", "t-b", True),
        ("a", "t-a", False),
    ]
    assert results[1].content == RETURNED.result


def test_a_reply_without_calls_is_followed_by_no_answers():
    assert build_history([reply(text="Hi")], {"x": RETURNED}) == (reply(text="Hi"),)


@pytest.mark.parametrize(
    ("answer", "is_error"),
    [
        (Answer(Outcome.RETURNED, None, None, Origin.BODY), False),
        (Answer(Outcome.RETURNED, None, [1, {"a": None}], Origin.CHILD), False),
        (raised(Reason.TOOL_ERROR, "No such order."), True),
        (not_executed(Reason.OUTCOME_UNKNOWN, Origin.RECOVERY), True),
    ],
)
def test_what_did_not_simply_return_is_an_error(answer, is_error):
    _, (paired,) = build_history([reply("x")], {"x": answer})
    assert paired == AnsweredCall(tool_call_id="x", tool_name="t-x", content=answer.result, is_error=is_error)


@pytest.mark.parametrize(
    ("answers", "missing"),
    [({}, "a"), ({"a": RETURNED}, "b"), ({"a": RETURNED, "c": RETURNED}, "b"), ({"b": RETURNED}, "a")],
)
def test_a_call_without_an_answer_is_never_shown_to_a_model(answers, missing):
    with pytest.raises(Unpaired, match=missing):
        build_history([HELLO, reply("a", "b")], answers)


@given(st.lists(st.sampled_from(["user", "notice", "text", 1, 2, 3]), max_size=8))
@settings(deadline=None, max_examples=60)
def test_every_call_is_paired_exactly_once_right_behind_its_reply(shape):
    kinds = {"user": HELLO, "notice": NOTICE, "text": reply(text="Hm")}
    messages = [
        reply(*(f"{place}-{n}" for n in range(item))) if isinstance(item, int) else kinds[item]
        for place, item in enumerate(shape)
    ]
    answers = {c.tool_call_id: RETURNED for m in messages if isinstance(m, AssistantContent) for c in m.calls}
    history = build_history(iter(messages), answers)
    assert [item for item in history if not isinstance(item, tuple)] == messages
    paired = [result.tool_call_id for item in history if isinstance(item, tuple) for result in item]
    assert sorted(paired) == sorted(answers)
    for before, item in pairwise(history):
        if isinstance(item, tuple):
            assert [r.tool_call_id for r in item] == [c.tool_call_id for c in before.calls]
