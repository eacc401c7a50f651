"""`helix-dbos doctor` in every state: it says what is wrong, what mends it, and never a secret."""

import signal
import stat
import tempfile
from pathlib import Path

import psycopg
import pytest

from helix_dbos.cli.reach import refusal
from tests.acceptance.cli_processes import cli_in, findings
from tests.support.databases import with_database


@pytest.fixture
def cli(tmp_path: Path, database_url: str):
    with cli_in(tmp_path, HELIX_DATABASE_URL=database_url) as opened:
        yield opened


def test_healthy_with_a_live_worker(cli):
    worker = cli.worker()
    finished = cli.run("doctor", "cli_app:helix", "--json")
    found = findings(finished)
    assert finished.returncode == 0, finished.stdout
    assert {finding["level"] for finding in found.values()} == {"ok"}
    assert found["app"]["data"] == "cli-app"
    (executor,) = found["executors"]["data"]
    assert (executor["role"], executor["agents"], executor["pid"]) == ("worker", ["desk"], worker.pid)
    assert found["open runs"]["data"] == {"queued": 0, "running": 0, "suspended": 0}

    shown = cli.run("doctor")
    assert shown.returncode == 0
    assert "healthy" in shown.stdout
    assert f"pid {worker.pid}" in shown.stdout
    assert max(len(line) for line in shown.stdout.splitlines()) <= 100


def test_an_unmigrated_database_names_the_command(tmp_path, empty_database_url):
    with cli_in(tmp_path, HELIX_DATABASE_URL=empty_database_url) as cli:
        finished = cli.run("doctor", "--json")
        found = findings(finished)
        assert finished.returncode == 1
        for name in ("schema", "DBOS schema"):
            assert found[name]["level"] == "fail"
            assert "helix-dbos migrate" in found[name]["advice"]
        assert findings(cli.run("doctor", "--json", HELIX_MIGRATE="apply"))["schema"]["level"] == "ok"


def test_an_older_and_a_newer_schema(cli, connection):
    connection.execute("UPDATE schema_version SET version_num = '0000'")
    found = findings(cli.run("doctor", "--json"))
    assert found["schema"]["level"] == "fail"
    assert "migrate" in found["schema"]["advice"]
    connection.execute("UPDATE schema_version SET version_num = '9999'")
    assert "upgrade" in findings(cli.run("doctor", "--json"))["schema"]["advice"]


def test_dbos_tables_that_are_too_old(cli, connection):
    connection.execute("UPDATE dbos.dbos_migrations SET version = version - 1")
    found = findings(cli.run("doctor", "--json"))
    assert found["DBOS schema"]["level"] == "fail"
    assert "migrate" in found["DBOS schema"]["advice"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://bob:hunter2@127.0.0.1:1/shop", "nothing listens"),
        ("postgresql://bob:hunter2@no-such-host.invalid/shop", "host name is not known"),
        ("postgresql://bob:hunter2@/shop?host=/nowhere", "no server behind this socket"),
        ("mysql://bob:hunter2@127.0.0.1/shop", "not a PostgreSQL URL"),
        ("postgresql://bob:hunter2@127.0.0.1:port/shop", "cannot be read"),
    ],
)
def test_an_unreachable_database_says_why(tmp_path, url, why):
    with cli_in(tmp_path, HELIX_DATABASE_URL=url) as cli:
        finished = cli.run("doctor", "--json")
        assert finished.returncode == 1
        found = findings(finished)
        assert found["database"]["level"] == "fail"
        assert why in found["database"]["found"]
        assert "hunter2" not in finished.stdout + finished.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ('FATAL: password authentication failed for user "bob"', "refused the user or the password"),
        ('FATAL: no pg_hba.conf entry for host "10.0.0.1", user "bob"', "does not let this user in"),
        ('FATAL: role "bob" does not exist', "role does not exist"),
        ("connection timeout expired", "no answer within"),
        ("FATAL: sorry, too many clients already", "no connection left"),
        ("something about hunter2", "OperationalError"),
    ],
)
def test_a_refusal_is_told_in_our_own_words(words, why):
    said = refusal(psycopg.OperationalError(words))
    assert why in said
    assert "bob" not in said
    assert "hunter2" not in said


