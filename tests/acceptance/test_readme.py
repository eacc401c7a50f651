"""What the README shows is true: its agent runs, and the settings and sentences it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from helix_dbos import Settings
from helix_dbos.core.states import Reason

README = (Path(__file__).parents[2] / "README.md").read_text()

SCRIPT = """
from helix_dbos.testing import ScriptedModel, call, say
scripted = ScriptedModel([call("set_preference", {"key": "theme", "value": "dark"}), say("Dark it is.")])
"""


def test_the_agent_of_the_readme_runs(database_url: str, tmp_path: Path) -> None:
    shown = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len(shown.strip().splitlines()) <= 30
    app = tmp_path / "app.py"
    app.write_text(SCRIPT + shown.replace('"openai:gpt-5-mini"', "scripted"))
    environment = {**os.environ, "HELIX_DATABASE_URL": database_url}
    done = subprocess.run(
        [sys.executable, str(app)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Dark it is." in done.stdout
    assert "set_preference" in done.stdout
    assert "returned" in done.stdout


def test_every_setting_of_the_readme_exists() -> None:
    shown = set(re.findall(r"`HELIX_([A-Z_]+)`", README)) - {"TEST_DATABASE_URL"}
    known = {name.upper() for name in Settings.model_fields} - {"SCHEMA_NAME"} | {"SCHEMA"}
    assert shown == known


def test_the_reasons_of_the_readme_exist() -> None:
    for shown in ("outcome_unknown", "replay_limit_reached"):
        assert f"`{shown}`" in README
        assert Reason(shown)
