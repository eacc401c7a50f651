"""The server's log: kept small, and quoted without anything that clients sent."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

from helix_dbos.embedded.accounts import Account

__all__ = ["log_tail", "open_log"]

_ROTATE_BYTES = 4_000_000
_READ_BYTES = 16_000
_LINES = 12

# These carry clients' SQL and row values, on lines of their own and on the indented ones that follow.
_FROM_CLIENTS = re.compile(r"^\t|\b(ERROR|STATEMENT|DETAIL|CONTEXT|QUERY):  ")


def open_log(path: Path, account: Account) -> io.FileIO:
    """The log, open at its end; a long one is set aside first, in place of the one before."""
    if path.exists() and path.stat().st_size > _ROTATE_BYTES:
        path.replace(path.with_suffix(".log.1"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = io.FileIO(os.open(path, flags, 0o600), "w")
    if account.uid is not None and account.gid is not None:
        os.fchown(log.fileno(), account.uid, account.gid)
    return log


def log_tail(path: Path) -> str:
    """The last lines in which the server speaks about itself, for the detail of an error."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _READ_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return f"no log at {path}"
    lines = [line for line in text.splitlines() if line and not _FROM_CLIENTS.search(line)]
    return f"the end of {path}:\n" + "\n".join(lines[-_LINES:])
