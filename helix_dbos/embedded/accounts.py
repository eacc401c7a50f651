"""The operating-system account that runs the server, and running commands as it.

PostgreSQL refuses to run as root, so root lends the server an unprivileged account; everybody else is
their own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helix_dbos.embedded.locks import until
from helix_dbos.embedded.refusals import unavailable

__all__ = ["Account", "run_as", "server_account"]

SERVER_ACCOUNT = "helix-dbos"
SPARE_ACCOUNT = "nobody"

# Nothing of this process's environment reaches the server: SQL can read it, and PG* variables would steer it.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class Account:
    """Who runs the server; both ids are None when it runs as this process does."""

    uid: int | None = None
    gid: int | None = None

    def own(self, path: Path) -> None:
        """Give a file or folder that we made to the account; a symbolic link is not followed."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def server_account(cluster: Path) -> Account:
    """The owner of existing data, else the server's own system account, else `nobody`; never root.

    Raises:
        StoreError: This process is root and the machine has no account to lend.
    """
    if os.geteuid() != 0:
        return Account()
    if cluster.exists() and (status := cluster.stat()).st_uid != 0:
        return Account(status.st_uid, status.st_gid)
    account = _find(SERVER_ACCOUNT) or _create() or _find(SPARE_ACCOUNT)
    if account is None:
        raise unavailable(
            f"root cannot run PostgreSQL itself, and neither could the account {SERVER_ACCOUNT!r} be made "
            f"(useradd) nor does {SPARE_ACCOUNT!r} exist; start Helix as an ordinary user, or set "
            "HELIX_DATABASE_URL"
        )
    return account


def _find(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid) if entry.pw_uid != 0 else None


def _create() -> Account | None:
    """Make the system account; None when this machine has no `useradd` or does not let us."""
    useradd = shutil.which("useradd", path=f"{os.defpath}:/usr/sbin:/sbin")
    if useradd is None:
        return None
    command = [useradd, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    command += ["--shell", "/bin/false", SERVER_ACCOUNT]

    def attempt() -> Account | None:
        # useradd gives up at once while another process holds the account files, hence the repetition.
        subprocess.run(command, check=False, capture_output=True)
        return _find(SERVER_ACCOUNT)

    return until(attempt, deadline=time.monotonic() + 2, pause_seconds=0.2)


def run_as(
    account: Account,
    command: Sequence[str | Path],
    *,
    output: int = subprocess.PIPE,
    keep: Sequence[int] = (),
    timeout_seconds: float = 30.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command as the account, in a session and an environment of its own; it may fail.

    Args:
        account: Whom to run it as.
        command: The program and its arguments.
        output: Where both output streams go.
        keep: Descriptors that the command and what it starts inherit.
        timeout_seconds: When to kill it (raises `subprocess.TimeoutExpired`).
    """
    return subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        env=_ENVIRONMENT,
        pass_fds=keep,
        start_new_session=True,
        user=account.uid,
        group=account.gid,
        extra_groups=None if account.uid is None else [],
        timeout=timeout_seconds,
    )
