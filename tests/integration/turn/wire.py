"""Counts what really travels to Postgres: statements, commits and round trips, phase by phase."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from helix_dbos.faults import FaultPoint
from tests.support.proxy import DatabaseProxy

__all__ = ["Cost", "Meter", "Phases"]

_TRANSACTION = frozenset({"BEGIN", "COMMIT", "ROLLBACK"})


class Cost(NamedTuple):
    """What something took: SQL statements, transactions that ended in a commit, round trips.

    Args:
        transactions: COMMIT commands; a statement outside of BEGIN and COMMIT is one of its own.
    """

    statements: float = 0
    transactions: float = 0
    round_trips: float = 0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.statements - other.statements,
            self.transactions - other.transactions,
            self.round_trips - other.round_trips,
        )


class Meter:
    """Reads the server's answers as they pass a proxy. For one connection that is used in turn."""

    def __init__(self, proxy: DatabaseProxy) -> None:
        self._proxy = proxy
        self._buffer = b""
        self._tags: Counter[str] = Counter()
        self._open, self._alone = False, 0
        proxy.rewrite_reply = self._read

    def now(self) -> Cost:
        statements = sum(count for tag, count in self._tags.items() if tag not in _TRANSACTION)
        return Cost(statements, self._tags["COMMIT"] + self._alone, self._proxy.round_trips)

    def _read(self, data: bytes) -> bytes:
        self._buffer += data
        while len(self._buffer) >= 5:
            (length,) = struct.unpack("!I", self._buffer[1:5])
            if len(self._buffer) < length + 1:
                break
            kind, body = self._buffer[:1], self._buffer[5 : length + 1]
            self._buffer = self._buffer[length + 1 :]
            if kind == b"C":
                self._completed(body.rstrip(b"\x00").decode().split(" ")[0])
        return data

    def _completed(self, tag: str) -> None:
        self._tags[tag] += 1
        if tag in _TRANSACTION:
            self._open = tag == "BEGIN"
        elif not self._open:
            self._alone += 1


@dataclass
class Phases:
    """Takes a reading at every fault point; the phases lie between two of them."""

    meter: Meter
    readings: list[tuple[FaultPoint | None, Cost]] = field(default_factory=list)

    def begin(self) -> None:
        self.readings = [(None, self.meter.now())]

    def reach(self, point: FaultPoint, _about: str) -> None:
        self.readings.append((point, self.meter.now()))

    def between(self, before: FaultPoint | None, after: FaultPoint) -> list[Cost]:
        """The cost of every stretch from a `before` to the next `after`, in order."""
        costs: list[Cost] = []
        started: Cost | None = None
        for point, reading in self.readings:
            if point is before:
                started = reading
            elif point is after and started is not None:
                costs.append(reading - started)
                started = None
        return costs
