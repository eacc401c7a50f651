"""A proxy between psycopg and Postgres that loses what a network can lose.

It forwards bytes and knows next to nothing of the protocol: a request is recognised by a piece
of its text (which a prepared statement does not send again), and a reply is over when the
server says that it is ready and outside a transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

__all__ = ["COMMIT", "DatabaseProxy", "database_proxy"]

COMMIT = b"COMMIT\x00"
_READY_AND_IDLE = b"Z\x00\x00\x00\x05I"


class DatabaseProxy:
    """Say what shall go wrong, then use `url` in place of the server's."""

    def __init__(self, upstream_url: str) -> None:
        self._upstream = conninfo_to_dict(upstream_url)
        self._upstream_url = upstream_url
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._lost_requests, self._lost_replies = Counter[bytes](), Counter[bytes]()
        self.refusing = False
        """Cut every new connection at once, as if the database were away."""
        self.round_trips = 0
        """How often a client spoke for the first time or after the server had spoken."""
        self.rewrite_reply: Callable[[bytes], bytes] = lambda data: data

    @property
    def url(self) -> str:
        """The same database by way of this proxy; without TLS, so that it can be read."""
        assert self._server is not None, "inside `database_proxy` only"
        host, port = self._server.sockets[0].getsockname()[:2]
        query = {"sslmode": "disable", "gssencmode": "disable"}
        url = make_url(self._upstream_url).set(host=host, port=port, query=query)
        return url.render_as_string(hide_password=False)

    def lose_request(self, text: bytes = COMMIT, times: int = 1) -> None:
        """Cut the connection before a request with this text reaches the server."""
        self._lost_requests[text] += times

    def lose_reply_to(self, text: bytes = COMMIT, times: int = 1) -> None:
        """Let the server do all of a request with this text, keep the reply and cut the connection."""
        self._lost_replies[text] += times

    def cut(self) -> None:
        """Cut every open connection now."""
        for writers in self._links.values():
            for writer in writers:
                writer.transport.abort()

    def loses_request(self, data: bytes) -> bool:
        """For a link: whether this one shall be lost; counts it."""
        return _count(self._lost_requests, data)

    def loses_reply_to(self, data: bytes) -> bool:
        """For a link: whether this one's reply shall be lost; counts it."""
        return _count(self._lost_replies, data)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        tasks = list(self._links)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = [writer]
        try:
            if not self.refusing:
                await self._link(reader, writer, self._links[task])
        except (OSError, asyncio.CancelledError):
            pass  # whatever broke, both ends are cut below
        finally:
            for each in self._links.pop(task):
                each.transport.abort()

    async def _link(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, writers: list[asyncio.StreamWriter]
    ) -> None:
        server_reader, server_writer = await self._connect()
        writers.append(server_writer)
        link = _Link(self)
        pumps = [
            asyncio.create_task(link.to_server(reader, server_writer)),
            asyncio.create_task(link.to_client(server_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = str(self._upstream.get("host") or "localhost")
        port = int(str(self._upstream.get("port") or 5432))
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


def _count(expected: Counter[bytes], data: bytes) -> bool:
    for text, left in expected.items():
        if left and text in data:
            expected[text] -= 1
            return True
    return False


class _Link:
    """One client's connection: two pumps that know what the other has just done."""

    def __init__(self, proxy: DatabaseProxy) -> None:
        self._proxy = proxy
        self._server_spoke = True
        self._keep_reply = False

    async def to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy = self._proxy
        while data := await reader.read(65536):
            if self._server_spoke:
                proxy.round_trips += 1
                self._server_spoke = False
            if proxy.loses_request(data):
                return
            if proxy.loses_reply_to(data):
                self._keep_reply = True
            writer.write(data)
            await writer.drain()

    async def to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self._server_spoke = True
            if self._keep_reply:
                if _READY_AND_IDLE in data:
                    return
                continue
            writer.write(self._proxy.rewrite_reply(data))
            with suppress(ConnectionError):
                await writer.drain()


@asynccontextmanager
async def database_proxy(upstream_url: str) -> AsyncGenerator[DatabaseProxy]:
    """A proxy to the database of this URL, on the running loop; closed with all its connections."""
    proxy = DatabaseProxy(upstream_url)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
