"""`helix-dbos run`: one turn from the command line."""

import json
import tempfile
from pathlib import Path

import pytest

from tests.acceptance.cli_processes import cli_in


@pytest.fixture
def cli(tmp_path: Path, database_url: str):
    with cli_in(tmp_path, HELIX_DATABASE_URL=database_url) as opened:
        yield opened


def test_the_output_is_printed_as_it_is(cli):
    finished = cli.run("run", "cli_app:helix", "hello")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[0] == "You said [b]hello[/b]."
    assert "completed: 1 steps" in finished.stdout


def test_calls_are_listed(cli):
    (cli.folder / "a.go").touch()
    finished = cli.run("run", "cli_app:helix", "hold")
    assert finished.returncode == 0, finished.stderr
    row = next(line for line in finished.stdout.splitlines() if line.startswith("hold"))
    assert row.split() == ["hold", "unsafe", "1", "returned", '"held"']


def test_json_is_the_whole_outcome(cli):
    (cli.folder / "a.go").touch()
    command = ("run", "cli_app:helix", "hold", "--session", "s-1", "--request-key", "k-1", "--user", "u-1")
    finished = cli.run(*command, "--json")
    assert finished.returncode == 0, finished.stderr
    outcome = json.loads(finished.stdout)
    assert set(outcome) == {
        *("run_id", "session_id", "status", "output", "error", "usage", "steps", "rescues", "calls")
    }
    assert (outcome["status"], outcome["session_id"], outcome["error"]) == ("completed", "s-1", None)
    (made,) = outcome["calls"]
    assert (made["tool_name"], made["arguments"], made["bodies"]) == ("hold", {"name": "a"}, 1)
    assert (made["outcome"], made["reason"], made["result"]) == ("returned", None, "held")

    again = json.loads(cli.run(*command, "--json").stdout)
    assert again["run_id"] == outcome["run_id"]


def test_a_failed_run_ends_with_1(cli):
    finished = cli.run("run", "cli_app:helix", "fail")
    assert finished.returncode == 1
    assert "failed: The model is out of order." in finished.stdout
    as_json = cli.run("run", "cli_app:helix", "fail", "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["error"]["code"] == "model_error"


def test_the_agent_must_be_named_when_there_are_several(cli):
    finished = cli.run("run", "cli_app:two", "hello")
    assert finished.returncode == 1
    assert "desk, spare" in finished.stderr
    assert cli.run("run", "cli_app:two", "hello", "--agent", "spare").returncode == 0
    assert "agent_unknown" in cli.run("run", "cli_app:two", "hello", "--agent", "nobody").stderr


def test_another_apps_schema_is_refused(cli):
    assert cli.run("run", "cli_app:helix", "hello").returncode == 0
    finished = cli.run("run", "cli_app:other", "hello")
    assert finished.returncode == 1
    assert "store_schema_taken" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_without_a_url_the_embedded_database_is_used(tmp_path):
    with tempfile.TemporaryDirectory(prefix="helix-run-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        with cli_in(tmp_path, HELIX_DATA_DIR=f"{made}/data") as cli:
            finished = cli.run("run", "cli_app:helix", "hello")
            assert finished.returncode == 0, finished.stderr
            assert "You said" in finished.stdout
