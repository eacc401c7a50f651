"""Checked by basedpyright, never run: what `@tool` keeps of a function's types."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=error

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, assert_type

from pydantic import BaseModel

from helix_dbos.agents import Tool, ToolContext, tool


@dataclass
class Deps:
    url: str


@dataclass
class OtherDeps:
    url: str


class State(BaseModel):
    count: int = 0


@tool
async def with_everything(ctx: ToolContext[Deps, State], key: str, limit: int = 3) -> dict[str, str]:
    assert_type(ctx.deps, Deps)
    assert_type(ctx.state, State)
    assert_type(ctx.user_id, str | None)
    assert_type(ctx.idempotency_key, str)
    return {key: ctx.deps.url * limit}


@tool(replay="safe", concurrency_group="prefs", sequential=True, timeout_seconds=5, name="set-it")
def with_options(ctx: ToolContext[Deps], key: str) -> int:
    assert_type(ctx.deps, Deps)
    assert_type(ctx.state, object)
    return len(key)


@tool()
def plain_context(ctx: ToolContext) -> None:
    assert_type(ctx.deps, object)
    assert_type(ctx.state, object)


@tool
def without_context(key: str) -> int:
    return len(key)


@tool
def without_anything() -> str:
    return ""


# A tool is called like its function.
assert_type(without_context("k"), int)
assert_type(without_context(key="k"), int)
assert_type(without_anything(), str)
without_context(3)  # pyright: ignore[reportArgumentType]
without_context()  # pyright: ignore[reportCallIssue]
without_context("k", other=1)  # pyright: ignore[reportCallIssue]


def calls(ctx: ToolContext[Deps, State], other: ToolContext[OtherDeps, State]) -> None:
    pending: Coroutine[Any, Any, dict[str, str]] = with_everything(ctx, "k", limit=1)
    pending.close()
    _ = with_everything(other, "k")  # pyright: ignore[reportArgumentType]


# What it asks for is part of its type; contravariant, so one that asks for less fits.
everything: Tool[Deps, State] = with_everything
only_deps: Tool[Deps] = with_options
nothing: Tool[object, object] = without_context
fits_everywhere: Tool[Deps, State] = without_context
fits_default: Tool = without_context
wrong_deps: Tool[OtherDeps, State] = with_everything  # pyright: ignore[reportAssignmentType]
wrong_state: Tool[Deps] = with_everything  # pyright: ignore[reportAssignmentType]
asks_for_nothing: Tool[object, object] = plain_context


async def run(ctx: ToolContext[Deps, State], bare: ToolContext, executor: Executor) -> None:
    await with_everything.run(ctx, with_everything.validate({"key": "k"}), executor=executor)
    await with_everything.run(bare, {}, executor=executor)  # pyright: ignore[reportArgumentType]


# Policies that come later, and words that never were one.
tool(replay="transactional")  # pyright: ignore[reportArgumentType]
tool(replay="verified")  # pyright: ignore[reportArgumentType]


def immutable() -> None:
    without_context.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
