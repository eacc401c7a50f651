"""Typed outputs: the finish tool, what is stored, and what is read again."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, Field, RootModel
from typing_extensions import TypedDict

from helix_dbos.agents.output import OutputSchema
from helix_dbos.core.states import FINISH_TOOL
from helix_dbos.errors import DefinitionError, HelixError

T = TypeVar("T")


class Answer(BaseModel):
    """What the desk decided."""

    text: str
    on: datetime.date
    tag: str = Field(default="none", validation_alias="inTag", serialization_alias="outTag")


class Box(BaseModel, Generic[T]):
    it: T


class Names(RootModel[list[str]]):
    pass


class Node(BaseModel):
    children: list[Node] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


class Row(TypedDict):
    id: int


def declared(output_type: Any) -> OutputSchema[Any]:
    return OutputSchema[Any].declare("desk", output_type)


def test_text_has_no_finish_tool():
    schema = declared(str)
    assert schema.definition is None
    assert schema.parse("words") == "words"
    assert schema.dump("words") == "words"


def test_the_finish_tool_is_the_type_s_object():
    definition = declared(Answer).definition
    assert definition is not None
    assert (definition.name, definition.is_output) == (FINISH_TOOL, True)
    assert definition.parameters["type"] == "object"
    assert definition.parameters["required"] == ["text", "on"]
    assert definition.parameters["description"] == "What the desk decided."


@pytest.mark.parametrize(
    ("output_type", "arguments", "output"),
    [
        (Answer, {"text": "t", "on": "2024-05-01"}, Answer(text="t", on=datetime.date(2024, 5, 1))),
        (Point, {"x": 1}, Point(1, 2)),
        (Row, {"id": 1}, {"id": 1}),
        (Box[int], {"it": 1}, Box[int](it=1)),
        (Node, {"children": [{}]}, Node(children=[Node()])),
    ],
    ids=["model", "dataclass", "typed dict", "generic", "recursive"],
)
def test_object_types_are_handed_over_directly(output_type, arguments, output):
    schema = declared(output_type)
    assert schema.definition is not None
    assert schema.definition.parameters["type"] == "object"
    assert "properties" in schema.definition.parameters
    assert schema.problem_with(arguments) is None
    stored = schema.stored(arguments)
    assert stored == arguments
    assert schema.parse(stored) == output


@pytest.mark.parametrize(
    ("output_type", "value", "output"),
    [
        (int, 3, 3),
        (int | None, None, None),
        (list[Point], [{"x": 1}], [Point(1, 2)]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Point | Row, {"id": 1}, {"id": 1}),
        (Names, ["a"], Names(["a"])),
        (datetime.date, "2024-05-01", datetime.date(2024, 5, 1)),
        (tuple[int, str], [1, "a"], (1, "a")),
    ],
    ids=str,
)
def test_other_types_travel_under_one_key(output_type, value, output):
    schema = declared(output_type)
    assert schema.definition is not None
    assert schema.definition.parameters["type"] == "object"
    assert list(schema.definition.parameters["properties"]) == ["value"]
    assert schema.problem_with({"value": value}) is None
    assert schema.problem_with({}) == "value: Field required"
    assert schema.problem_with({"value": value, "more": 1}) == "more: Extra inputs are not permitted"
    assert schema.stored({"value": value}) == value
    assert schema.parse(value) == output


def test_what_is_stored_is_read_again_whatever_the_aliases():
    schema = declared(Answer)
    arguments: dict[str, Any] = {"text": "t", "on": "2024-05-01", "inTag": "x"}
    output = schema.parse(schema.stored(arguments))
    assert output.tag == "x"
    assert schema.dump(output) == {"text": "t", "on": "2024-05-01", "outTag": "x"}


def test_a_stored_output_that_no_longer_fits_is_a_named_error():
    with pytest.raises(HelixError) as error:
        declared(Answer).parse({"text": 3})
    assert error.value.code == "framework_output_unreadable"
    assert error.value.detail == "text: Input should be a valid string\non: Field required"


@pytest.mark.parametrize("output_type", ["Answer", object(), type[int], 5])
def test_types_no_model_could_hand_over_are_refused(output_type):
    with pytest.raises(DefinitionError, match="output type of agent 'desk'"):
        declared(output_type)
