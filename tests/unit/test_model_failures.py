"""What is said about a failed request: one sentence per code, and nothing secret."""

from __future__ import annotations

import pickle

import pytest

from helix_dbos.errors import ModelError
from helix_dbos.models.failures import SENTENCES, TRANSIENT_CODES, model_failure, scrubbed
from helix_dbos.models.port import TransientModelError


@pytest.mark.parametrize("code", sorted(SENTENCES))
def test_a_code_decides_whether_the_request_is_repeated(code: str):
    failure = model_failure(code, "openai:gpt-5", "words", retry_after_seconds=2.0)
    assert (failure.code, failure.detail) == (code, "openai:gpt-5: words")
    assert isinstance(failure, TransientModelError) is (code in TRANSIENT_CODES)
    if isinstance(failure, TransientModelError):
        assert failure.retry_after_seconds == 2.0


def test_without_words_the_detail_is_the_model():
    assert model_failure("model_error", "openai:gpt-5").detail == "openai:gpt-5"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-AbC_123-xyz",
        "sk-ant-api03-abcdef",
        "sk-ab***************wxyz",
        "Bearer eyJhbGciOi.J9",
        "AIzaSyA-1234567890",
        "api_key=topsecret",
        'x-api-key: "topsecret"',
        "Authorization: Bearer topsecret",
        "https://example.com/v1?api-key=topsecret&x=1",
    ],
)
def test_what_looks_like_a_key_is_taken_out(secret: str):
    clean = scrubbed(f"before {secret} after")
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "[removed]" in clean
    for hidden in ("topsecret", "AbC_123", "ant-api03", "wxyz", "eyJhbGciOi", "SyA-1234"):
        assert hidden not in clean


def test_the_quote_is_short_clean_and_on_one_line():
    assert scrubbed("a\n\n b\x00\tc") == "a b\ufffd c"
    assert len(scrubbed("word " * 1_000)) == 500
    assert scrubbed("task-force risk-free desk-top") == "task-force risk-free desk-top"


def test_a_value_that_failed_validation_is_not_quoted():
    words = "choices.0\n  Input should be a str [type=str, input_value='my, secret', input_type=int]"
    assert scrubbed(words) == "choices.0 Input should be a str [type=str, input_type=int]"


def test_transient_errors_pickle_with_their_wait():
    failure = model_failure("model_rate_limited", "m", "w", retry_after_seconds=1.5)
    copied = pickle.loads(pickle.dumps(failure))
    assert isinstance(copied, TransientModelError)
    assert (copied.code, copied.detail, copied.retry_after_seconds) == ("model_rate_limited", "m: w", 1.5)
    assert isinstance(copied, ModelError)
