"""Where the embedded database lives. Never changes the mode of a folder that it did not make itself."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from helix_dbos.embedded.accounts import Account
from helix_dbos.embedded.refusals import unusable_data_dir

__all__ = [
    "SOCKET_NAME",
    "Place",
    "default_data_dir",
    "make_folder",
    "make_place",
    "private_folder",
    "refuse_homes",
    "system_data_dir",
]

SOCKET_NAME = ".s.PGSQL.5432"

# macOS allows 103 bytes for a socket's path, Linux 107; commas and the like separate hosts in a URL.
_SOCKET_PATH_BYTES = 103
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")


def system_data_dir() -> Path:
    """The folder of a root-run server: not a home, and open to the account that runs it."""
    return Path("/var/lib/helix-dbos")


@dataclass(frozen=True)
class Place:
    """The files of one server: all of it lies below `root`, except a socket that needs a shorter path."""

    root: Path

    @property
    def cluster(self) -> Path:
        """PostgreSQL's own data directory."""
        return self.root / "data"

    @property
    def log(self) -> Path:
        """What the server says, of several starts."""
        return self.root / "server.log"

    @property
    def lifecycle_lock(self) -> Path:
        """Held while one process starts or stops the server."""
        return self.root / "lifecycle.lock"

    @property
    def users_lock(self) -> Path:
        """Shared by every process that uses the server."""
        return self.root / "users.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server's processes, by inheritance."""
        return self.root / "server.lock"

    @property
    def sockets(self) -> Path:
        """The folder of the socket: the same for every process and every start, so that URLs stay good."""
        inside = self.root / "socket"
        name = str(inside / SOCKET_NAME)
        if len(os.fsencode(name)) <= _SOCKET_PATH_BYTES and _PLAIN_PATH.fullmatch(name):
            return inside
        return Path("/tmp") / f"helix-dbos-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]}"


def make_place(data_dir: Path | None, major: int) -> Place:
    """The place for data of this major version, its folder made when missing.

    Raises:
        StoreError: The folder is one that the server must not or cannot use.
    """
    base = default_data_dir() if data_dir is None else Path(os.path.abspath(data_dir.expanduser()))
    if os.geteuid() == 0:
        refuse_homes(base)
    try:
        base = base.resolve()
        if (base / "PG_VERSION").exists():
            raise unusable_data_dir(f"{base} is itself the data directory of a PostgreSQL server")
        place = Place(base / f"postgres-{major}")
        make_folder(place.root)
        if not os.access(place.root, os.W_OK | os.X_OK):
            raise unusable_data_dir(f"{place.root} belongs to another user")
    except OSError as error:
        raise unusable_data_dir(f"{base}: {error.strerror}") from error
    return place


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents: open to be passed through when root makes them, else private."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(0o755 if os.geteuid() == 0 else 0o700)


def private_folder(path: Path, account: Account) -> None:
    """A folder that only the account may enter, made when missing.

    Raises:
        StoreError: Something else is in its place, perhaps put there by another user.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), account.uid):
        raise unusable_data_dir(f"{path}, which the server's socket needs, belongs to somebody else")
    path.chmod(0o700)
    account.own(path)


def default_data_dir() -> Path:
    """Where the data is kept when no folder is named: the user's own, for root the system's."""
    if os.geteuid() == 0:
        return system_data_dir()
    from platformdirs import user_data_path  # comes with the wheel

    return user_data_path("helix-dbos", appauthor=False)


def refuse_homes(base: Path) -> None:
    """As root the server runs as another account, which a home directory must not be opened for."""
    for home in {Path("/home"), Path("/Users"), Path.home(), Path(pwd.getpwuid(0).pw_dir)} - {Path("/")}:
        if {home, home.resolve()} & {base, *base.parents, base.resolve(), *base.resolve().parents}:
            raise unusable_data_dir(
                f"{base} lies below the home directory {home}, and root's server runs as another user, "
                "which would have to be let in"
            )
