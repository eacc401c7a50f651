"""The scripted model: the same request gets the same reply, in any process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from helix_dbos.core.messages import (
    AnsweredCall,
    AssistantContent,
    HistoryItem,
    NoticeContent,
    TextPart,
    Usage,
    user_content,
)
from helix_dbos.errors import ModelError
from helix_dbos.models.port import ModelReply, ModelRequest, TransientModelError
from helix_dbos.testing.scripted import (
    Reply,
    ScriptedModel,
    call,
    calls,
    fails_once,
    finish,
    say,
    turns,
)

LATER = TransientModelError("later", retry_after_seconds=0.0)


def request(*history: HistoryItem, step_index: int = 0, session_id: str = "s-1") -> ModelRequest:
    return ModelRequest("", history, (), session_id, "r-1", step_index)


def conversation(*replies_per_turn: int) -> ModelRequest:
    """A request after so many replies in each turn, the last one going on."""
    history: list[HistoryItem] = []
    for replies in replies_per_turn:
        history.append(user_content("go"))
        for _ in range(replies):
            history.append(AssistantContent(parts=(TextPart(text="x"),)))
            history.append((AnsweredCall(tool_call_id="c", tool_name="t", content=None),))
            history.append(NoticeContent(text="a notice starts no turn"))
    return request(*history, step_index=sum(replies_per_turn))


async def text(model: ScriptedModel, asked: ModelRequest) -> str:
    return (await model.request(asked)).content.text


@pytest.mark.parametrize(
    ("replies", "expected"), [((0,), "one"), ((1,), "two"), ((2, 0), "one"), ((2, 1), "two")]
)
async def test_the_place_in_the_turn_picks_the_reply(replies: Sequence[int], expected: str):
    asked = conversation(*replies)
    for model in (ScriptedModel(["one", say("two")]), ScriptedModel(["one", say("two")])):
        assert await text(model, asked) == expected
        assert await text(model, asked) == expected


async def test_past_its_end_the_script_says_so():
    with pytest.raises(ModelError) as caught:
        await ScriptedModel(["one"]).request(conversation(1))
    assert caught.value.code == "script_exhausted"
    assert not isinstance(caught.value, TransientModelError)
    assert "reply 2" in (caught.value.detail or "")


async def test_each_turn_can_have_its_own_script():
    model = ScriptedModel(turns(["a", "b"], ["c"]))
    assert [await text(model, conversation(*at)) for at in ((0,), (1,), (2, 0))] == ["a", "b", "c"]
    for past in ((2, 1), (2, 1, 0), ()):
        with pytest.raises(ModelError) as caught:
            await model.request(conversation(*past))
        assert caught.value.code == "script_exhausted"


async def test_a_function_may_pick_the_reply_sync_or_async():
    def pick(asked: ModelRequest) -> Reply:
        return f"step {asked.step_index}"

    async def pick_later(asked: ModelRequest) -> Reply:
        return pick(asked)

    assert await text(ScriptedModel(pick), request(step_index=3)) == "step 3"
    assert await text(ScriptedModel(pick_later), request(step_index=4)) == "step 4"


async def test_calls_have_ids_that_follow_from_their_step():
    script = [calls(call("a", {"x": 1}), call("b", "{broken", id="mine"), call("c"), text="now")]
    reply = (await ScriptedModel(script).request(request(user_content("go"), step_index=4))).content
    assert reply.text == "now"
    assert [(part.tool_call_id, part.tool_name, part.arguments) for part in reply.calls] == [
        ("call-4-0", "a", {"x": 1}),
        ("mine", "b", "{broken"),
        ("call-4-2", "c", {}),
    ]
    assert reply.finish_reason == "tool_call"


async def test_a_call_alone_and_a_finish_are_replies():
    model = ScriptedModel([call("a"), finish({"total": 3})])
    assert (await model.request(conversation(0))).content.calls[0].tool_name == "a"
    done = (await model.request(conversation(1))).content.calls[0]
    assert (done.tool_name, done.arguments) == ("__finish__", {"total": 3})


async def test_a_whole_reply_may_be_given():
    content = AssistantContent(parts=(), finish_reason="content_filter")
    given = ModelReply(content, Usage(requests=1, output_tokens=9))
    model = ScriptedModel([content, given, say("x", usage=Usage(requests=1, input_tokens=4))])
    assert await model.request(conversation(0)) == ModelReply(content)
    assert await model.request(conversation(1)) == given
    assert (await model.request(conversation(2))).usage.input_tokens == 4


async def test_what_is_scripted_is_made_storable():
    model = ScriptedModel([calls(call("a", {"k\x00": "\ud800"}), text="\x00")])
    reply = (await model.request(conversation(0))).content
    assert (reply.text, reply.calls[0].arguments) == ("\ufffd", {"k\ufffd": "\ufffd"})


async def test_an_exception_is_raised_every_time():
    model = ScriptedModel([LATER])
    for _ in range(3):
        with pytest.raises(TransientModelError) as caught:
            await model.request(conversation(0))
        assert caught.value is LATER


async def test_a_passing_failure_is_raised_so_often_at_each_step_and_then_answered():
    model = ScriptedModel([fails_once(LATER, "one", times=2), fails_once(LATER, "two")])
    for asked, failures, expected in (
        (conversation(0), 2, "one"),
        (conversation(1), 1, "two"),
        (request(user_content("go"), session_id="s-2"), 2, "one"),
    ):
        for _ in range(failures):
            with pytest.raises(TransientModelError):
                await model.request(asked)
        assert await text(model, asked) == expected
        assert await text(model, asked) == expected


async def test_failures_may_follow_each_other():
    other = ModelError("broken")
    model = ScriptedModel([fails_once(LATER, fails_once(other, "done"))])
    for expected in (LATER, other):
        with pytest.raises(ModelError) as caught:
            await model.request(conversation(0))
        assert caught.value is expected
    assert await text(model, conversation(0)) == "done"


async def test_every_request_is_witnessed_before_its_answer():
    seen: list[ModelRequest] = []

    async def later(asked: ModelRequest) -> None:
        seen.append(asked)

    asked = conversation(0)
    await ScriptedModel(["x"], on_request=seen.append).request(asked)
    await ScriptedModel(["x"], on_request=later).request(asked)
    with pytest.raises(ModelError):
        await ScriptedModel([], on_request=seen.append).request(asked)
    assert seen == [asked] * 3
