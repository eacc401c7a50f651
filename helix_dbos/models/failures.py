"""What a failed model request is called and what is said about it; no provider library here.

The sentences are safe for users. The detail is for developers: it names the model and quotes
the provider shortly, with everything that looks like a key taken out.
"""

from __future__ import annotations

import re

from helix_dbos.core.storable import clean_text
from helix_dbos.errors import ModelError
from helix_dbos.models.port import TransientModelError

__all__ = ["SENTENCES", "TRANSIENT_CODES", "model_failure", "scrubbed"]

SENTENCES: dict[str, str] = {
    "model_rate_limited": "The model provider is limiting requests.",
    "model_timeout": "The model did not answer in time.",
    "model_unavailable": "The model provider could not be reached or could not answer.",
    "model_authentication_failed": "The model provider refused the credentials.",
    "model_bad_reply": "The model's reply could not be used.",
    "model_context_exceeded": "The conversation is longer than the model accepts.",
    "model_error": "The model request failed.",
    "model_not_configured": "The model is not configured.",
    "model_not_found": "The model provider does not know this model.",
    "model_provider_missing": "The model provider's package is not installed.",
    "model_quota_exceeded": "The model provider's quota is used up.",
    "model_request_invalid": "The request does not fit this model.",
    "model_request_refused": "The model provider refused the request.",
}
"""The sentence of every code a model adapter raises."""

TRANSIENT_CODES = frozenset({"model_rate_limited", "model_timeout", "model_unavailable"})
"""The codes of failures that may pass."""

_QUOTE_LIMIT = 500

_SECRETS = re.compile(
    r"""\bsk-[\w*.\-]{4,}                                             # OpenAI, Anthropic
      | \bAIza[\w\-]{10,}                                             # Google
      | \bBearer\s+[^\s"',;]+
      | (?:api[-_ ]?key|authorization|access[-_ ]?token|secret)["']?\s*[:=]\s*["']?(?:Bearer\s+)?[^\s"',;&]+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_REPLY_TEXT = re.compile(r",?\s*input_value=.*?(?=, input_type=|\]|$)", re.DOTALL)
"""Where pydantic quotes the value it could not validate: a model's own words."""


def scrubbed(text: str) -> str:
    """At most 500 characters of a provider's words on one line, without what looks like a key."""
    line = " ".join(clean_text(_REPLY_TEXT.sub("", text)).split())
    clean = _SECRETS.sub("[removed]", line)
    return clean if len(clean) <= _QUOTE_LIMIT else clean[: _QUOTE_LIMIT - 1] + "…"


def model_failure(
    code: str, model: str, words: str | None = None, *, retry_after_seconds: float | None = None
) -> ModelError:
    """The error of a code: transient when the code is, with the model and the scrubbed words as detail.

    Args:
        words: The provider's or the library's own words; quoted shortly.
        retry_after_seconds: How long the provider asked to wait; kept by transient errors only.
    """
    detail = f"{model}: {scrubbed(words)}" if words else model
    sentence = SENTENCES[code]
    if code in TRANSIENT_CODES:
        return TransientModelError(
            sentence, code=code, detail=detail, retry_after_seconds=retry_after_seconds
        )
    return ModelError(sentence, code=code, detail=detail)
