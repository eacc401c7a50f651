"""The wheel carries its migrations and applies them, away from any checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helix_dbos.store.migration import require_head

ROOT = Path(__file__).parents[2]
REVISIONS = sorted(file.name for file in (ROOT / "migrations" / "versions").glob("*.py"))

MIGRATE = """
import sys
from pathlib import Path
import helix_dbos
from helix_dbos.store.migration import apply_migrations
assert Path(helix_dbos.__file__).is_relative_to(sys.argv[1]), helix_dbos.__file__
apply_migrations(sys.argv[2], "helix")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build must not race whoever edits the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("helix_dbos", "migrations"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return next(out.glob("*.whl"))


def test_the_wheel_ships_every_revision(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert "helix_dbos/_migrations/env.py" in names
    assert "helix_dbos/py.typed" in names
    shipped = [Path(name).name for name in names if name.startswith("helix_dbos/_migrations/versions/")]
    assert sorted(shipped) == REVISIONS
    assert "0001_heart.py" in REVISIONS
    assert not [name for name in names if name.startswith(("migrations/", "tests/"))]


def test_migrations_apply_from_an_unpacked_wheel(wheel: Path, tmp_path: Path, empty_database_url: str):
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", MIGRATE, str(tmp_path), empty_database_url],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    require_head(empty_database_url, "helix")
