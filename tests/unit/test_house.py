"""What holds for the checkout as a whole: pins, public names, docstrings, nothing of our machines in it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import helix_dbos

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PACKAGE_FILES = sorted((CHECKOUT / "helix_dbos").rglob("*.py"))

UNWANTED = {
    "a folder of one machine": r"(?<![\w.~}-])/(?:tmp|root|work|farm|home/\w+|Users/\w+)(?![\w-])",
    "an unfinished place": r"\b(?:TODO|FIXME|XXX)\b",
    "an issue number": r"(?:(?<![\w&/#])#|\b[Ii]ssue |\bPR )\d+\b",
    "a package registry": r"\b(?:py(?:pi|thonhosted)|npmjs)\.(?:org|com)\b",
    "a download": r"\bgit\+|https?://\S+\.(?:whl|zip|tar|t?gz|deb|git|sh)\b",
}

# The one folder that is meant: the socket of an embedded server whose own folder has too long a path.
MEANT = {("helix_dbos/embedded/places.py", "/tmp")}


def tracked_files() -> list[Path]:
    """Every file that git knows or would, but this one; without git, every file that is not hidden."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=True, text=True).stdout
        files = [CHECKOUT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        visible = (path for path in CHECKOUT.rglob("*") if not hidden(path))
        files = [path for path in visible if path.suffix != ".pyc"]
    return [file for file in files if file.is_file() and file != Path(__file__)]


def hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(CHECKOUT).parts)


@pytest.mark.parametrize("what", UNWANTED)
def test_no_file_holds(what: str):
    found = []
    for file in tracked_files():
        name = file.relative_to(CHECKOUT).as_posix()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            hits = [hit[0] for hit in re.finditer(UNWANTED[what], line) if (name, hit[0]) not in MEANT]
            found += [f"{name}:{number}: {hit}" for hit in hits]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a folder of one machine", "in /tmp/x"),
        ("a folder of one machine", '"/work"'),
        ("an unfinished place", "# TODO: this"),
        ("an issue number", "see #12"),
        ("a package registry", "files." + "python" + "hosted.org"),
        ("a download", "https://example.com/a-1.0.tar.gz"),
    ],
)
def test_unwanted_is_seen(what: str, line: str):
    assert re.search(UNWANTED[what], line)


@pytest.mark.parametrize(
    "line", ["docs/work/x", "{home}/work", "/workers/3", "order 7", "https://example.com/a"]
)
def test_the_rest_is_let_pass(line: str):
    assert not [what for what, pattern in UNWANTED.items() if re.search(pattern, line)]


def test_pins_are_plain_and_complete():
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line)]
    pinned = {normal(line.partition("==")[0]) for line in lines}
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), *groups.values()]
    named = [requirement for some in [*lists, PROJECT["build-system"]["requires"]] for requirement in some]
    assert {normal(re.split(r"[\[<>=~!; ]", requirement)[0]) for requirement in named} <= pinned


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_public_names_are_sorted_and_there():
    assert helix_dbos.__all__ == sorted(helix_dbos.__all__)
    assert not [name for name in helix_dbos.__all__ if not hasattr(helix_dbos, name)]
    assert not [name for name in helix_dbos.__all__ if not getattr(helix_dbos, name).__doc__]


def test_version_is_the_installed_one():
    assert importlib.metadata.version("helix-dbos") == PROJECT["project"]["version"]


@pytest.mark.parametrize("file", PACKAGE_FILES, ids=lambda file: str(file.relative_to(CHECKOUT)))
def test_module_says_what_it_is_about(file: Path):
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
