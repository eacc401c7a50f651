"""Reaching a database, or saying in one clear sentence why it cannot be reached. Never a secret in it."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.exc import ArgumentError

from helix_dbos.errors import RequestError, StoreError
from helix_dbos.source import describe_url
from helix_dbos.store.database import connection_info

__all__ = ["CONNECT_SECONDS", "bounded_conninfo", "check_reachable", "check_url", "refusal"]

CONNECT_SECONDS = 5

# libpq gives no code for a failed connection, only its own words.
_WORDS: tuple[tuple[str, str], ...] = (
    ("connection refused", "nothing listens there: is the server running, are host and port right?"),
    ("could not translate host name", "the host name is not known"),
    ("failed to resolve host", "the host name is not known"),
    ("name or service not known", "the host name is not known"),
    ("password authentication failed", "the server refused the user or the password"),
    ("no password supplied", "the server wants a password and the URL holds none"),
    ("no pg_hba.conf entry", "the server does not let this user in from here (its pg_hba.conf)"),
    ("peer authentication failed", "the server refused the user (peer authentication)"),
    ("no such file or directory", "there is no server behind this socket"),
    ("timeout expired", f"no answer within {CONNECT_SECONDS} s: a firewall, or a wrong host?"),
    ("connection timeout", f"no answer within {CONNECT_SECONDS} s: a firewall, or a wrong host?"),
    ("network is unreachable", "the network is unreachable"),
    ("no route to host", "there is no route to the host"),
    ("too many clients", "the server has no connection left"),
    ("remaining connection slots", "the server has no connection left"),
    ("starting up", "the server is still starting"),
    ("shutting down", "the server is shutting down"),
    ("ssl", "the two sides do not agree about TLS"),
    ("certificate", "the server's certificate was not accepted"),
)


def refusal(problem: psycopg.Error) -> str:
    """Why a connection failed, in our own words: the library's may quote more than may be shown."""
    words = str(problem).lower()
    if "does not exist" in words:
        return "the role does not exist" if 'role "' in words else "the database does not exist"
    return next((said for part, said in _WORDS if part in words), type(problem).__name__)


def check_url(url: str) -> None:
    """Refuse what is no PostgreSQL URL, before a library quotes it.

    Raises:
        RequestError: It is not one.
    """
    scheme, separator, _ = url.partition("://")
    try:
        usable = bool(separator) and scheme.partition("+")[0] in ("postgres", "postgresql")
        describe_url(url)
        conninfo_to_dict(connection_info(url, "helix", application="helix-dbos"))
    except (psycopg.Error, ArgumentError, ValueError):
        usable = False
    if not usable:
        raise RequestError(
            "The database URL is not a PostgreSQL URL.",
            code="settings_invalid",
            detail="HELIX_DATABASE_URL is written postgresql://user:password@host:port/database",
        )


def bounded_conninfo(url: str, schema: str) -> str:
    """The connection string for a look at this schema; bounded in time."""
    info = connection_info(url, schema, application="helix-dbos")
    return (
        info if "connect_timeout" in conninfo_to_dict(info) else f"{info} connect_timeout={CONNECT_SECONDS}"
    )


def check_reachable(url: str) -> None:
    """Return when the database answers.

    Raises:
        RequestError: The URL is none of PostgreSQL's.
        StoreError: The database does not answer; the detail says why.
    """
    check_url(url)
    try:
        with psycopg.connect(bounded_conninfo(url, "helix"), autocommit=True) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as problem:
        raise StoreError(
            "The database cannot be reached.", detail=f"{describe_url(url)}: {refusal(problem)}"
        ) from None
