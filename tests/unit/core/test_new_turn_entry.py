"""The first row of section 8: what becomes of a new turn."""

from __future__ import annotations

import pytest

from helix_dbos.core.entry import EntryDecision, decide_new_turn
from helix_dbos.core.states import OPEN_RUN, RunStatus


@pytest.mark.parametrize("status", [None, *sorted(set(RunStatus) - OPEN_RUN)])
def test_an_idle_session_starts_the_turn(status):
    assert decide_new_turn(status) is EntryDecision.START


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.RUNNING])
def test_a_running_session_is_busy(status):
    assert decide_new_turn(status) is EntryDecision.BUSY


def test_open_runs_are_those_that_the_partial_unique_index_counts():
    assert {"queued", "running", "suspended"} == OPEN_RUN
