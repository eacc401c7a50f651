"""Targets: each wrong one is told what is wrong with it."""

import sys

import pytest

from helix_dbos.cli.target import load_target
from helix_dbos.errors import RequestError
from tests.acceptance.cli_processes import APP, cli_in


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "target_app.py").write_text(APP)
    (tmp_path / "target_broken.py").write_text("1 / 0")
    (tmp_path / "target_needy.py").write_text("import no_such_package_at_all")
    yield
    for name in set(sys.modules) - before:
        if name.startswith("target_"):
            del sys.modules[name]


def test_a_good_target_is_found_from_the_working_directory():
    assert load_target("target_app:helix").name == "cli-app"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("target_app", "module:attribute"),
        (":helix", "module:attribute"),
        ("target_app:", "module:attribute"),
        (".relative:helix", "module:attribute"),
        ("target_missing:helix", "no module target_missing"),
        ("target_app.inner:helix", "no module target_app.inner"),
        ("target_needy:helix", "no_such_package_at_all"),
        ("target_broken:helix", "ZeroDivisionError"),
        ("target_app:nowhere", "its Helix is 'client', 'helix'"),
        ("target_app:nothing", "it is a int"),
    ],
)
def test_a_bad_target(target, says):
    with pytest.raises(RequestError) as refused:
        load_target(target)
    assert refused.value.code == "target_invalid"
    assert says in str(refused.value)


def test_settings_that_the_module_reads_are_named_without_their_values(monkeypatch):
    monkeypatch.setenv("HELIX_POOL_SIZE", "hunter2")
    with pytest.raises(RequestError) as refused:
        load_target("target_app:helix")
    assert "HELIX_POOL_SIZE" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_command_says_it_without_a_traceback(tmp_path):
    with cli_in(tmp_path) as cli:
        for command in (("worker", "nope:helix"), ("run", "nope:helix", "hi"), ("doctor", "nope:helix")):
            finished = cli.run(*command)
            assert finished.returncode == 1
            assert "There is no module nope." in finished.stderr
            assert "Traceback" not in finished.stderr
