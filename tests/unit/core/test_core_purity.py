"""The core decides and does nothing else: no clock, no chance, no connection, nothing of ours."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parents[3] / "helix_dbos" / "core"
FILES = sorted(CORE.rglob("*.py"))

ALLOWED = (sys.stdlib_module_names - {
    "asyncio", "logging", "os", "random", "secrets", "socket", "sqlite3",
    "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}) | {"pydantic", "pydantic_core"}  # fmt: skip
BANNED_NAMES = {
    "now", "utcnow", "today", "time", "monotonic", "perf_counter", "sleep",
    "uuid1", "uuid4", "uuid7", "random", "urandom", "open", "print", "Any",
}  # fmt: skip


def impure(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=module, level=level, names=names):
                modules = [module if module and not level else "a relative import"]
                yield from (alias.name for alias in names if alias.name in BANNED_NAMES)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                modules = []
                if name in BANNED_NAMES:
                    yield name
            case _:
                modules = []
        for module in modules:
            ours = module == "helix_dbos.core" or module.startswith("helix_dbos.core.")
            if not ours and module.split(".")[0] not in ALLOWED:
                yield module


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_core_is_pure(file: Path):
    assert list(impure(file.read_text(encoding="utf-8"))) == []


def test_the_whole_core_is_looked_at():
    assert {"recovery.py", "reply.py", "order.py", "storable.py"} <= {file.name for file in FILES}


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "from time import time",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.utcnow()",
        "from uuid import uuid4",
        "import helix_dbos.store",
        "from helix_dbos import ids",
        "from helix_dbos.corers import x",
        "from . import ids",
        "import dbos",
        "def f():\n    import psycopg",
        "open('x')",
        "from typing import Any",
    ],
)
def test_impure_code_would_be_found(source):
    assert list(impure(source))
