"""`helix-dbos demo`: a real kill, every promise kept, nothing left behind, under 30 seconds."""

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.acceptance.cli_processes import cli_in

PROMISES = 8


@pytest.fixture
def folder():
    # Not a temporary folder of pytest's: those are closed to root's server account.
    with tempfile.TemporaryDirectory(prefix="helix-demo-test-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process that names this folder: a worker by its environment, a server by its command."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            told = " ".join([*process.cmdline(), *process.environ().values()])
        except psutil.Error:
            continue
        if str(folder) in told and process.pid != os.getpid():
            found.append(process)
    return found


def row(stdout: str, step: int, tool: str) -> list[str]:
    line = next(line for line in stdout.splitlines() if line.startswith(f"{step} ") and f" {tool} " in line)
    return re.split(r"\s{2,}", line.strip())


def check_story(finished: subprocess.CompletedProcess[str]) -> None:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    out = finished.stdout
    assert "killed by signal 9" in out
    assert row(out, 0, "issue_refund")[2:5] == ["unsafe", "A killed", "outcome_unknown"]
    assert row(out, 0, "mail_receipt")[2:5] == ["unsafe", "0", "outcome_unknown"]
    assert row(out, 0, "set_preference")[2:5] == ["safe", "A killed, B", "returned"]
    assert row(out, 0, "write_ledger")[2:5] == ["safe", "A killed, B", "returned"]
    assert row(out, 0, "notify_finance")[2:5] == ["unsafe", "B", "returned"]
    assert row(out, 1, "look_up_order")[2:5] == ["safe", "B", "returned"]
    assert row(out, 2, "mail_receipt")[2:5] == ["unsafe", "B", "returned"]
    assert out.count("✓ kept") == PROMISES
    assert f"All {PROMISES} promises kept." in out
    assert max(len(line) for line in out.splitlines()) <= 100
    assert "\x1b" not in out


def test_offline_in_an_embedded_database_under_30_seconds(tmp_path, folder):
    with cli_in(tmp_path, TMPDIR=str(folder)) as cli:
        started = time.monotonic()
        finished = cli.run("demo")
        assert time.monotonic() - started < 30
    check_story(finished)
    assert list(folder.iterdir()) == []
    assert processes_of(folder) == []


def test_in_a_given_database_it_leaves_no_schema(tmp_path, folder, empty_database_url):
    with cli_in(tmp_path, TMPDIR=str(folder), HELIX_DATABASE_URL=empty_database_url) as cli:
        check_story(cli.run("demo"))
    with psycopg.connect(empty_database_url) as connection:
        left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'helix%'").fetchall()
    assert left == []
    assert list(folder.iterdir()) == []


def test_interrupted_it_takes_everything_down(tmp_path, folder, empty_database_url):
    with cli_in(tmp_path, TMPDIR=str(folder), HELIX_DATABASE_URL=empty_database_url) as cli:
        demo = cli.start("demo", log="demo.log")
        cli.wait_for(lambda: "is inside" in cli.text("demo.log"), "the first worker")
        workers = processes_of(folder)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 130
        assert all(not worker.is_running() for worker in workers)
        assert list(folder.iterdir()) == []


def test_workers_end_when_the_demo_is_killed(tmp_path, folder, empty_database_url):
    with cli_in(tmp_path, TMPDIR=str(folder), HELIX_DATABASE_URL=empty_database_url) as cli:
        demo = cli.start("demo", log="demo.log")
        cli.wait_for(lambda: "is inside" in cli.text("demo.log"), "the first worker")
        workers = [process for process in processes_of(folder) if process.pid != demo.pid]
        try:
            demo.kill()
            demo.wait()
            _, alive = psutil.wait_procs(workers, timeout=20)
            assert workers
            assert alive == []
        finally:
            for worker in workers:
                if worker.is_running():
                    worker.kill()


def test_a_model_that_is_not_configured(tmp_path, folder, empty_database_url):
    with cli_in(tmp_path, TMPDIR=str(folder), HELIX_DATABASE_URL=empty_database_url) as cli:
        cli.environment.pop("OPENAI_API_KEY", None)
        finished = cli.run("demo", "--model", "openai:gpt-5")
        assert finished.returncode == 1
        assert "model_not_configured" in finished.stderr
        assert "model_provider" not in finished.stdout
        assert "definition_error" in cli.run("demo", "--model", "nonsense").stderr
