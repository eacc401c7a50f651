"""Stored records come back as they were; usage adds up; a user says something or nothing is stored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from helix_dbos.core.messages import (
    AnsweredCall,
    AssistantContent,
    CallPart,
    FilePart,
    NoticeContent,
    TextPart,
    ThinkingPart,
    Usage,
    UserContent,
    user_content,
)

FILE = FilePart(media_type="image/png", url="https://example.org/a.png")

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
details = st.none() | st.dictionaries(text, json_values, max_size=2)
parts = st.one_of(
    st.builds(TextPart, text=text, details=details),
    st.builds(ThinkingPart, text=text, details=details),
    st.builds(
        CallPart,
        tool_call_id=text,
        tool_name=text,
        arguments=st.dictionaries(text, json_values, max_size=2) | text,
        details=details,
    ),
)
files = st.builds(FilePart, media_type=text, data=text) | st.builds(FilePart, media_type=text, url=text)
records = st.one_of(
    st.builds(AssistantContent, parts=st.lists(parts, max_size=4).map(tuple), model=st.none() | text),
    st.builds(
        UserContent, parts=st.lists(files | st.builds(TextPart, text=text), min_size=1, max_size=3).map(tuple)
    ),
    st.builds(NoticeContent, text=text),
    st.builds(AnsweredCall, tool_call_id=text, tool_name=text, content=json_values, is_error=st.booleans()),
    st.builds(Usage, requests=st.integers(0), input_tokens=st.integers(0)),
)


@given(records)
@settings(deadline=None, max_examples=150)
def test_records_come_back_from_json_as_they_were(record):
    assert type(record).model_validate_json(record.model_dump_json()) == record
    assert type(record).model_validate(json.loads(json.dumps(record.model_dump(mode="json")))) == record


def test_text_and_calls_of_a_reply():
    call = CallPart(tool_call_id="x", tool_name="t", arguments={"a": 1})
    reply = AssistantContent(parts=(TextPart(text="a"), ThinkingPart(text="hm"), call, TextPart(text="b")))
    assert reply.text == "ab"
    assert reply.calls == (call,)
    assert AssistantContent(parts=()).text == ""


@pytest.mark.parametrize(
    "stored",
    [
        {"parts": [{"kind": "smell", "text": "x"}]},
        {"parts": [{"kind": "text", "text": "x", "colour": "red"}]},
        {"parts": [{"kind": "file", "media_type": "image/png"}]},
        {},
    ],
)
def test_a_reply_of_unknown_form_is_refused(stored):
    with pytest.raises(ValidationError):
        AssistantContent.model_validate(stored)


def test_records_cannot_be_changed():
    with pytest.raises(ValidationError):
        NoticeContent(text="a").text = "b"


def test_usage_adds_field_by_field():
    one = Usage(requests=1, input_tokens=10, output_tokens=20, cache_read_tokens=3, cache_write_tokens=4)
    two = Usage(requests=2, input_tokens=100, output_tokens=200, cache_read_tokens=30, cache_write_tokens=40)
    total = one + two
    assert total.model_dump() == {
        "requests": 3,
        "input_tokens": 110,
        "output_tokens": 220,
        "cache_read_tokens": 33,
        "cache_write_tokens": 44,
    }
    assert total.total_tokens == 330
    assert one + Usage() == one
    assert set(total.model_dump()) == set(Usage.model_fields)


def test_a_user_message_is_text_or_parts():
    assert user_content("Hi") == UserContent(parts=(TextPart(text="Hi"),))
    assert user_content([TextPart(text="Look:"), FILE]).parts == (TextPart(text="Look:"), FILE)


@pytest.mark.parametrize("nothing", [[], ()])
def test_a_user_message_without_parts_is_refused(nothing):
    with pytest.raises(ValidationError):
        user_content(nothing)
