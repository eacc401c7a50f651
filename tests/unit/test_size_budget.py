"""Small files, small functions, and names that say what a module is about."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "helix_dbos"
FILES = sorted(PACKAGE.rglob("*.py"))
SAYS_NOTHING = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_file_and_function_sizes(file: Path):
    source = file.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 600
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            assert (node.end_lineno or first) - first < 80, f"{node.name} is over 80 lines"


def test_module_names_say_something():
    named = {part for file in FILES for part in file.relative_to(PACKAGE).with_suffix("").parts}
    assert not named & SAYS_NOTHING
    assert "core" in named
