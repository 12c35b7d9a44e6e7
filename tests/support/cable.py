"""A cable between a client and a server: cut it, at once or in the middle of what is sent, or freeze it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

_PIECE_BYTES = 1 << 16


class Cable:
    """Passes on every connection made to `url`, byte by byte, until it is cut."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._writers: set[asyncio.StreamWriter] = set()
        self._cut_after_bytes: int | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._pause_seconds = 0.0
        self.url = ""

    @property
    def is_used(self) -> bool:
        """Whether any connection runs through it now."""
        return bool(self._writers)

    def cut(self) -> None:
        """Break all connections now; new ones can be made."""
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, count_bytes: int) -> None:
        """Break all connections once clients have sent so many more bytes."""
        self._cut_after_bytes = count_bytes

    def slow_down(self, pause_seconds: float) -> None:
        """Hold up each piece of 64 KiB, in either direction, for so long."""
        self._pause_seconds = pause_seconds

    def freeze(self) -> None:
        """Let nothing through any more, in either direction, not even that an end has closed."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let everything through, beginning with what was sent meanwhile, late as it is."""
        self._flowing.set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator["Cable"]:
        """Listen until the end of the block."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        account, at, _ = self._server.netloc.rpartition("@")
        self.url = urlunsplit(self._server._replace(netloc=f"{account}{at}127.0.0.1:{port}"))
        try:
            yield self
        finally:
            server.close()
            self.thaw()
            self.cut()
            await server.wait_closed()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
        ends = {to_client, to_server}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._upwards(client, to_server), name="cable-up")
                tasks.create_task(self._downwards(server, to_client), name="cable-down")
        except* OSError:
            pass
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _upwards(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while piece := await self._piece(client):
            if self._cut_after_bytes is not None:
                allowed, self._cut_after_bytes = (
                    piece[: self._cut_after_bytes],
                    self._cut_after_bytes - len(piece),
                )
                if self._cut_after_bytes <= 0:
                    self._cut_after_bytes = None
                    to_server.write(allowed)
                    await to_server.drain()
                    self.cut()
                    return
            to_server.write(piece)
            await to_server.drain()
        to_server.transport.abort()

    async def _downwards(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while piece := await self._piece(server):
            to_client.write(piece)
            await to_client.drain()
        to_client.transport.abort()

    async def _piece(self, reader: asyncio.StreamReader) -> bytes:
        piece = await reader.read(_PIECE_BYTES)
        await self._flowing.wait()
        await asyncio.sleep(self._pause_seconds)
        return piece


@asynccontextmanager
async def cable_to(server_url: str) -> AsyncIterator[Cable]:
    async with Cable(server_url).laid() as cable:
        yield cable