def test_a_database_that_does_not_exist(tmp_path, server_url):
    with cli_in(tmp_path, HELIX_DATABASE_URL=with_database(server_url, "no_such_db")) as cli:
        assert "database does not exist" in findings(cli.run("doctor", "--json"))["database"]["found"]


def test_another_apps_schema(cli, connection):
    connection.execute(
        "INSERT INTO engine (application_name, app_version, dbos_schema, turn_queue)"
        " VALUES ('cli-app', 'v', 'dbos', 'q')"
    )
    assert cli.run("doctor", "cli_app:helix").returncode == 0
    finished = cli.run("doctor", "cli_app:other", "--json")
    assert finished.returncode == 1
    app = findings(finished)["app"]
    assert app["level"] == "fail"
    assert "'cli-app'" in app["found"]
    assert "HELIX_SCHEMA" in app["advice"]


def test_a_run_whose_worker_was_killed_is_stranded(cli):
    worker = cli.worker()
    cli.start("run", "cli_app:client", "hold", log="client.log")
    cli.wait_for((cli.folder / "a.started").exists, "the body")
    assert findings(cli.run("doctor", "--json"))["open runs"]["data"]["running"] == 1
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    finished = cli.run("doctor", "--json")
    found = findings(finished)
    assert finished.returncode == 1
    assert found["stranded runs"]["level"] == "fail"
    assert found["stranded runs"]["data"][0]["cause"] == "dead_executor"
    assert "helix-dbos worker" in found["open runs"]["advice"]
    assert [executor["role"] for executor in found["executors"]["data"]] == ["api"]


class TestEmbedded:
    @pytest.fixture
    def folder(self):
        # Not a temporary folder of pytest's: those are closed to root's server account.
        with tempfile.TemporaryDirectory(prefix="helix-doctor-", ignore_cleanup_errors=True) as made:
            Path(made).chmod(0o755)
            yield Path(made)

    def test_a_server_that_does_not_run_is_left_alone(self, tmp_path, folder):
        with cli_in(tmp_path, HELIX_DATA_DIR=str(folder / "data")) as cli:
            finished = cli.run("doctor", "--json")
            found = findings(finished)
            assert finished.returncode == 0
            assert found["embedded server"]["data"] == "stopped"
            assert "--start" in found["embedded server"]["found"]
            assert "no data yet" in found["data folder"]["found"]
            assert not (folder / "data").exists()

    def test_it_looks_inside_when_asked_to_start_it(self, tmp_path, folder):
        with cli_in(tmp_path, HELIX_DATA_DIR=str(folder / "data")) as cli:
            finished = cli.run("doctor", "--start", "--json")
            found = findings(finished)
            assert finished.returncode == 0, finished.stdout
            assert "embedded PostgreSQL" in found["database"]["found"]
            assert "first start" in found["schema"]["found"]
            assert findings(cli.run("doctor", "--json"))["embedded server"]["data"] == "stopped"

    def test_a_folder_that_is_no_place_for_data(self, tmp_path, folder):
        (folder / "PG_VERSION").write_text("15\n")
        with cli_in(tmp_path, HELIX_DATA_DIR=str(folder)) as cli:
            found = findings(cli.run("doctor", "--json"))
            assert found["data folder"]["level"] == "fail"
            assert "another server" in found["data folder"]["found"]
            assert stat.S_IMODE(folder.stat().st_mode) == 0o755

    def test_on_dbos_cloud_there_is_none(self, tmp_path):
        with cli_in(tmp_path, DBOS__CLOUD="true") as cli:
            found = findings(cli.run("doctor", "--json"))
            assert found["database"]["level"] == "fail"
            assert "HELIX_DATABASE_URL" in found["database"]["advice"]
