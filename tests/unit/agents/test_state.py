"""Custom state: declared with defaults, stored as JSON, changed field by field."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, computed_field, model_validator

from helix_dbos.agents.state import StateSchema
from helix_dbos.core.storable import NotStorable
from helix_dbos.errors import DefinitionError, HelixError


class Basket(BaseModel):
    model_config = ConfigDict(extra="forbid")
    items: list[str] = []
    since: datetime.date | None = None
    weight: float = Field(default=0.0, alias="Weight")
    flag: int | bool = 0
    _note: str = PrivateAttr("")

    @computed_field
    @property
    def size(self) -> int:
        return len(self.items)


SCHEMA = StateSchema.declare("desk", Basket)


def test_without_state_there_is_none():
    schema = StateSchema.declare("desk", None)
    assert schema.load(None) is None
    assert schema.load({"old": 1}) is None
    assert schema.dump(None) == {}
    assert schema.diff({}, None) == {}


def test_a_new_session_starts_from_the_defaults():
    assert SCHEMA.load(None) == SCHEMA.load({}) == Basket()
    assert SCHEMA.load(None).items is not SCHEMA.load(None).items


def test_it_survives_the_store_without_what_is_computed():
    state = SCHEMA.load({"items": ["a"], "weight": 1.5})
    state.since = datetime.date(2024, 5, 1)
    stored = SCHEMA.dump(state)
    assert stored == {"items": ["a"], "since": "2024-05-01", "weight": 1.5, "flag": 0}
    assert SCHEMA.load(stored) == state


def test_the_diff_is_the_top_level_fields_that_changed():
    state = SCHEMA.load(None)
    before = SCHEMA.dump(state)
    assert SCHEMA.diff(before, state) == {}
    state.items.append("a")
    assert SCHEMA.diff(before, state) == {"items": ["a"]}
    state.since = datetime.date(2024, 5, 1)
    assert SCHEMA.diff(before, state) == {"items": ["a"], "since": "2024-05-01"}


def test_values_that_python_calls_equal_are_still_a_change():
    state = SCHEMA.load({"flag": 1})
    before = SCHEMA.dump(state)
    state.flag = True
    assert SCHEMA.diff(before, state) == {"flag": True}


def test_a_field_not_stored_yet_changes_only_when_it_leaves_its_default():
    one, other = SCHEMA.load({}), SCHEMA.load({})
    assert SCHEMA.diff({}, one) == {}
    one.items.append("a")
    other.flag = 3
    assert (SCHEMA.diff({}, one), SCHEMA.diff({}, other)) == ({"items": ["a"]}, {"flag": 3})


def test_what_this_deployment_writes_differently_is_no_change():
    assert SCHEMA.diff({"weight": 1}, SCHEMA.load({"weight": 1})) == {}


def test_unstorable_text_is_cleaned():
    state = SCHEMA.load(None)
    before = SCHEMA.dump(state)
    state.items.append("a\x00b")
    assert SCHEMA.diff(before, state) == {"items": ["a\ufffdb"]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", "heavy"),
        ("weight", float("nan")),
        ("items", None),
        ("items", [object()]),
        ("items", ["x" * 1_100_000]),
    ],
    ids=["wrong type", "not a number", "missing", "no JSON", "too large"],
)
def test_a_change_that_could_not_be_read_again_is_not_storable(field, value):
    state = SCHEMA.load(None)
    before = SCHEMA.dump(state)
    setattr(state, field, value)
    with pytest.raises(NotStorable):
        SCHEMA.diff(before, state)


def test_a_stored_state_that_no_longer_fits_is_a_named_error():
    with pytest.raises(HelixError) as error:
        SCHEMA.load({"items": 3})
    assert error.value.code == "framework_state_unreadable"
    assert error.value.detail == "items: Input should be a valid array"


class Required(BaseModel):
    a: int
    b: str = ""
    c: str


class Unstorable(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    lock: Any = Field(default_factory=threading.Lock)


class Unmakeable(BaseModel):
    a: int = 0

    @model_validator(mode="after")
    def check(self) -> Unmakeable:
        raise ValueError("never")


class Rooted(RootModel[dict[str, int]]):
    root: dict[str, int] = {}


def test_every_field_needs_a_default():
    with pytest.raises(DefinitionError, match=r"state of agent 'desk'.*missing: a, c"):
        StateSchema.declare("desk", Required)


@pytest.mark.parametrize(
    "model", [Basket(), dict, int, "Basket", 3, Rooted, Unstorable, Unmakeable], ids=repr
)
def test_other_state_is_refused(model):
    with pytest.raises(DefinitionError, match="state of agent 'desk'"):
        StateSchema.declare("desk", model)
