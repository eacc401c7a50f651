"""Runs every subject in every cell, in interleaved rounds, and prints medians and ratios."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from benchmarks.subjects import SUBJECTS, Cell, Measured
from helix_dbos.embedded import temporary_server
from helix_dbos.engine.dbos_engine import migrate_dbos
from helix_dbos.store.migration import apply_migrations

CELLS = [Cell(calls, concurrency, turns=0) for calls in (1, 5) for concurrency in (1, 16)]
BASE = "plain-dbos"


@contextmanager
def database() -> Iterator[str]:
    """One Postgres for the whole run: the given one, else a throwaway embedded one."""
    given = os.environ.get("HELIX_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with temporary_server() as server:
        yield server.url


def measure(name: str, url: str, cell: Cell) -> Measured:
    """One subject in one cell, in a fresh process that ends by itself."""
    command = [sys.executable, "-m", "benchmarks.subjects", name, url, json.dumps(asdict(cell))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def median(rounds: list[Measured]) -> Measured:
    """The median of each figure over the rounds."""
    return Measured(
        statistics.median(each.turns_per_second for each in rounds),
        statistics.median(each.p50_ms for each in rounds),
        statistics.median(each.cpu_ms_per_turn for each in rounds),
    )


def run(rounds: int, turns: int, subjects: list[str]) -> None:
    """Measure in interleaved rounds, so that a noisy moment hits every subject alike."""
    console = Console(width=110)
    with database() as url:
        migrate_dbos(url, "dbos")
        apply_migrations(url, "helix")
        for cell in CELLS:
            sized = Cell(cell.calls, cell.concurrency, turns if cell.concurrency == 1 else turns * 4)
            seen: dict[str, list[Measured]] = {name: [] for name in subjects}
            for _ in range(rounds):
                for name in subjects:
                    seen[name].append(measure(name, url, sized))
            console.print(_table(sized, {name: median(each) for name, each in seen.items()}))


def _table(cell: Cell, medians: dict[str, Measured]) -> Table:
    table = Table(title=f"K = {cell.calls} calls, concurrency {cell.concurrency}, {cell.turns} turns")
    for heading in ("subject", "turns/s", f"ratio to {BASE}", "p50 ms", "client CPU ms per turn"):
        table.add_column(heading, justify="left" if heading == "subject" else "right")
    base = medians[BASE].turns_per_second
    for name, each in medians.items():
        table.add_row(
            name,
            f"{each.turns_per_second:.1f}",
            f"{each.turns_per_second / base:.2f}",
            f"{each.p50_ms:.1f}",
            f"{each.cpu_ms_per_turn:.1f}",
        )
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--turns", type=int, default=60, help="turns per cell at concurrency 1; four times at 16"
    )
    chosen = parser.parse_args()
    run(chosen.rounds, chosen.turns, list(SUBJECTS))
