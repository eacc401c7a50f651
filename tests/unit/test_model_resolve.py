"""Names, instances and ports become a port; pydantic-ai is imported only when it is needed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pydantic_ai.models
import pytest
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers import infer_provider_class

from helix_dbos.core.messages import FilePart, TextPart, user_content
from helix_dbos.errors import DefinitionError, ModelError
from helix_dbos.models.port import ModelPort, ModelRequest, TransientModelError
from helix_dbos.models.pydantic_ai import KNOWN_PROVIDERS, PydanticAIModel
from helix_dbos.models.resolve import resolve_model
from helix_dbos.testing.scripted import ScriptedModel


def a_request(*parts: TextPart | FilePart) -> ModelRequest:
    return ModelRequest("", (user_content(parts or "hello"),), (), "s-1", "r-1", 0)


def test_defining_a_model_by_name_does_not_import_pydantic_ai():
    script = (
        "import sys, helix_dbos\n"
        "from helix_dbos.models.resolve import resolve_model\n"
        "from helix_dbos.testing.scripted import ScriptedModel\n"
        "resolve_model('openai:gpt-5'); resolve_model('anthropic:claude-sonnet-4-5')\n"
        "resolve_model(ScriptedModel(['hi']))\n"
        "assert 'pydantic_ai' not in sys.modules\n"
        "try: resolve_model('nobody:x')\n"
        "except Exception: print('refused')\n"
        "assert 'pydantic_ai' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_port_passes_through():
    port = ScriptedModel(["hi"])
    assert resolve_model(port) is port


def test_a_pydantic_ai_model_is_wrapped_although_it_looks_like_a_port():
    instance = TestModel()
    assert isinstance(instance, ModelPort)
    assert isinstance(resolve_model(instance), PydanticAIModel)


def test_a_name_is_wrapped():
    model = resolve_model("openai:gpt-5")
    assert isinstance(model, PydanticAIModel)
    assert (model.name, repr(model)) == ("openai:gpt-5", "PydanticAIModel('openai:gpt-5')")


@pytest.mark.parametrize("name", ["", "gpt-5", "openai:", ":gpt-5", "opanai:gpt-5", "gateway/nobody:x"])
def test_a_name_that_cannot_be_right_is_refused_at_once(name: str):
    with pytest.raises(DefinitionError) as caught:
        resolve_model(name)
    assert repr(name) in (caught.value.detail or "")


@pytest.mark.parametrize("value", [None, 7, ScriptedModel, object()])
def test_what_is_no_model_is_refused(value: Any):
    with pytest.raises(DefinitionError):
        resolve_model(value)


@pytest.mark.parametrize("provider", sorted(KNOWN_PROVIDERS))
def test_every_known_provider_is_known_to_pydantic_ai(provider: str):
    try:
        infer_provider_class(provider)
    except ImportError as problem:
        assert "install" in str(problem)  # noqa: PT017 - known, its package is not installed here


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_missing_package_names_the_extra_to_install(provider: str, monkeypatch: pytest.MonkeyPatch):
    for loaded in [name for name in sys.modules if name.startswith(f"pydantic_ai.providers.{provider}")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, provider, None)
    with pytest.raises(ModelError) as caught:
        await PydanticAIModel(f"{provider}:x").request(a_request())
    assert caught.value.code == "model_provider_missing"
    assert f"helix-dbos[{provider}]" in (caught.value.detail or "")


async def test_a_missing_key_is_said_when_the_model_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelError) as caught:
        await PydanticAIModel("openai:gpt-5").request(a_request())
    assert caught.value.code == "model_not_configured"
    assert "OPENAI_API_KEY" in (caught.value.detail or "")
    assert "Agent('test')" not in (caught.value.detail or "")


def test_a_name_is_built_once_for_each_event_loop(monkeypatch: pytest.MonkeyPatch):
    built: list[str] = []

    real = pydantic_ai.models.infer_model

    def infer(given: Any) -> Any:
        built.extend([given] if isinstance(given, str) else [])
        return real(given)

    monkeypatch.setattr(pydantic_ai.models, "infer_model", infer)
    model = PydanticAIModel("test")

    async def ask_three_at_once() -> None:
        await asyncio.gather(*(model.request(a_request()) for _ in range(3)))
        await model.request(a_request())

    asyncio.run(ask_three_at_once())
    assert len(built) == 1
    asyncio.run(ask_three_at_once())
    assert len(built) == 2


def raising(error: Exception) -> FunctionModel:
    def answer(_messages: object, _info: AgentInfo) -> Any:
        raise error

    return FunctionModel(answer)


@pytest.mark.parametrize(
    ("error", "code", "transient"),
    [
        (TimeoutError("late"), "model_timeout", True),
        (ConnectionResetError("gone"), "model_unavailable", True),
        (ValueError("my secret prompt"), "model_error", False),
        (pydantic_ai.UserError("not this way"), "model_request_invalid", False),
        (pydantic_ai.UnexpectedModelBehavior("odd", "my secret prompt"), "model_bad_reply", False),
    ],
)
async def test_every_other_failure_is_a_model_error_too(error: Exception, code: str, transient: bool):
    with pytest.raises(ModelError) as caught:
        await PydanticAIModel(raising(error)).request(a_request())
    assert caught.value.code == code
    assert isinstance(caught.value, TransientModelError) is transient
    assert "secret" not in str(caught.value)


async def test_an_unforeseen_failure_keeps_its_cause_for_the_log():
    bug = KeyError("x")
    with pytest.raises(ModelError) as caught:
        await PydanticAIModel(raising(bug)).request(a_request())
    assert caught.value.__cause__ is bug


async def test_when_every_fallback_fails_one_that_may_pass_is_enough():
    refused = pydantic_ai.ModelHTTPError(400, "a", {"message": "no"})
    limited = pydantic_ai.ModelHTTPError(429, "b", headers={"Retry-After": "2"})
    model = PydanticAIModel(FallbackModel(raising(refused), raising(limited)))
    with pytest.raises(TransientModelError) as caught:
        await model.request(a_request())
    assert caught.value.retry_after_seconds == 2.0
    with pytest.raises(ModelError) as caught_again:
        await PydanticAIModel(FallbackModel(raising(refused), raising(refused))).request(a_request())
    assert caught_again.value.code == "model_request_refused"


async def test_a_file_whose_data_is_not_base64_is_a_model_error():
    with pytest.raises(ModelError) as caught:
        await resolve_model(TestModel()).request(a_request(FilePart(media_type="image/png", data="%")))
    assert caught.value.code == "model_request_invalid"
