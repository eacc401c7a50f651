"""Arguments: the JSON Schema the model reads, and validation of what it wrote."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from helix_dbos.agents import ArgumentsInvalid, ToolContext, tool
from helix_dbos.agents.problems import MAX_PROBLEM_CHARS


class Colour(enum.Enum):
    RED = "red"


class Address(BaseModel):
    street: str


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: datetime.date


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


class Filter(TypedDict):
    text: str
    limit: NotRequired[int]


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Node(BaseModel):
    children: list[Node] = []


@tool
def everything(
    ctx: ToolContext,
    key: str,
    day: datetime.date,
    address: Address,
    point: Point,
    search: Filter,
    *,
    mode: Literal["fast", "slow"] = "fast",
    count: Annotated[int, Field(ge=1, description="own words")] = 3,
    note: str | None = None,
    tags: list[str] = [],  # noqa: B006 - what is tested: every call gets a list of its own
    colour: Colour = Colour.RED,
    anything: Any = None,
) -> None:
    """Do everything.

    Args:
        key: Which one.
        count: Outranked by the field's own.
    """


GIVEN: dict[str, Any] = {
    "key": "k",
    "day": "2024-05-01",
    "address": {"street": "s"},
    "point": {"x": "1"},
    "search": {"text": "t"},
}


def test_the_schema_is_a_closed_object_with_descriptions_and_defaults():
    schema = everything.definition.parameters
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert schema["required"] == ["key", "day", "address", "point", "search"]
    properties: Any = schema["properties"]
    assert "ctx" not in properties
    assert properties["key"] == {"type": "string", "description": "Which one."}
    assert properties["count"] == {"type": "integer", "minimum": 1, "default": 3, "description": "own words"}
    assert properties["mode"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert properties["day"] == {"type": "string", "format": "date"}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}, "default": []}
    assert set(schema["$defs"]) >= {"Address", "Point", "Filter", "Colour"}


def test_values_are_python_values_with_defaults():
    assert everything.validate(GIVEN) == {
        "key": "k",
        "day": datetime.date(2024, 5, 1),
        "address": Address(street="s"),
        "point": Point(1, 2),
        "search": {"text": "t"},
        "mode": "fast",
        "count": 3,
        "note": None,
        "tags": [],
        "colour": Colour.RED,
        "anything": None,
    }


def test_every_validation_makes_fresh_values():
    first, second = everything.validate(GIVEN), everything.validate(GIVEN)
    assert first["tags"] is not second["tags"]
    assert first["address"] is not second["address"]


def test_json_rules_hold_even_for_strict_models():
    @tool
    def strict(it: Strict, amount: Decimal, id: UUID, pair: tuple[int, int], some: set[int]) -> None: ...

    values = strict.validate(
        {"it": {"day": "2024-05-01"}, "amount": "1.50", "id": "0" * 32, "pair": [1, 2], "some": [1, 1]}
    )
    assert values["it"] == Strict(day=datetime.date(2024, 5, 1))
    assert values["amount"] == Decimal("1.50")
    assert (values["pair"], values["some"]) == ((1, 2), {1})


@pytest.mark.parametrize("name", ["schema", "model_config", "json", "copy", "model_dump", "self_", "dict"])
def test_parameters_may_have_the_names_of_pydantic_s_own(name):
    namespace: dict[str, Any] = {}
    exec(f"def named({name}: int) -> None: ...", namespace)
    named = tool(namespace["named"])
    assert named.validate({name: 1}) == {name: 1}
    assert list(named.definition.parameters["properties"]) == [name]
    assert named.problem_with({"argument_0": 1}) == (
        f"{name}: Field required\nargument_0: Extra inputs are not permitted"
    )


def test_field_as_default_and_inside_annotated():
    @tool
    def fields(
        a: int = Field(ge=1),
        b: int = Field(default=5, description="bee"),
        c: list[int] = Field(default_factory=list),  # noqa: B008 - what is tested
        d: Annotated[int, Field(default=7)] = 8,
        e: Annotated[int, Field(default=9)] = ...,
    ) -> None: ...

    properties: Any = fields.definition.parameters["properties"]
    assert properties["b"] == {"type": "integer", "default": 5, "description": "bee"}
    assert fields.validate({"a": 1, "e": 2}) == {"a": 1, "b": 5, "c": [], "d": 8, "e": 2}
    assert fields.problem_with({"a": 0, "e": 1}) == "a: Input should be greater than or equal to 1"


def test_a_default_without_json_form_is_left_out_quietly():
    class Opaque:
        pass

    @tool
    def opaque(it: Any = Opaque()) -> None: ...  # noqa: B008

    assert opaque.definition.parameters["properties"] == {"it": {}}


def test_recursive_types_have_a_schema():
    @tool
    def walk(node: Node) -> None: ...

    assert walk.validate({"node": {"children": [{}]}}) == {"node": Node(children=[Node()])}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"key": 1}, "key: Input should be a valid string"),
        ({"address": {}}, "address.street: Field required"),
        ({"tags": ["a", 1]}, "tags.1: Input should be a valid string"),
        ({"count": 0}, "count: Input should be greater than or equal to 1"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
        ({"mode": "medium"}, "mode: Input should be 'fast' or 'slow'"),
    ],
)
def test_a_problem_is_one_line_of_path_and_message(change, problem):
    assert everything.problem_with({**GIVEN, **change}) == problem
    with pytest.raises(ArgumentsInvalid) as invalid:
        everything.validate({**GIVEN, **change})
    assert invalid.value.problem == problem


def test_every_problem_has_its_line():
    assert everything.problem_with({**GIVEN, "key": 1, "count": "x"}) == (
        "key: Input should be a valid string\n"
        "count: Input should be a valid integer, unable to parse string as an integer"
    )


def test_the_input_is_never_echoed():
    secret = "s3cr3t-value"

    @tool
    def pets(pet: Annotated[Cat | Dog, Field(discriminator="kind")], n: int, when: datetime.date) -> None: ...

    problem = pets.problem_with({"pet": {"kind": secret}, "n": secret, "when": secret})
    assert problem is not None
    assert secret not in problem
    assert problem.startswith("pet: 'kind' should be one of 'cat', 'dog'\n")


def test_problems_are_short_however_many_and_long():
    problem = everything.problem_with({**GIVEN, **{"x" * 500 + str(n): n for n in range(300)}})
    assert problem is not None
    assert len(problem) <= MAX_PROBLEM_CHARS
    lines = problem.splitlines()
    assert lines[-1] == f"and {300 - len(lines) + 1} more"


def test_a_validator_that_breaks_is_a_problem_not_a_crash():
    class Fragile(BaseModel):
        key: str

        @field_validator("key")
        @classmethod
        def look_up(cls, value: str) -> str:
            raise KeyError(value)

    @tool
    def fragile(it: Fragile) -> None: ...

    assert fragile.problem_with({"it": {"key": "k"}}) == "They could not be checked (KeyError)."


def test_what_is_no_json_is_a_problem_not_a_crash():
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for arguments in ({"key": "\ud800"}, {"anything": deep}, {"anything": 10**5000}):
        assert everything.problem_with({**GIVEN, **arguments}) is not None
