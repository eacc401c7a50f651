"""What must be true of a session after any crash: asserted from the witness and the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.fault.witness import Witness
from tests.support.waiting import poll_until

__all__ = ["Truth", "connect", "wait_for_end"]

_UNSAFE = frozenset({"charge", "chained"})
_OPEN = ("queued", "running", "suspended")


def connect(database_url: str, schema: str = "helix") -> psycopg.Connection[dict[str, Any]]:
    """A look at the rows."""
    return psycopg.connect(
        database_url, autocommit=True, row_factory=dict_row, options=f"-csearch_path={schema}"
    )


def wait_for_end(
    database_url: str,
    session_id: str,
    *,
    seconds: float = 30,
    schema: str = "helix",
    meanwhile: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """The session's last run once it has ended.

    Args:
        meanwhile: Called at every look; a supervisor that starts dead workers anew, for example.
    """
    with connect(database_url, schema) as rows:

        def ended() -> dict[str, Any] | None:
            run = rows.execute(
                "SELECT * FROM runs WHERE session_id = %s ORDER BY created_at DESC LIMIT 1", (session_id,)
            ).fetchone()
            if run is not None and run["status"] not in _OPEN:
                return run
            meanwhile()
            return None

        run = poll_until(ended, seconds=seconds)
    assert run is not None
    return run


@dataclass(frozen=True)
class Truth:
    """The invariants of one session whose runs have all ended."""

    database_url: str
    session_id: str
    witness: Witness
    schema: str = "helix"

    def calls(self) -> list[dict[str, Any]]:
        """Every call with its current answer, in order."""
        with connect(self.database_url, self.schema) as rows:
            return rows.execute(
                "SELECT c.*, a.outcome, a.reason, a.result, a.origin, a.n, a.generation AS answered_in"
                " FROM calls c"
                " LEFT JOIN answers a ON a.dispatch_id = c.dispatch_id AND a.superseded_by IS NULL"
                " WHERE c.session_id = %s ORDER BY c.step_index, c.call_index",
                (self.session_id,),
            ).fetchall()

    def numbered(self) -> dict[int, dict[str, Any]]:
        """Every call by its argument `n`, for scripts that give each call its own."""
        return {call["arguments"]["n"]: call for call in self.calls()}

    def holds(self, *, asked_again: frozenset[int] = frozenset(), asks: int = 2) -> None:
        """Assert every invariant.

        Args:
            asked_again: The steps whose save a crash forestalled, which may be asked for twice.
            asks: How often those may be asked for.
        """
        calls = self.calls()
        self._answered_once(calls)
        self._bodies_bounded(calls)
        self._order_kept(calls)
        self._asked_once(asked_again, asks)
        self._paired_in_history(calls)
        self._nothing_open()

    def _answered_once(self, calls: list[dict[str, Any]]) -> None:
        with connect(self.database_url, self.schema) as rows:
            counts = rows.execute(
                "SELECT c.dispatch_id, count(a.*) AS answers FROM calls c"
                " LEFT JOIN answers a USING (dispatch_id)"
                " WHERE c.session_id = %s GROUP BY 1",
                (self.session_id,),
            ).fetchall()
        assert {row["answers"] for row in counts} == {1}, counts
        assert all(call["state"] == "answered" for call in calls), calls

    def _bodies_bounded(self, calls: list[dict[str, Any]]) -> None:
        seen = self.witness.bodies(self.session_id)
        assert set(seen) <= {call["dispatch_id"] for call in calls}, "a body ran for an unsaved call"
        for call in calls:
            bodies = seen[call["dispatch_id"]]
            assert bodies <= (1 if call["replay"] == "unsafe" else 3), call
            assert bodies <= call["bodies"], "a body started that no committed row announced"
            if call["outcome"] == "returned":
                assert call["result"] == f"{call['tool_name']} {call['arguments']['n']}", call
                assert bodies >= 1, f"a result without a body: {call}"
            if call["outcome"] in ("returned", "raised") and call["bodies"] > 0:
                assert call["answered_in"] == call["generation"], f"a stale body's answer: {call}"
            if call["bodies"] == 0:
                assert call["outcome"] == "not_executed", call

    def _order_kept(self, calls: list[dict[str, Any]]) -> None:
        """Nothing started behind a call before its answer, nor at all behind doubt."""
        for behind in calls:
            for ahead in calls:
                if not _is_behind(behind, ahead):
                    continue
                if ahead["reason"] in ("outcome_unknown", "replay_limit_reached"):
                    assert behind["reason"] == "outcome_unknown", (ahead, behind)
                starts = self.witness.events("start", dispatch_id=behind["dispatch_id"])
                # The last claim's body is the one whose answer counts; an earlier one, of a process
                # that was frozen and lost the run, may end whenever it thaws.
                attempt = ahead["bodies"]
                ends = self.witness.events("end", dispatch_id=ahead["dispatch_id"], attempt=attempt)
                if starts and ends:
                    began, ended = min(start.at for start in starts), max(end.at for end in ends)
                    assert began >= ended, f"started {ended - began} s too early: {behind}, behind {ahead}"
                started_first = starts and not ends and ahead["bodies"] > 0
                assert not started_first, f"started without the one ahead: {behind}, behind {ahead}"

    def _asked_once(self, asked_again: frozenset[int], at_most: int) -> None:
        asks = self.witness.asks(self.session_id)
        too_often = {step for step, count in asks.items() if count > 1}
        assert too_often <= asked_again, f"asked twice for a saved step: {asks}"
        assert all(count <= at_most for count in asks.values()), asks

    def _paired_in_history(self, calls: list[dict[str, Any]]) -> None:
        # By step, not by time: a process that was frozen may ask for an earlier step after all others.
        last = max(self.witness.events("ask", session_id=self.session_id), key=lambda ask: ask.step)
        wanted = Counter(call["tool_call_id"] for call in calls)
        assert Counter(last.answered) == wanted, f"the model was shown {last.answered}, not {wanted}"

    def _nothing_open(self) -> None:
        """No engine row of the session's runs is left open, at the latest after the next sweeps."""
        with connect(self.database_url, self.schema) as rows:

            def none_left() -> bool:
                return not rows.execute(
                    "SELECT w.workflow_uuid, w.status FROM dbos.workflow_status w JOIN runs r"
                    " ON r.run_id = split_part(w.workflow_uuid, ':', 2) WHERE r.session_id = %s"
                    " AND w.status NOT IN ('SUCCESS', 'CANCELLED')",
                    (self.session_id,),
                ).fetchall()

            poll_until(none_left)


def _is_behind(behind: dict[str, Any], ahead: dict[str, Any]) -> bool:
    if behind["step_index"] != ahead["step_index"] or ahead["call_index"] >= behind["call_index"]:
        return False
    group = ahead["concurrency_group"]
    grouped = group is not None and group == behind["concurrency_group"]
    return grouped or (ahead["sequential"] and behind["sequential"])
