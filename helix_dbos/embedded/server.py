"""Starting, sharing and releasing the embedded server: the whole story in two functions."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from helix_dbos.embedded.accounts import server_account
from helix_dbos.embedded.binaries import installed_binaries
from helix_dbos.embedded.cluster import ensure_cluster
from helix_dbos.embedded.locks import FileLock, until
from helix_dbos.embedded.places import Place, make_place
from helix_dbos.embedded.postmaster import Postmaster
from helix_dbos.embedded.refusals import unavailable

__all__ = ["EmbeddedServer", "start_embedded"]

_log = logging.getLogger(__name__)

_RELEASE_WAIT_SECONDS = 30.0


class EmbeddedServer:
    """One process's use of the server; the server lives while any process uses it.

    A process that dies without releasing leaves the server running; the next one adopts it, and its
    release stops it. A normal end of the interpreter releases.
    """

    def __init__(self, postmaster: Postmaster, use: FileLock) -> None:
        self._postmaster = postmaster
        self._use = use
        self._owner = os.getpid()
        self._guard = threading.Lock()
        self._released = False
        atexit.register(self.release)

    @property
    def url(self) -> str:
        """A `postgresql://` URL over a unix socket, for psycopg and, with a driver named, for SQLAlchemy.

        It stays good over restarts of the server.
        """
        return self._postmaster.url

    @property
    def data_dir(self) -> Path:
        """PostgreSQL's data directory, in a folder that names its major version."""
        return self._postmaster.place.cluster

    def release(self) -> None:
        """Stop the server unless another live process uses it; idempotent, and never raises.

        In a process forked from the one that started it this does nothing.
        """
        with self._guard:
            if self._released or os.getpid() != self._owner:
                return
            self._released = True
        atexit.unregister(self.release)
        self._use.close()
        place = self._postmaster.place
        try:
            with _lifecycle(place, deadline=time.monotonic() + _RELEASE_WAIT_SECONDS) as mine:
                last = FileLock.attempt(place.users_lock) if mine else None
                if last is None:
                    return  # another process uses it, or is about to: stopping it is that one's work
                with last:
                    stopped = self._postmaster.stop()
        except (OSError, subprocess.SubprocessError):
            _log.warning("embedded database not stopped", exc_info=True, extra={"event": "embedded.left"})
            return
        event = "embedded.stopped" if stopped else "embedded.left"
        _log.log(
            logging.INFO if stopped else logging.WARNING,
            "embedded database %s",
            "stopped" if stopped else "did not stop",
            extra={"event": event},
        )

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def start_embedded(data_dir: Path | None = None, *, timeout_seconds: float = 60.0) -> EmbeddedServer:
    """A live server over the data in `data_dir`: started, or shared with the processes that use it already.

    Blocking; call it in a thread from async code. Every row acknowledged before any crash is there.

    Args:
        data_dir: The folder of the data, made when missing; by default a folder of this user's, or a system
            folder for root.
        timeout_seconds: How long to wait for readiness, including a crash recovery.

    Raises:
        StoreError: The extra is not installed, the folder or its data is unusable, or the server did not
            become ready.
    """
    deadline = time.monotonic() + timeout_seconds
    installed = installed_binaries()
    place = make_place(data_dir, installed.major())
    try:
        with _lifecycle(place, deadline=deadline) as mine:
            use = FileLock.attempt(place.users_lock, shared=True) if mine else None
            if use is None:
                raise unavailable("another process has been starting or stopping it all the while")
            try:
                account = server_account(place.cluster)
                binaries = installed.for_account(account)
                ensure_cluster(place, binaries, account, deadline=deadline)
                postmaster = Postmaster(place, binaries, account)
                postmaster.ensure_running(deadline=deadline)
            except BaseException:
                use.close()
                raise
    except (OSError, subprocess.SubprocessError) as error:
        raise unavailable(f"{type(error).__name__}: {error}") from error
    return EmbeddedServer(postmaster, use)


@contextmanager
def _lifecycle(place: Place, *, deadline: float) -> Generator[bool, None, None]:
    """Only one process at a time starts or stops the server; False when another one kept the turn."""
    lock = until(lambda: FileLock.attempt(place.lifecycle_lock), deadline=deadline)
    if lock is None:
        yield False
        return
    with lock:
        yield True
