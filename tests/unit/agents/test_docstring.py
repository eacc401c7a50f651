"""Descriptions from docstrings of three styles, without a word in the user's log."""

from __future__ import annotations

import logging

import pytest

from helix_dbos.agents.docstring import DocText, read_docstring

GOOGLE = """Set a preference.

Steps:
    - look
    - write

Args:
    key: Which one.
    value (int): What for,
        in full.

Returns:
    Nothing.
"""

NUMPY = """Set a preference.

Parameters
----------
key : str
    Which one.
value
    What for.
"""

SPHINX = """Set a preference.

:param key: Which one.
:param int value: What for.
:returns: Nothing.
"""


@pytest.mark.parametrize(
    ("text", "description", "value"),
    [
        (GOOGLE, "Set a preference.\n\nSteps:\n- look\n- write", "What for,\nin full."),
        (NUMPY, "Set a preference.", "What for."),
        (SPHINX, "Set a preference.", "What for."),
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_description_and_parameters(text, description, value):
    found = read_docstring(text)
    assert found.description == description
    assert found.parameters == {"key": "Which one.", "value": value}


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_no_docstring_says_nothing(text):
    assert read_docstring(text) == DocText("", {})


def test_an_odd_docstring_is_prose_and_logs_nothing(caplog):
    caplog.set_level(logging.DEBUG)
    odd = "Do it.\n\nArgs:\n    no colon here\n    : empty\n\n:param\n"
    assert "Do it." in read_docstring(odd).description
    assert read_docstring("Just: words").description == "Just: words"
    assert caplog.records == []


def test_a_docstring_that_griffe_cannot_read_is_prose(monkeypatch):
    def broken(*_args, **_kwargs):
        raise ValueError("no")

    monkeypatch.setattr("helix_dbos.agents.docstring.parse_auto", broken)
    assert read_docstring("Do it.\n\n  Args: x") == DocText("Do it.\n\nArgs: x", {})
