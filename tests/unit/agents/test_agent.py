"""A wrong agent fails where it is defined; a sound one answers the runtime's questions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from helix_dbos.agents import Agent, RunContext, UsageLimits, tool
from helix_dbos.core.states import FINISH_TOOL
from helix_dbos.errors import DefinitionError, HelixError
from helix_dbos.models.port import ModelReply, ModelRequest


class Answer(BaseModel):
    text: str


class State(BaseModel):
    count: int = 0


class Port:
    async def request(self, request: ModelRequest) -> ModelReply:
        raise AssertionError("nobody asks this port")


@tool
def look(key: str) -> str:
    """Look it up."""
    return key


@tool(replay="safe")
async def write(key: str) -> None: ...


CONTEXT: RunContext[Any, Any] = RunContext(
    session_id="s-1", run_id="r-1", user_id="u-1", metadata={"a": 1}, deps=None, state=None
)


def test_the_defaults():
    agent = Agent(name="desk", model="openai:gpt")
    assert (agent.name, agent.model, agent.instructions, agent.tools) == ("desk", "openai:gpt", "", ())
    assert (agent.max_steps, agent.usage_limits, agent.description) == (50, None, "")
    assert (agent.deps, agent.process_deps, agent.state, agent.output_type) == (None, None, None, str)
    assert agent.model_settings == {}
    assert agent.definitions() == ()
    assert agent.tools_now() == {}
    assert agent.check_output is None
    assert repr(agent) == "Agent('desk')"


def test_it_can_be_written_with_its_types():
    agent = Agent[None, Answer](name="desk", model="m", output_type=Answer)
    assert agent.parse_output({"text": "t"}) == Answer(text="t")


def test_tools_are_known_by_name_and_in_order():
    agent = Agent(name="desk", model="m", tools=[look, write], output_type=Answer)
    assert agent.tools == (look, write)
    assert agent.tool("look") is look
    assert agent.tool("nothing") is None
    assert agent.tool(FINISH_TOOL) is None
    assert [definition.name for definition in agent.definitions()] == ["look", "write", FINISH_TOOL]
    assert [definition.is_output for definition in agent.definitions()] == [False, False, True]
    assert list(agent.tools_now()) == ["look", "write"]
    assert agent.tools_now()["write"].replay.value == "safe"


def test_text_needs_no_finish_tool():
    assert [each.name for each in Agent(name="a", model="m", tools=[look]).definitions()] == ["look"]


def test_an_agent_is_immutable_and_so_is_what_it_was_given():
    tools, settings = [look], {"temperature": 0.1, "stop": ["a"]}
    agent = Agent(name="desk", model="m", tools=tools, model_settings=settings)
    tools.append(write)
    settings["temperature"] = 1
    settings["stop"].append("b")
    assert agent.tools == (look,)
    assert agent.model_settings == {"temperature": 0.1, "stop": ["a"]}
    with pytest.raises(AttributeError):
        agent.max_steps = 3
    with pytest.raises(TypeError):
        agent.model_settings["temperature"] = 2
    with pytest.raises(TypeError):
        agent.tools_now()["look"] = None


@pytest.mark.parametrize("name", ["a", "refund-desk", "0", "a_b", "a" * 63])
def test_allowed_names(name):
    assert Agent(name=name, model="m").name == name


@pytest.mark.parametrize("name", ["", "A", "-a", "_a", "a b", "a.b", "a" * 64, "a\n", None, 3])
def test_refused_names(name):
    with pytest.raises(DefinitionError, match="agent name"):
        Agent(name=name, model="m")


def test_models():
    port = Port()
    assert Agent(name="a", model=port).model is port
    for wrong in ("", " ", None, 3, Port, object()):
        with pytest.raises(DefinitionError, match="model of agent 'a'"):
            Agent(name="a", model=wrong)


def test_two_tools_of_one_name_are_refused():
    other = tool(name="look")(write.function)
    with pytest.raises(DefinitionError, match="two tools of the name 'look'"):
        Agent(name="a", model="m", tools=[look, other])


@pytest.mark.parametrize("tools", [[look.function], ["look"], look, "look", None, 3])
def test_what_is_no_tool_is_refused(tools):
    with pytest.raises(DefinitionError, match="'a'"):
        Agent(name="a", model="m", tools=tools)


@pytest.mark.parametrize("steps", [0, -1, 1.5, "3", None, True])
def test_max_steps_is_at_least_one(steps):
    assert Agent(name="a", model="m", max_steps=1).max_steps == 1
    with pytest.raises(DefinitionError, match="max_steps"):
        Agent(name="a", model="m", max_steps=steps)


def test_usage_limits_are_of_their_class():
    limits = UsageLimits(requests=3)
    assert Agent(name="a", model="m", usage_limits=limits).usage_limits is limits
    with pytest.raises(DefinitionError, match="usage_limits"):
        Agent(name="a", model="m", usage_limits={"requests": 3})


@pytest.mark.parametrize("settings", [None, 3, {"client": object()}, {1: "a"}])
def test_model_settings_are_json(settings):
    with pytest.raises(DefinitionError, match="model_settings"):
        Agent(name="a", model="m", model_settings=settings)


def generator(info):
    yield info


async def async_generator(info):
    yield info


@pytest.mark.parametrize("factory", [3, "make", lambda: None, lambda a, b: None, generator, async_generator])
def test_a_deps_factory_takes_the_run_s_info(factory):
    with pytest.raises(DefinitionError, match="deps factory of agent 'a'"):
        Agent(name="a", model="m", deps=factory)


@pytest.mark.parametrize("factory", [3, lambda info: None])
def test_a_process_deps_factory_takes_nothing(factory):
    with pytest.raises(DefinitionError, match="process_deps factory of agent 'a'"):
        Agent(name="a", model="m", process_deps=factory)


def test_factories_whose_signature_is_unknown_are_taken_at_their_word():
    assert Agent(name="a", model="m", process_deps=dict).process_deps is dict
    assert Agent(name="a", model="m", deps=lambda info, more=1: None).deps is not None


@pytest.mark.parametrize("instructions", [3, None, lambda: "", generator])
def test_instructions_are_text_or_a_function_of_the_run(instructions):
    with pytest.raises(DefinitionError, match="instructions of agent 'a'"):
        Agent(name="a", model="m", instructions=instructions)


async def test_instructions_are_written_from_the_context():
    async def later(context: RunContext[Any, Any]) -> str:
        return f"For {context.user_id}"

    for instructions in ("For u-1", lambda context: f"For {context.user_id}", later):
        agent = Agent(name="a", model="m", instructions=instructions)
        assert await agent.write_instructions(CONTEXT) == "For u-1"


async def test_instructions_that_are_no_text_are_an_error():
    with pytest.raises(HelixError, match="returned no text"):
        await Agent(name="a", model="m", instructions=lambda context: 3).write_instructions(CONTEXT)


def test_state_and_output_are_the_declared_ones():
    agent = Agent(name="a", model="m", state=State, output_type=Answer)
    assert agent.load_state(None) == State(count=0)
    assert agent.dump_state(State(count=2)) == {"count": 2}
    assert agent.diff_state({"count": 2}, State(count=3)) == {"count": 3}
    check = agent.check_output
    assert check is not None
    assert check({"text": 3}) == "text: Input should be a valid string"
    assert check({"text": "t"}) is None
    assert agent.stored_output({"text": "t"}) == {"text": "t"}
    assert agent.dump_output(Answer(text="t")) == {"text": "t"}
