"""What the tests of the embedded database share: folders, outside witnesses, and processes that use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg

from helix_dbos.embedded import start_embedded

ROOT = os.geteuid() == 0

# A process that uses the server until its input ends, then leaves like any program, without a release.
USER = """
import sys
from pathlib import Path
import psycopg
from helix_dbos.embedded import start_embedded
server = start_embedded(Path(sys.argv[1]))
with psycopg.connect(server.url) as connection:
    started = connection.execute("select pg_postmaster_start_time()::text").fetchone()[0]
print(started, flush=True)
sys.stdin.read()
"""


def poll(condition: Callable[[], object], *, seconds: float = 15.0) -> object:
    """The first true answer of `condition`; fails the test when none comes in time."""
    deadline = time.monotonic() + seconds
    idle = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        idle.wait(0.01)
    return found


def processes(folder: Path) -> list[psutil.Process]:
    """Live processes that name the folder in their command line: postmasters, and users started by tests."""
    found = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def postmasters(folder: Path) -> list[psutil.Process]:
    """Live postmasters below the folder; seen from outside, without any lock or pid file.

    A child just forked still bears its postmaster's command line, so children are left out.
    """
    servers = [
        process for process in processes(folder) if process.info["cmdline"][0].endswith("bin/postgres")
    ]
    pids = {process.pid for process in servers}
    return [process for process in servers if process.info["ppid"] not in pids]


def stopped(folder: Path) -> bool:
    return not postmasters(folder)


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder that root's server account can get to; what still runs on it afterwards is killed."""
    folder = Path(tempfile.mkdtemp(prefix="helix-test-")).resolve()
    try:
        if ROOT:
            folder.chmod(0o755)
        yield folder
    finally:
        kill_all(folder)
        shutil.rmtree(folder)


@contextmanager
def ready_folder() -> Iterator[Path]:
    """A folder with data in it, for many tests to share: saves each of them an initdb."""
    with reachable_folder() as folder:
        start_embedded(folder).release()
        yield folder


@contextmanager
def mended(folder: Path) -> Iterator[None]:
    """Afterwards nothing runs on the folder, and its settings are what they were."""
    kept = [cluster_of(folder) / name for name in ("PG_VERSION", "postgresql.conf", "postgresql.auto.conf")]
    texts = [path.read_text() for path in kept]
    try:
        yield
    finally:
        kill_all(folder)
        for path, text in zip(kept, texts, strict=True):
            path.write_text(text)


def kill_all(folder: Path) -> None:
    for process in processes(folder):
        process.kill()
    poll(lambda: not processes(folder))


def cluster_of(folder: Path) -> Path:
    return next(folder.glob("postgres-*/data"))


def write_as_server(path: Path, text: str, *, mode: str = "w") -> None:
    """Write a file of the data directory, owned as PostgreSQL would own it."""
    with path.open(mode) as file:
        file.write(text)
    owner = path.parent.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


def query(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


@contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another Python process that uses the server of the folder; its first line of output says since when."""
    repository = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=repository,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), *sys.path])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def leave(process: subprocess.Popen[str]) -> None:
    """Let the other process end normally."""
    process.communicate(timeout=20)
    assert process.returncode == 0


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the other process did not get a server"
    return line
