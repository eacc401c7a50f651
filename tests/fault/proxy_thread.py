"""A proxy before Postgres, on a thread of its own, that loses commits or their acknowledgements.

It reads just enough of the wire protocol to know, on each connection, whose it is (the
application's name) and when a commit passes: a `COMMIT`, or a writing statement outside of a
transaction. Prepared statements are known by their text.
"""

from __future__ import annotations

import asyncio
import re
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

__all__ = ["DBOS", "HELIX", "Loss", "Proxy"]

HELIX, DBOS = "helix-dbos", "dbos_transact"
"""The application names of our pool and of DBOS's."""

_WRITES = re.compile(r"\b(INSERT INTO|UPDATE \S+ (\S+ )?SET|DELETE FROM|enqueue_workflow)\b", re.IGNORECASE)
_STARTUP = 0x0003_0000
_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Loss(StrEnum):
    """What is lost of a commit, with the connection."""

    COMMIT = "commit"
    ACKNOWLEDGEMENT = "acknowledgement"


Decide = Callable[[str, int, str], Loss | None]
"""Asked at every commit: whose it is, the how-manieth of theirs since the proxy was armed, its statements."""


class Proxy:
    """Set what shall be lost with `arm`, and use `url` in place of the server's."""

    def __init__(self, upstream_url: str) -> None:
        self._upstream, self._url = conninfo_to_dict(upstream_url), make_url(upstream_url)
        self._decide: Decide = lambda _whose, _number, _statements: None
        self._cut_before: str | None = None
        self.cut = False
        """Whether a connection was cut before a statement since the proxy was armed."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.commits = Counter[str]()
        """Commits since the proxy was armed, by application."""
        self.losses: list[tuple[Loss, str, str]] = []
        """What was lost since then, of whom, at which statements."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._on_loop(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        """The same database by way of this proxy; without encryption, so that it can be read."""
        assert self._server is not None, "inside the context only"
        host, port = self._server.sockets[0].getsockname()[:2]
        query = {"sslmode": "disable", "gssencmode": "disable"}
        return self._url.set(host=host, port=port, query=query).render_as_string(hide_password=False)

    def arm(self, decide: Decide | None = None, *, cut_before: str | None = None) -> None:
        """Begin to count anew, and lose what this says; nothing when None.

        Args:
            cut_before: Cut one connection before a statement of ours with this text.
        """

        async def arm() -> None:
            self.commits.clear()
            self.losses.clear()
            self._cut_before, self.cut = cut_before, False
            self._decide = decide or (lambda _whose, _number, _statements: None)

        self._on_loop(arm())

    def loses(self, whose: str, statements: str) -> Loss | None:
        """What is lost of this commit; on the proxy's thread."""
        self.commits[whose] += 1
        loss = self._decide(whose, self.commits[whose], statements)
        if loss is not None:
            self.losses.append((loss, whose, statements))
        return loss

    def cuts(self, whose: str, statement: str) -> bool:
        """Whether the connection is cut before this statement; on the proxy's thread."""
        if whose != HELIX or self._cut_before is None or self._cut_before not in statement:
            return False
        self._cut_before, self.cut = None, True
        return True

    def _on_loop(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)  # pyright: ignore[reportArgumentType]

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        while self._links:
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)  # the loop's own rounds, in which aborted transports close

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, transports = asyncio.current_task(), [writer.transport]
        assert task is not None
        self._links.add(task)
        try:
            server_reader, server_writer = await self._connect()
            transports.append(server_writer.transport)
            await self._forward(_Link(self), (reader, writer), (server_reader, server_writer))
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or this proxy closes: both ends are cut below
        finally:
            for transport in transports:
                transport.abort()
            self._links.discard(task)

    async def _forward(self, link: _Link, client: _Ends, server: _Ends) -> None:
        """Until one direction has ended, or is to be cut."""
        pumps = [
            asyncio.create_task(link.to_server(client[0], server[1])),
            asyncio.create_task(link.to_client(server[0], client[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self._upstream.get("host") or "localhost"), self._upstream.get("port") or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, int(port))


class _Link:
    """One client's connection; each pump ends when the connection shall be cut."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._whose = ""
        self._statements: dict[bytes, str] = {}
        self._bound = ""
        self._transaction: list[str] | None = None
        # The server is ready once after the start, and once after every sync or simple query.
        self._to_be_ready, self._ready = 1, 0
        self._silent_until_ready: int | None = None

    async def to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._start(reader, writer)
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
                if self._is_lost(head[:1], body):
                    return
                writer.write(head + body)
                await writer.drain()

    async def to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
                self._ready += head[:1] == b"Z"
                if self._silent_until_ready is None:
                    writer.write(head + body)
                    await writer.drain()
                elif self._ready >= self._silent_until_ready:
                    return

    async def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = await reader.readexactly(4)
        body = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
        if struct.unpack("!I", body[:4])[0] == _STARTUP:
            words = body[4:].split(b"\0")
            known = dict(zip(words[::2], words[1::2], strict=False))
            self._whose = known.get(b"application_name", b"").decode()
        writer.write(size + body)

    def _is_lost(self, kind: bytes, body: bytes) -> bool:
        """Follow a message of the client's; True when it must not reach the server."""
        match kind:
            case b"P":
                name, text, *_ = body.split(b"\0")
                self._statements[name] = text.decode()
            case b"B":
                self._bound = self._statements.get(body.split(b"\0")[1], "")
            case b"E":
                return self._statement_is_lost(self._bound)
            case b"Q":
                lost = self._statement_is_lost(body.rstrip(b"\0").decode())
                self._to_be_ready += 1
                return lost
            case b"S":
                self._to_be_ready += 1
            case _:
                pass
        return False

    def _statement_is_lost(self, statement: str) -> bool:
        """Follow a statement; True when it must not reach the server."""
        if self._proxy.cuts(self._whose, statement):
            return True
        word = statement.split(maxsplit=1)[0].upper() if statement.strip() else ""
        if word == "BEGIN":
            self._transaction = []
        if self._transaction is not None:
            self._transaction.append(statement)
            if word not in ("COMMIT", "ROLLBACK"):
                return False
            said, self._transaction = "\n".join(self._transaction), None
            commits = word == "COMMIT"
        else:
            said, commits = statement, _WRITES.search(statement) is not None
        loss = self._proxy.loses(self._whose, said) if commits else None
        if loss is Loss.ACKNOWLEDGEMENT:
            self._silent_until_ready = self._to_be_ready + 1
        return loss is Loss.COMMIT
