"""Usage limits: what may be used is used up to the limit, and not beyond."""

from __future__ import annotations

import pytest

from helix_dbos.agents import UsageLimits
from helix_dbos.core.messages import Usage
from helix_dbos.errors import DefinitionError

USAGE = Usage(requests=3, input_tokens=10, output_tokens=20)


@pytest.mark.parametrize(
    "limits",
    [
        UsageLimits(),
        UsageLimits(requests=3),
        UsageLimits(input_tokens=10, output_tokens=20),
        UsageLimits(total_tokens=30),
    ],
)
def test_up_to_the_limit_nothing_is_exceeded(limits):
    assert limits.exceeded_by(USAGE) is None


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (UsageLimits(requests=2), "The run used 3 requests; its limit is 2."),
        (UsageLimits(input_tokens=9), "The run used 10 input tokens; its limit is 9."),
        (UsageLimits(output_tokens=19), "The run used 20 output tokens; its limit is 19."),
        (UsageLimits(total_tokens=29), "The run used 30 total tokens; its limit is 29."),
    ],
)
def test_beyond_it_the_limit_is_named(limits, sentence):
    assert limits.exceeded_by(USAGE) == sentence


@pytest.mark.parametrize("name", ["requests", "input_tokens", "output_tokens", "total_tokens"])
def test_a_limit_is_at_least_one(name):
    assert UsageLimits(**{name: 1}) is not None
    with pytest.raises(DefinitionError, match=name):
        UsageLimits(**{name: 0})
