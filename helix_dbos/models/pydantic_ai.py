"""The adapter over pydantic-ai: one request through its `direct` module, no loop, no agent.

Only this module and `conversion` know pydantic-ai, and this one imports it late: half a second
is paid when a model is first asked, not when Helix is imported.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypeIs

from helix_dbos.errors import DefinitionError, ModelError
from helix_dbos.models.failures import model_failure
from helix_dbos.models.port import ModelReply, ModelRequest, TransientModelError

if TYPE_CHECKING:
    from pydantic_ai.models import Model

__all__ = ["PydanticAIModel", "is_pydantic_ai_model"]

KNOWN_PROVIDERS = frozenset(
    {"anthropic", "azure", "bedrock", "cohere", "deepseek", "google", "google-cloud", "groq", "mistral"}
    | {"ollama", "openai", "openai-chat", "openai-responses", "openrouter", "xai"}
)
"""Providers taken as known without importing pydantic-ai; for any other it is asked."""

_NATIVE_ERROR_SYSTEMS = frozenset({"anthropic"})
"""Systems whose tool results carry an error flag beside the unchanged text."""

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})


class PydanticAIModel:
    """A model of pydantic-ai behind our port: every request is sent once, every failure is ours.

    A model given by name is built once, at the first request, and its SDK's own retries are off
    where the SDK lets us (OpenAI, Anthropic and most others; not Bedrock or xAI). Asked on another
    event loop, it is built again for that one. A `pydantic_ai.models.Model` instance is used as
    it is, with its client, its retries and its life cycle: give its client `max_retries=0`, or
    pass `max_retries` in the settings, so that Helix alone repeats requests.

    Args:
        model: A name such as `openai:gpt-5`, or a model instance.

    Raises:
        DefinitionError: The name is malformed or names an unknown provider.
    """

    def __init__(self, model: str | Model[Any]) -> None:
        if isinstance(model, str):
            _check_name(model)
        self._given = model
        self._built: tuple[asyncio.AbstractEventLoop, Model[Any]] | None = None
        self._building = threading.Lock()

    @property
    def name(self) -> str:
        """The model as `provider:name`."""
        return self._given if isinstance(self._given, str) else self._given.model_id

    def __repr__(self) -> str:
        """The model's name only: an instance's own repr may hold settings."""
        return f"PydanticAIModel({self.name!r})"

    async def request(self, request: ModelRequest) -> ModelReply:
        """Ask once and return the reply, as our records with every string storable.

        Raises:
            TransientModelError: Limited, unavailable or timed out; with the wait the provider asked for.
            ModelError: Anything else, also a missing package or key.
        """
        model = await self._model()
        try:
            return await _ask(model, request, retries_off=isinstance(self._given, str))
        except ModelError:
            raise
        except Exception as error:
            failure, is_known = _failure(error, self.name)
            # A provider's error quotes its whole body, perhaps the prompt: it ends here.
            raise failure from (None if is_known else error)

    async def aclose(self) -> None:
        """Close the connections of a model built from a name; asked again, it is built again."""
        with self._building:
            built, self._built = self._built, None
        if built is not None and built[0] is asyncio.get_running_loop():
            async with built[1]:  # leaving it closes the client that its provider made
                pass

    async def _model(self) -> Model[Any]:
        if not isinstance(self._given, str):
            return self._given
        loop = asyncio.get_running_loop()
        if self._built is not None and self._built[0] is loop:
            return self._built[1]
        return await asyncio.to_thread(self._build, self._given, loop)

    def _build(self, name: str, loop: asyncio.AbstractEventLoop) -> Model[Any]:
        """Build the model for a loop, once; connections belong to the loop that opened them."""
        with self._building:
            if self._built is None or self._built[0] is not loop:
                self._built = (loop, _infer(name))
            return self._built[1]


def is_pydantic_ai_model(value: object) -> TypeIs[Model[Any]]:
    """Whether the value is a model instance of pydantic-ai; imports it only if its shape fits."""
    if not any(base.__module__.startswith("pydantic_ai.") for base in type(value).__mro__):
        return False
    from pydantic_ai.models import Model

    return isinstance(value, Model)


async def _ask(model: Model[Any], request: ModelRequest, *, retries_off: bool) -> ModelReply:
    from pydantic_ai.direct import model_request

    from helix_dbos.models import conversion

    response = await model_request(
        model,
        conversion.to_messages(request, native_errors=model.system in _NATIVE_ERROR_SYSTEMS),
        model_settings=conversion.to_settings(
            request.settings, retries_off=retries_off and "max_retries" not in model.unsupported_settings
        ),
        model_request_parameters=conversion.to_parameters(request.tools),
    )
    if response.state != "complete":
        raise model_failure("model_bad_reply", model.model_id, f"the reply is {response.state}")
    return conversion.to_reply(response)


def _check_name(name: str) -> None:
    provider, colon, model = name.partition(":")
    if name == "test":
        return
    if not (provider and colon and model):
        raise DefinitionError(
            "A model is named as provider:model.",
            detail=f"{name!r}; for example openai:gpt-5 or anthropic:claude-sonnet-4-5",
        )
    if provider not in KNOWN_PROVIDERS and not _is_provider(provider):
        raise DefinitionError("The model's provider is unknown.", detail=repr(name))


def _is_provider(provider: str) -> bool:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.providers import infer_provider_class

    try:
        infer_provider_class(provider)
    except (ValueError, UserError):
        return False
    except ImportError:
        return True  # known, and its package is missing: said when the model is asked
    return True


def _infer(name: str) -> Model[Any]:
    from pydantic_ai.models import infer_model

    importlib.import_module("helix_dbos.models.conversion")  # paid here, off the event loop
    try:
        return infer_model(name)
    except ImportError as error:
        raise model_failure("model_provider_missing", name, _remedy(str(error))) from None
    except Exception as error:
        # The rest of pydantic-ai's sentence recommends its own test model.
        words = str(error).partition(" To try Pydantic AI without")[0]
        raise model_failure("model_not_configured", name, words) from None


def _remedy(words: str) -> str:
    for extra in ("openai", "anthropic"):
        if f"[{extra}]" in words:
            return f"install it with: pip install 'helix-dbos[{extra}]'"
    return words


# --- failures


def _failure(error: Exception, model: str) -> tuple[ModelError, bool]:
    """Our error for one that ended a request, and whether it was of a known kind."""
    from pydantic_ai.exceptions import AgentRunError, UserError

    if isinstance(error, ExceptionGroup):  # a fallback model tried several: one that may pass is enough
        group = cast("ExceptionGroup[Exception]", error)
        failures = [_failure(inner, model) for inner in group.exceptions]
        return next((pair for pair in failures if isinstance(pair[0], TransientModelError)), failures[0])
    code = _code(error)
    if not isinstance(error, (AgentRunError, UserError)):
        return model_failure(code, model, type(error).__name__), code != "model_error"
    wait: float | None = getattr(error, "retry_after", None)
    return model_failure(code, model, _words(error), retry_after_seconds=wait), True


def _code(error: Exception) -> str:
    """The code of an error: its category where the provider named one, else its HTTP status."""
    import httpx2
    from pydantic_ai import exceptions as pai

    if isinstance(error, pai.ModelHTTPError) and not isinstance(error, pai.ModelQuotaExceededError):
        if error.status_code == 429:
            return "model_rate_limited"
        if error.status_code in _TRANSIENT_STATUSES or error.status_code >= 500:
            return "model_unavailable"
    codes: tuple[tuple[type[Exception], str], ...] = (
        (pai.ModelQuotaExceededError, "model_quota_exceeded"),
        (pai.ModelRateLimitError, "model_rate_limited"),
        (pai.ModelTimeoutError, "model_timeout"),
        (pai.ModelRequestTimeout, "model_timeout"),
        (pai.ModelConnectionError, "model_unavailable"),
        (pai.ModelUnavailableError, "model_unavailable"),
        (pai.ModelServerError, "model_unavailable"),
        (pai.ConcurrencyLimitExceeded, "model_unavailable"),
        (pai.ModelAuthenticationError, "model_authentication_failed"),
        (pai.ModelNotFoundError, "model_not_found"),
        (pai.ModelContextWindowExceededError, "model_context_exceeded"),
        (pai.ModelAPIError, "model_request_refused"),
        (pai.UnexpectedModelBehavior, "model_bad_reply"),
        (pai.UserError, "model_request_invalid"),
        (httpx2.TimeoutException, "model_timeout"),
        (httpx2.TransportError, "model_unavailable"),
        (TimeoutError, "model_timeout"),
        (ConnectionError, "model_unavailable"),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), "model_error")


def _words(error: Exception) -> str:
    """What the provider said, without the request or the whole body around it."""
    from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior

    if isinstance(error, ModelHTTPError):
        return f"HTTP {error.status_code}: {_message(error.body)}"
    return error.message if isinstance(error, UnexpectedModelBehavior) else str(error)


def _message(body: object) -> str:
    """The sentence inside an error body, or nothing; OpenAI's SDK unwraps `error`, Anthropic's does not."""
    found: object = body
    for key in ("error", "message"):
        if isinstance(found, dict) and key in found:
            found = cast("dict[str, object]", found)[key]
    return found if isinstance(found, str) else ""
