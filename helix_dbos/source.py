"""Which database a process uses: the one it was given, else an embedded one where that is allowed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helix_dbos.errors import StoreError
from helix_dbos.settings import Settings

if TYPE_CHECKING:
    from helix_dbos.embedded import EmbeddedServer

__all__ = ["DatabaseSource", "find_database", "require_url"]


@dataclass(frozen=True)
class DatabaseSource:
    """A database that was found.

    Args:
        url: Where it is; never shown.
        described: What may be shown of it: no user, no password.
        direct_url: For the executor's lock, past any pooler.
        server: The embedded server to release at the end, when it is one.
    """

    url: str
    described: str
    direct_url: str
    server: EmbeddedServer | None = None

    @property
    def embedded(self) -> bool:
        """Whether the server lives and dies with this machine's processes."""
        return self.server is not None


def require_url(settings: Settings, purpose: str) -> str:
    """The given URL, for purposes that an embedded database does not serve.

    Raises:
        StoreError: No URL was given.
    """
    if settings.database_url is None:
        raise StoreError(
            "A database URL is needed.",
            code="store_url_missing",
            detail=f"{purpose} does not use the embedded database; set HELIX_DATABASE_URL",
        )
    return settings.database_url.get_secret_value()


def find_database(settings: Settings) -> DatabaseSource:
    """The database to use. Blocking: an embedded server may have to be started.

    Raises:
        StoreError: None was given and an embedded one is not allowed or not installed.
    """
    if settings.database_url is not None:
        url = settings.database_url.get_secret_value()
        direct = settings.direct_database_url
        return DatabaseSource(url, describe_url(url), direct.get_secret_value() if direct else url)
    if os.environ.get("DBOS__CLOUD") == "true":
        require_url(settings, "DBOS Cloud")
    from helix_dbos.embedded import start_embedded

    server = start_embedded(settings.data_dir)
    return DatabaseSource(server.url, f"embedded PostgreSQL in {server.data_dir}", server.url, server)


def describe_url(url: str) -> str:
    """Host, port and database of a URL; never its user, password or options."""
    from helix_dbos.store.migration import sqlalchemy_url

    parsed = sqlalchemy_url(url)
    host = parsed.host or str(parsed.query.get("host") or "local socket")
    port = f":{parsed.port}" if parsed.port else ""
    return f"PostgreSQL at {host}{port}, database {parsed.database or 'default'}"
