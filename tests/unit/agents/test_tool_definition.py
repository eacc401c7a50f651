"""A wrong tool fails where it is defined, with its function and the parameter named."""

from __future__ import annotations

import datetime
import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel, Field

from helix_dbos.agents import AbortSignal, RunContext, RunInfo, Tool, ToolContext, tool
from helix_dbos.core.states import CallKind, Replay
from helix_dbos.errors import DefinitionError

if TYPE_CHECKING:
    from somewhere import OnlyForTheChecker


class Deps:
    pass


@tool
def bare(key: str) -> str:
    """Say it again."""
    return key


def test_bare_has_the_defaults():
    assert isinstance(bare, Tool)
    assert (bare.name, bare.description) == ("bare", "Say it again.")
    assert bare.replay is Replay.UNSAFE
    assert (bare.concurrency_group, bare.sequential, bare.timeout_seconds) == (None, False, None)
    assert not bare.takes_context


def test_options_are_kept():
    @tool(
        replay="safe",
        concurrency_group="prefs",
        sequential=True,
        timeout_seconds=2.5,
        name="set-preference",
        description="Sets one.",
    )
    async def set_it(ctx: ToolContext[Deps], key: str) -> None:
        """Not shown."""

    assert (set_it.name, set_it.description, set_it.replay) == ("set-preference", "Sets one.", Replay.SAFE)
    assert (set_it.concurrency_group, set_it.sequential, set_it.timeout_seconds) == ("prefs", True, 2.5)
    assert set_it.takes_context
    now = set_it.now()
    assert (now.name, now.kind, now.replay) == ("set-preference", CallKind.LOCAL, Replay.SAFE)
    assert (now.concurrency_group, now.sequential) == ("prefs", True)
    assert now.problem_with({"key": "k"}) is None
    assert now.problem_with({}) == "key: Field required"
    assert now.needs_approval({}) is False
    assert (set_it.definition.name, set_it.definition.description) == ("set-preference", "Sets one.")
    assert not set_it.definition.is_output


def test_empty_parentheses_are_allowed():
    @tool()
    def quiet() -> None: ...

    assert (quiet.name, quiet.description) == ("quiet", "")
    assert quiet.definition.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_tool_stays_callable_and_looks_like_its_function():
    assert bare("k") == "k"
    assert bare(key="k") == "k"
    assert str(inspect.signature(bare)) == "(key: 'str') -> 'str'"
    assert bare.__doc__ == "Say it again."
    assert repr(bare) == "Tool('bare', replay='unsafe')"


def test_a_tool_is_immutable():
    with pytest.raises(AttributeError):
        bare.name = "other"


@pytest.mark.parametrize("policy", ["transactional", "verified", "idempotent", "", None, 1, []])
def test_other_policies_are_refused_with_the_allowed_ones(policy):
    with pytest.raises(DefinitionError, match=r"allowed: 'unsafe', 'safe'"):
        tool(replay=policy)(bare.function)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_timeout_is_a_positive_number(seconds):
    with pytest.raises(DefinitionError, match="timeout_seconds"):
        tool(timeout_seconds=seconds)(bare.function)


def test_an_empty_group_is_refused():
    with pytest.raises(DefinitionError, match="concurrency_group"):
        tool(concurrency_group="")(bare.function)


@pytest.mark.parametrize("name", ["a", "_x", "get-it", "A1_", "x" * 64])
def test_allowed_names(name):
    assert tool(name=name)(bare.function).name == name


@pytest.mark.parametrize("name", ["", "1a", "-a", "a b", "ä", "x" * 65, "a\n", 5])
def test_refused_names(name):
    with pytest.raises(DefinitionError, match="tool name"):
        tool(name=name)(bare.function)


@pytest.mark.parametrize("name", ["__finish__", "subagent__x", "companion__x"])
def test_reserved_names(name):
    with pytest.raises(DefinitionError, match="reserved"):
        tool(name=name)(bare.function)


def no_annotation(key): ...
def any_number(*keys: str): ...
def any_names(**options: str): ...
def positional_only(key: str, /): ...
def late_context(key: str, ctx: ToolContext): ...
def optional_context(ctx: ToolContext | None): ...
def listed_context(key: str, all_of_them: list[ToolContext[Deps]]): ...
def keyword_context(*, ctx: ToolContext): ...
def run_context(ctx: RunContext): ...
def run_info(info: RunInfo[Deps]): ...
def abort_signal(abort: AbortSignal): ...
def underscore(_key: str): ...
def unknown_name(key: Nowhere): ...  # noqa: F821
def checker_only(key: OnlyForTheChecker): ...
def a_callable(key: Callable[[], None]): ...
def a_class(key: type[int]): ...
def a_thread(key: threading.Thread): ...
def nested_thread(key: list[dict[str, threading.Thread]]): ...
def class_variable(key: ClassVar[int]): ...
def aliased(key: Annotated[str, Field(alias="other")]): ...
def aliased_default(key: str = Field(validation_alias="other")): ...


