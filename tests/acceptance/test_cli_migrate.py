"""`helix-dbos migrate`: idempotent, and clear about what it cannot do."""

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from tests.acceptance.cli_processes import cli_in


def test_it_creates_everything_and_then_changes_nothing(tmp_path, empty_database_url):
    with cli_in(tmp_path, HELIX_DATABASE_URL=empty_database_url, HELIX_SCHEMA="shop") as cli:
        first = cli.run("migrate")
        assert first.returncode == 0, first.stderr
        assert "schema shop: was missing -> " in first.stdout
        second = cli.run("migrate")
        assert second.returncode == 0
        assert "already" in second.stdout
        with psycopg.connect(empty_database_url) as connection:
            assert connection.execute("SELECT count(*) FROM shop.runs").fetchone() == (0,)
            assert connection.execute("SELECT to_regproc('dbos.enqueue_workflow')").fetchone() != (None,)
        assert cli.run("doctor").returncode == 0


def test_without_a_url_it_names_the_setting(tmp_path):
    with cli_in(tmp_path) as cli:
        finished = cli.run("migrate")
        assert finished.returncode == 1
        assert "HELIX_DATABASE_URL" in finished.stderr
        assert "store_url_missing" in finished.stderr


def test_an_unreachable_database(tmp_path):
    with cli_in(tmp_path, HELIX_DATABASE_URL="postgresql://bob:hunter2@127.0.0.1:1/shop") as cli:
        finished = cli.run("migrate")
        assert finished.returncode == 1
        assert "nothing listens" in finished.stderr
        assert "hunter2" not in finished.stderr
        assert "Traceback" not in finished.stderr


def test_a_user_without_rights(tmp_path, empty_database_url):
    guest = f"{make_url(empty_database_url).database}_guest"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'guest'").format(sql.Identifier(guest)))
    try:
        url = make_url(empty_database_url).set(username=guest, password="guest")
        url = url.render_as_string(hide_password=False)
        with cli_in(tmp_path, HELIX_DATABASE_URL=url) as cli:
            finished = cli.run("migrate")
            assert finished.returncode == 1
            assert "store_permission_denied" in finished.stderr
            assert "Traceback" not in finished.stderr
    finally:
        with psycopg.connect(empty_database_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(guest)))


def test_an_unusable_setting_is_named_without_its_value(tmp_path):
    with cli_in(tmp_path, HELIX_CONCURRENCY="hunter2") as cli:
        finished = cli.run("migrate")
        assert finished.returncode == 1
        assert "HELIX_CONCURRENCY" in finished.stderr
        assert "hunter2" not in finished.stderr
