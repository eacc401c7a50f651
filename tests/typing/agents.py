"""Checked by basedpyright, never run: an agent refuses tools and factories of other types."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=error

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import assert_type

from pydantic import BaseModel
from pydantic_ai.models import Model

from helix_dbos.agents import Agent, RunContext, RunInfo, ToolContext, run_dependencies, tool
from helix_dbos.models.port import ModelPort


@dataclass
class Deps:
    url: str


class Pool: ...


class State(BaseModel):
    count: int = 0


class OtherState(BaseModel):
    name: str = ""


class Answer(BaseModel):
    text: str


@tool
async def deps_and_state(ctx: ToolContext[Deps, State]) -> str:
    return ctx.deps.url


@tool
async def only_deps(ctx: ToolContext[Deps]) -> str:
    return ctx.deps.url


@tool
async def any_agent(ctx: ToolContext[object, object]) -> str:
    return ctx.session_id


@tool
def bare(ctx: ToolContext) -> str:
    return ctx.session_id


@tool
def no_context(key: str) -> str:
    return key


def make(info: RunInfo) -> Deps:
    return Deps(info.session_id)


async def make_async(info: RunInfo) -> Deps:
    return Deps(info.session_id)


@contextmanager
def make_managed(info: RunInfo) -> Generator[Deps]:
    yield Deps(info.session_id)


@asynccontextmanager
async def make_async_managed(info: RunInfo) -> AsyncGenerator[Deps]:
    yield Deps(info.session_id)


def make_from_pool(info: RunInfo[Pool]) -> Deps:
    assert_type(info.process, Pool)
    return Deps(info.session_id)


@asynccontextmanager
async def open_pool() -> AsyncGenerator[Pool]:
    yield Pool()


def instructions(context: RunContext[Deps, State]) -> str:
    assert_type(context.deps, Deps)
    assert_type(context.state, State)
    return context.session_id


async def instructions_async(context: RunContext[Deps, State]) -> str:
    return context.session_id


# The output type: text by default, inferred from `output_type` otherwise.
assert_type(Agent(name="a", model="m"), Agent[None, str, None])
assert_type(Agent(name="a", model="m", output_type=Answer), Agent[None, Answer, None])
assert_type(Agent(name="a", model="m", output_type=int | None), Agent[None, int | None, None])
assert_type(Agent(name="a", model="m", output_type=list[Answer]), Agent[None, list[Answer], None])
assert_type(Agent(name="a", model="m").parse_output("x"), str)
assert_type(Agent(name="a", model="m", output_type=Answer).parse_output({}), Answer)
annotated: Agent[Deps, Answer] = Agent(name="a", model="m", output_type=Answer, deps=make)
subscripted = Agent[Deps, Answer](name="a", model="m", output_type=Answer, deps=make)
assert_type(subscripted, Agent[Deps, Answer, None])
wrong_output: Agent[None, str] = Agent(name="a", model="m", output_type=Answer)  # pyright: ignore[reportAssignmentType]

# Dependencies: from a factory of any form, or from the process.
assert_type(Agent(name="a", model="m", deps=make), Agent[Deps, str, None])
assert_type(Agent(name="a", model="m", deps=make_async), Agent[Deps, str, None])
assert_type(Agent(name="a", model="m", deps=make_managed), Agent[Deps, str, None])
assert_type(Agent(name="a", model="m", deps=make_async_managed), Agent[Deps, str, None])
assert_type(Agent(name="a", model="m", deps=lambda info: Deps(info.run_id)), Agent[Deps, str, None])
assert_type(Agent(name="a", model="m", process_deps=open_pool), Agent[Pool, str, None])
assert_type(Agent(name="a", model="m", deps=make_from_pool, process_deps=open_pool), Agent[Deps, str, None])
Agent(name="a", model="m", deps=make_from_pool)  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", deps=make, process_deps=open_pool)  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", deps=Deps("u"))  # pyright: ignore[reportArgumentType]

# Tools: those that ask for what the agent has, or for less.
full = Agent(name="a", model="m", deps=make, state=State, tools=[deps_and_state, any_agent, no_context])
assert_type(full, Agent[Deps, str, State])
assert_type(full.load_state(None), State)
assert_type(Agent(name="a", model="m", state=State).load_state(None), State)
Agent(name="a", model="m", tools=[bare, any_agent, no_context])
Agent(name="a", model="m", deps=make, tools=[only_deps, any_agent, no_context])
Agent(name="a", model="m", deps=make, tools=[deps_and_state])  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", state=State, tools=[deps_and_state])  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", tools=[only_deps])  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", deps=make, tools=[bare])
Agent(name="a", model="m", deps=make, state=State, tools=[only_deps, bare])
Agent(name="a", model="m", deps=make, state=OtherState, tools=[deps_and_state])  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", process_deps=open_pool, tools=[only_deps])  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", deps=make_from_pool, process_deps=open_pool, tools=[only_deps])
Agent[Deps](name="a", model="m", tools=[only_deps])  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", tools=[make])  # pyright: ignore[reportArgumentType]

# Instructions ask for the same dependencies and state.
Agent(name="a", model="m", deps=make, state=State, instructions=instructions)
Agent(name="a", model="m", deps=make, state=State, instructions=instructions_async)
Agent(name="a", model="m", instructions=lambda context: context.session_id)
Agent(name="a", model="m", instructions=instructions)  # pyright: ignore[reportArgumentType]
Agent(name="a", model="m", deps=make, instructions=instructions)  # pyright: ignore[reportArgumentType]


# A model is a name, a pydantic-ai model, or a port of one's own.
def models(provided: Model, port: ModelPort) -> None:
    Agent(name="a", model=provided)
    Agent(name="a", model=port)
    Agent(name="a", model=42)  # pyright: ignore[reportArgumentType]
    Agent(name="a", model=Deps("u"))  # pyright: ignore[reportArgumentType]


# Required, and immutable.
Agent(name="a")  # pyright: ignore[reportCallIssue]
full.max_steps = 3  # pyright: ignore[reportAttributeAccessIssue]


async def dependencies(info: RunInfo) -> None:
    async with run_dependencies(full, info) as deps:
        assert_type(deps, Deps)
