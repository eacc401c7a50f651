"""The sentences for the model: one for every reason, short, and saying what to do."""

from __future__ import annotations

import pytest

from helix_dbos.core.states import Origin, Outcome, Reason
from helix_dbos.core.texts import TEXTS, not_executed, raised


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_short_sentence_of_its_own(reason):
    sentence = TEXTS[reason]
    assert 20 < len(sentence) < 220
    assert sentence == sentence.strip()
    assert sentence.endswith(".")
    assert list(TEXTS.values()).count(sentence) == 1


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (Reason.OUTCOME_UNKNOWN, "the tool may have run"),
        (Reason.OUTCOME_UNKNOWN, "Check whether it took effect before repeating it"),
        (Reason.REPLAY_LIMIT_REACHED, "It will not be run again automatically"),
        (Reason.RUN_STOPPED, "The run was stopped"),
        (Reason.APPROVAL_DENIED, "It was not run"),
        (Reason.INVALID_ARGUMENTS, "It was not run"),
        (Reason.UNKNOWN_TOOL, "Nothing was run"),
        (Reason.TOOL_FAILED, "may have had part of its effect"),
        (Reason.TIMED_OUT, "may have had some effect"),
        (Reason.RESULT_NOT_STORABLE, "Do not repeat it"),
    ],
)
def test_sentences_say_whether_it_ran_and_what_to_do(reason, says):
    assert says in TEXTS[reason]


@pytest.mark.parametrize("reason", list(Reason))
def test_not_executed_says_the_sentence_and_the_detail(reason):
    plain = not_executed(reason, Origin.RECOVERY)
    assert (plain.outcome, plain.reason, plain.result) == (Outcome.NOT_EXECUTED, reason, TEXTS[reason])
    assert plain.origin is Origin.RECOVERY
    detailed = not_executed(reason, Origin.STOP, "n: required")
    assert detailed.result == f"{TEXTS[reason]} n: required"
    assert detailed.origin is Origin.STOP


def test_a_tool_error_gives_its_own_text_and_any_other_failure_a_generic_sentence():
    said = raised(Reason.TOOL_ERROR, "No order 7.")
    assert (said.outcome, said.result, said.origin) == (Outcome.RAISED, "No order 7.", Origin.BODY)
    assert raised(Reason.TOOL_FAILED).result == TEXTS[Reason.TOOL_FAILED]
    assert raised(Reason.TOOL_ERROR, "").result == TEXTS[Reason.TOOL_ERROR]


@pytest.mark.parametrize("reason", list(Reason))
def test_only_two_reasons_put_the_calls_behind_in_doubt(reason):
    expected = reason in ("outcome_unknown", "replay_limit_reached")
    assert not_executed(reason, Origin.BODY).doubtful is expected
