"""What Postgres or JSON cannot hold is normalised or refused at the edge, never later."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
import uuid
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, computed_field, model_serializer

from helix_dbos.core.messages import AnsweredCall
from helix_dbos.core.storable import (
    MAX_DEPTH,
    MAX_RESULT_BYTES,
    NotStorable,
    clean_text,
    storable,
    storable_json,
)


class Colour(enum.Enum):
    RED = "red"


class Thing(BaseModel):
    name: str = "a\x00b"
    size: float = math.inf
    inner: Thing | None = None


@dataclasses.dataclass
class Box:
    what: object


class RaisingField(BaseModel):
    @computed_field
    @property
    def late(self) -> int:
        raise KeyError("late")


class RaisingModel(BaseModel):
    @model_serializer
    def dump(self) -> dict:
        raise RuntimeError("no")


def raising_rows():
    yield 1
    raise OSError("connection lost")


def nested(depth: int, wrap=lambda inner: [inner]):
    value: object = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def recursive_list() -> list:
    loop: list = []
    loop.append(loop)
    return loop


def recursive_dict() -> dict:
    loop: dict = {}
    loop["self"] = [loop]
    return loop


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (True, True),
        ("plain ✓ 😀", "plain ✓ 😀"),
        ("nul\x00", "nul\ufffd"),
        ("\ud800 alone \udfff", "\ufffd alone \ufffd"),
        ({"k\x00": {"deep": ["\x00"]}}, {"k\ufffd": {"deep": ["\ufffd"]}}),
        (math.nan, None),
        ([math.inf, -math.inf, 1.5], [None, None, 1.5]),
        ({"a": {"b": math.nan}}, {"a": {"b": None}}),
        (10**400, 10**400),
        (-(2**63) - 1, -(2**63) - 1),
        (b"bytes", "bytes"),
        (bytearray(b"bytes"), "bytes"),
        (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2026-01-02T03:04:05Z"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Colour.RED, "red"),
        ({3}, [3]),
        (frozenset({"\x00"}), ["\ufffd"]),
        ((1, (2,)), [1, [2]]),
        (Thing(inner=Thing(name="x", size=1)), None),
        (Box(Box(math.nan)), {"what": {"what": None}}),
        ({1: "int", 2.5: "float", None: "none", (1, 2): "tuple"}, None),
        ({dt.date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        ((n for n in range(3)), [0, 1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_a_json_form_is_stored_in_it(value, stored):
    got = storable(value)
    if isinstance(value, Thing):
        assert got == {
            "name": "a\ufffdb",
            "size": None,
            "inner": {"name": "x", "size": 1.0, "inner": None},
        }
    elif isinstance(value, dict) and 1 in value:
        assert list(got.values()) == ["int", "float", "none", "tuple"]
        assert all(isinstance(key, str) for key in got)
    else:
        assert got == stored
        assert type(got) is type(stored)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [object()],
        {"f": print},
        {object(): 1},
        Thing,
        ValueError("an exception is no result"),
        b"\xff",
        {b"\xff": 1},
        Box(object()),
        recursive_list(),
        recursive_dict(),
        Box(recursive_list()),
        10**5000,
        RaisingField(),
        RaisingModel(),
        raising_rows(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_json_form_is_refused_and_nothing_else_is_raised(value):
    with pytest.raises(NotStorable, match="no JSON form"):
        storable(value)


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: (v,), Box])
@pytest.mark.parametrize("depth", [1, MAX_DEPTH, MAX_DEPTH + 1, 250, 260, 3_000, 50_000])
def test_deep_nesting_is_stored_up_to_the_limit_and_refused_beyond(depth, wrap):
    if depth <= MAX_DEPTH:
        stored = storable(nested(depth, wrap))
        assert json.loads(json.dumps(stored)) == stored
    else:
        with pytest.raises(NotStorable):
            storable(nested(depth, wrap))


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2_000, 50_000])
def test_deep_json_is_refused(depth, wrap):
    assert storable_json(nested(MAX_DEPTH, wrap)) == nested(MAX_DEPTH, wrap)
    with pytest.raises(NotStorable):
        storable_json(nested(depth, wrap))


def test_what_is_stored_can_be_read_back_as_a_record():
    deep = storable(nested(MAX_DEPTH))
    answered = AnsweredCall(tool_call_id="x", tool_name="t", content=deep)
    assert AnsweredCall.model_validate_json(answered.model_dump_json()) == answered


def test_a_key_that_is_no_unicode_text_is_cleaned_or_refused():
    assert storable_json({"\ud800": 1}) == {"\ufffd": 1}
    with suppress(NotStorable):
        assert storable({"\ud800": 1}) == {"\ufffd": 1}


def test_the_limit_counts_the_bytes_of_the_json_text():
    fits = "a" * (MAX_RESULT_BYTES - 2)
    assert MAX_RESULT_BYTES == 1024 * 1024
    assert storable(fits) == fits
    with pytest.raises(NotStorable, match="1048576 at most"):
        storable(fits + "a")
    with pytest.raises(NotStorable, match="bytes of JSON"):
        storable("é" * (MAX_RESULT_BYTES // 2))
    assert storable("aé", limit=5) == "aé"
    with pytest.raises(NotStorable):
        storable("aé", limit=4)


def test_storable_json_leaves_what_is_clean_alone():
    value = {"a": [1, 2.5, True, None, "x", {"b": []}]}
    assert storable_json(value) == value


def test_clean_text():
    assert clean_text("a\x00b\ud83dc") == "a\ufffdb\ufffdc"
    assert clean_text("\t\n\x7f 😀") == "\t\n\x7f 😀"


texts = st.text(st.characters(), max_size=5) | st.sampled_from(["\x00", "\ud800", "a\udfff"])
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=3)
    | st.datetimes() | st.decimals() | st.just(object()) | st.complex_numbers()
)  # fmt: skip
keys = texts | st.integers() | st.floats() | st.none() | st.binary(max_size=2)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Box, inner)
    ),
    max_leaves=8,
)


@given(values)
@settings(deadline=None, max_examples=200)
def test_any_value_is_either_refused_or_safe_to_store(value):
    try:
        stored = storable(value)
    except NotStorable:
        return
    text = json.dumps(stored, ensure_ascii=False, allow_nan=False)
    assert "\\u0000" not in text
    assert json.loads(text.encode("utf-8")) == stored
    assert storable(stored) == stored
    assert storable_json(stored) == stored