@pytest.mark.parametrize(
    ("function", "parameter", "problem"),
    [
        (no_annotation, "key", "no type annotation"),
        (any_number, "keys", "any number"),
        (any_names, "options", "any name"),
        (positional_only, "key", "positional-only"),
        (late_context, "ctx", "must be the first parameter"),
        (optional_context, "ctx", "must be the first parameter"),
        (listed_context, "all_of_them", "must be the first parameter"),
        (keyword_context, "ctx", "by keyword"),
        (run_context, "ctx", "no model can give"),
        (run_info, "info", "no model can give"),
        (abort_signal, "abort", "no model can give"),
        (underscore, "_key", "underscore"),
        (unknown_name, "key", "cannot be resolved"),
        (checker_only, "key", "OnlyForTheChecker"),
        (a_callable, "key", "no JSON Schema"),
        (a_class, "key", "no JSON Schema"),
        (a_thread, "key", "no JSON Schema"),
        (nested_thread, "key", "no JSON Schema"),
        (class_variable, "key", "ClassVar"),
        (aliased, "key", "alias"),
        (aliased_default, "key", "alias"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_parameters_no_tool_can_have(function, parameter, problem):
    with pytest.raises(DefinitionError, match=problem) as refused:
        tool(function)
    assert f"'{function.__name__}'" in refused.value.error
    assert f"'{parameter}'" in refused.value.error


def test_an_annotation_that_is_no_type_is_refused():
    def odd(key): ...

    odd.__annotations__["key"] = object()
    with pytest.raises(DefinitionError, match="'key'"):
        tool(odd)


def test_a_class_variable_is_no_argument():
    def odd(key): ...

    odd.__annotations__["key"] = ClassVar[int]
    with pytest.raises(DefinitionError, match=r"'key'.*ClassVar.*no value has"):
        tool(odd)


def test_an_unreadable_signature_is_refused():
    def odd(): ...

    odd.__signature__ = "not one"
    with pytest.raises(DefinitionError, match=r"'.*odd' has no readable signature"):
        tool(odd)


def test_generators_are_refused():
    def generator():
        yield 1

    async def async_generator():
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(DefinitionError, match="generator"):
            tool(function)


@pytest.mark.parametrize("thing", [print, Deps, Deps(), "name", bare, functools.partial(bare.function, "k")])
def test_only_functions_become_tools(thing):
    with pytest.raises(DefinitionError, match="made from a function"):
        tool(thing)


def test_a_lambda_needs_a_name():
    with pytest.raises(DefinitionError, match="<lambda>"):
        tool(lambda: None)
    assert tool(name="nothing")(lambda: None).name == "nothing"


def test_only_what_the_model_gives_must_resolve():
    @tool
    def search(key: str) -> OnlyForTheChecker: ...

    assert search.validate({"key": "k"}) == {"key": "k"}


def test_a_bound_method_is_a_tool_without_its_self():
    class Desk:
        def ask(self, key: str) -> str:
            return key

        def ask_with(self, ctx: ToolContext, key: str) -> str:
            return key

    assert list(tool(Desk().ask).validate({"key": "k"})) == ["key"]
    assert tool(Desk().ask_with).takes_context


def test_a_wrapped_function_is_read_through():
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any):
            return function(*args, **kwargs)

        return wrapper

    @tool
    @logged
    def wrapped(ctx: ToolContext, day: datetime.date) -> None: ...

    assert wrapped.takes_context
    assert wrapped.validate({"day": "2024-05-01"}) == {"day": datetime.date(2024, 5, 1)}


def test_annotations_may_name_locals_of_the_defining_function():
    class LocalDeps:
        pass

    class Query(BaseModel):
        text: str

    @tool
    def with_context(ctx: ToolContext[LocalDeps], query: Query) -> None: ...

    @tool(replay="safe")
    def without_context(query: Query) -> None: ...

    assert with_context.takes_context
    assert with_context.validate({"query": {"text": "t"}}) == {"query": Query(text="t")}
    assert without_context.validate({"query": {"text": "t"}}) == {"query": Query(text="t")}


def test_a_local_name_out_of_reach_is_a_clear_error():
    class Query(BaseModel):
        text: str

    def declare():
        @tool
        def search(query: Query) -> None: ...

    with pytest.raises(DefinitionError, match=r"'query'.*cannot be resolved.*'Query'"):
        declare()
