"""What holds for the checkout as a whole: its pins, its public names, its wheel, and nothing of our machines."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import helix_dbos

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PACKAGE_FILES = sorted((CHECKOUT / "helix_dbos").rglob("*.py"))

# Written so that this file does not match itself.
UNWANTED = {
    "a folder of one machine": r"(?<![\w.~}-])/(?:tmp|root|work|farm|home/\w+|Users/\w+)(?![\w-])",
    "an unfinished place": r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b",
    "an issue number": r"(?:(?<![\w&/#])#|\b[Ii]ssue |\bPR )\d+\b",
    "a package registry": r"\b(?:pypi|npmjs|pythonhosted)\.(?:org|com)\b",
    "an address outside": r"https?://(?!(?:127\.0\.0\.1|localhost|\[::1\]|(?:[\w-]+\.)*example(?:\.\w+)?)(?![\w.-]))",
}

# The one folder that is meant: the socket of an embedded server whose own folder has too long a path.
MEANT = {("helix_dbos/embedded/places.py", "/tmp")}


def tracked_files() -> list[Path]:
    """Every file that git knows or would; in a copy without git, every file that is not hidden."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=True, text=True).stdout
        files = [CHECKOUT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        visible = (path for path in CHECKOUT.rglob("*") if not hidden(path))
        files = [path for path in visible if path.suffix != ".pyc"]
    return [file for file in files if file.is_file()]


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


def test_the_checks_see_what_they_look_for():
    seen = {
        "a folder of one machine": ["in /tmp/x", '"/work"', "(/root/.venv)"],
        "an unfinished place": ["# TODO: this"],
        "an issue number": ["see #12", "issue 7"],
        "a package registry": ["files.pythonhosted.org"],
        "an address outside": ["https://example.com.evil.net/a", "http://10.0.0.1/"],
    }
    for what, lines in seen.items():
        assert all(re.search(UNWANTED[what], line) for line in lines), what
    passed = [
        "docs/work/x",
        "{home}/work",
        "a framework",
        "/workers/3",
        "https://example.com/a",
        "http://127.0.0.1:{port}",
    ]
    assert not [(what, line) for what in UNWANTED for line in passed if re.search(UNWANTED[what], line)]


def test_pins_are_plain_and_complete():
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line)]
    pinned = {normal(line.partition("==")[0]) for line in lines}
    groups = [*PROJECT["dependency-groups"].values(), *PROJECT["project"]["optional-dependencies"].values()]
    named = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"], *sum(groups, [])]
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


def test_wheel_holds_the_package_and_its_migrations(tmp_path: Path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True, timeout=60)
    [wheel] = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    revisions = {path.name for path in (CHECKOUT / "migrations" / "versions").glob("*.py")}

    assert {"helix_dbos/py.typed", "helix_dbos/_migrations/env.py"} <= held
    assert {f"helix_dbos/_migrations/versions/{name}" for name in revisions} <= held
    assert {file.relative_to(CHECKOUT).as_posix() for file in PACKAGE_FILES} <= held
    assert not [name for name in held if not name.startswith(("helix_dbos/", "helix_dbos-"))]
    assert not [name for name in held if name.endswith(".pyc")]
