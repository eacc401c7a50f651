"""One server process: started as nobody's child, believed only when it answers, stopped for good."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from helix_dbos.embedded.accounts import Account, run_as
from helix_dbos.embedded.binaries import Binaries
from helix_dbos.embedded.locks import FileLock, until
from helix_dbos.embedded.places import SOCKET_NAME, Place, private_folder
from helix_dbos.embedded.refusals import unavailable
from helix_dbos.embedded.serverlog import log_tail, open_log

__all__ = ["Postmaster"]

_log = logging.getLogger(__name__)

_FAST_STOP_SECONDS = 20.0
_IMMEDIATE_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Postmaster:
    """The server of one place; both methods that change it run under the lifecycle lock."""

    place: Place
    binaries: Binaries
    account: Account

    @property
    def url(self) -> str:
        """The same for every process and every start; the port is named so that PGPORT cannot change it."""
        return f"postgresql://postgres@/postgres?host={self.place.sockets}&port=5432"

    def answers(self) -> bool:
        """The server of exactly this data directory takes connections and writes."""
        try:
            with psycopg.connect(self.url, connect_timeout=2, autocommit=True) as connection:
                row = connection.execute(
                    "select pg_is_in_recovery(), current_setting('data_directory')"
                ).fetchone()
        except psycopg.Error:
            return False
        if row is None or row[0]:
            return False
        try:
            return os.path.samefile(str(row[1]), self.place.cluster)
        except OSError:
            return False

    def ensure_running(self, *, deadline: float) -> None:
        """Afterwards the server answers: the one that was running, or a new one.

        Waits while a server recovers from a crash, and while the last processes of a killed one go away.

        Raises:
            StoreError: It stopped again while starting, or was not ready at the deadline (it is left
                to go on, so a long recovery ends even when nobody could wait for it).
        """
        private_folder(self.place.sockets, self.account)
        launched = False

        def ready() -> bool:
            nonlocal launched
            if self.answers():
                return True
            lock = FileLock.attempt(self.place.server_lock)
            if lock is None:
                return False
            with lock:
                if launched:
                    raise unavailable(f"it stopped while starting; {log_tail(self.place.log)}")
                self._clear_leftovers()
                self._launch(lock)
                launched = True
            return False

        if not until(ready, deadline=deadline):
            doing = "goes on starting" if self._names_postmaster() else "a killed server's processes live on"
            raise unavailable(f"it was not ready in time and {doing}; {log_tail(self.place.log)}")
        event = "embedded.started" if launched else "embedded.adopted"
        _log.info("embedded database %s", "started" if launched else "adopted", extra={"event": event})

    def stop(self) -> bool:
        """Stop the server and wait for its last process; False when some process of it stays.

        A fast shutdown first, then an immediate one; no committed row is lost by either.
        """
        for mode, seconds in (("fast", _FAST_STOP_SECONDS), ("immediate", _IMMEDIATE_STOP_SECONDS)):
            if self._gone():
                break
            if self._names_postmaster():
                pg_ctl = self.binaries.program("pg_ctl")
                run_as(self.account, [pg_ctl, "stop", "-D", self.place.cluster, "-m", mode, "-W"])
            if until(self._gone, deadline=time.monotonic() + seconds):
                break
        else:
            return False
        if self.place.sockets.parent != self.place.root:
            with contextlib.suppress(OSError):
                self.place.sockets.rmdir()
        return True

    def _gone(self) -> bool:
        """No process of the server lives: the kernel's word, which no stale file can contradict."""
        lock = FileLock.attempt(self.place.server_lock)
        if lock is None:
            return False
        lock.close()
        return True

    def _clear_leftovers(self) -> None:
        """Remove what a killed server left; only ever called when none of its processes lives.

        PostgreSQL would trust a leftover pid file whose pid is now some other process of the same account.
        """
        leftovers = [self.place.sockets / name for name in (SOCKET_NAME, f"{SOCKET_NAME}.lock")]
        for leftover in (self.place.cluster / "postmaster.pid", *leftovers):
            leftover.unlink(missing_ok=True)

    def _launch(self, lock: FileLock) -> None:
        server = [self.binaries.program("postgres"), "-D", self.place.cluster]
        for setting in (
            "listen_addresses=",
            f"unix_socket_directories={self.place.sockets}",
            "unix_socket_permissions=0700",
            "port=5432",
        ):
            server += ["-c", setting]
        with open_log(self.place.log, self.account) as log:
            # The shell leaves at once, so the server is nobody's child: no signal of a terminal reaches it,
            # and no process has to reap it.
            started = run_as(
                self.account,
                ["/bin/sh", "-c", '"$@" &', "sh", *server],
                output=log.fileno(),
                keep=[lock.descriptor],
            )
        if started.returncode != 0:
            raise unavailable(f"its shell failed; {log_tail(self.place.log)}")

    def _names_postmaster(self) -> bool:
        """The pid file names this very server, as far as the system can tell; a signal needs to be sure."""
        try:
            pid = int((self.place.cluster / "postmaster.pid").read_text().split("\n", 1)[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ValueError):
            return not Path("/proc/self").exists()
        return os.fsencode(self.place.cluster) in command.split(b"\0")
