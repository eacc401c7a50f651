"""`helix-dbos worker`: carries turns, drains on SIGTERM, logs one JSON object per line."""

import json
import signal

import pytest

from tests.acceptance.cli_processes import DEADLINE_SECONDS, cli_in, findings


@pytest.fixture
def cli(tmp_path, empty_database_url):
    with cli_in(tmp_path, HELIX_DATABASE_URL=empty_database_url) as opened:
        yield opened


def test_migrate_then_worker_then_a_turn_from_another_process(cli):
    refused = cli.run("worker", "cli_app:helix")
    assert refused.returncode == 1
    assert "helix-dbos migrate" in refused.stderr
    assert cli.run("migrate").returncode == 0
    worker = cli.worker()
    finished = cli.run("run", "cli_app:client", "hello", "--json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["output"] == "You said [b]hello[/b]."
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE_SECONDS) == 0
    assert cli.events("worker.log") == ["worker_ready", "worker_draining", "worker_stopped"]
    assert "hello" not in cli.text("worker.log")


def test_sigterm_lets_bodies_end_and_leaves_the_run_to_another_worker(cli):
    assert cli.run("migrate").returncode == 0
    first = cli.worker(log="first.log")
    client = cli.start("run", "cli_app:client", "hold", "--json", log="client.log")
    cli.wait_for((cli.folder / "a.started").exists, "the body")
    first.send_signal(signal.SIGTERM)
    cli.wait_for(lambda: "worker_draining" in cli.events("first.log"), "the drain")
    (cli.folder / "a.go").touch()
    assert first.wait(DEADLINE_SECONDS) == 0
    assert findings(cli.run("doctor", "--json"))["open runs"]["level"] == "fail"
    cli.worker(log="second.log")
    assert client.wait(DEADLINE_SECONDS) == 0
    outcome = json.loads(cli.text("client.log").partition("\n")[2])
    assert [(call["bodies"], call["outcome"]) for call in outcome["calls"]] == [(1, "returned")]
    assert outcome["rescues"] == 0


def test_a_body_longer_than_the_drain_is_left_in_doubt(cli):
    assert cli.run("migrate").returncode == 0
    first = cli.worker("cli_app:helix", "--drain-seconds", "0", log="first.log")
    client = cli.start("run", "cli_app:client", "hold", "--json", log="client.log")
    cli.wait_for((cli.folder / "a.started").exists, "the body")
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE_SECONDS) == 0
    cli.worker(log="second.log")
    assert client.wait(DEADLINE_SECONDS) == 0
    outcome = json.loads(cli.text("client.log").partition("\n")[2])
    assert [(call["bodies"], call["reason"]) for call in outcome["calls"]] == [(1, "outcome_unknown")]


def test_sigint_drains_too(cli):
    assert cli.run("migrate").returncode == 0
    worker = cli.worker()
    worker.send_signal(signal.SIGINT)
    assert worker.wait(DEADLINE_SECONDS) == 0


def test_an_app_that_only_accepts_turns_is_refused(cli):
    finished = cli.run("worker", "cli_app:client")
    assert finished.returncode == 1
    assert "only accepts turns" in finished.stderr


def test_without_a_url_it_refuses(tmp_path):
    with cli_in(tmp_path) as cli:
        finished = cli.run("worker", "cli_app:helix")
        assert finished.returncode == 1
        assert "HELIX_DATABASE_URL" in finished.stderr
