"""The proxy changes the bytes of its link as its state says, and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from urllib.parse import urlsplit

import pytest

from tests.support.proxy import CLEAR, Flow, LinkState, Proxy

PATIENCE_SECONDS = 10.0
SILENCE_SECONDS = 0.15


@dataclass(frozen=True, slots=True)
class Connection:
    """Both ends of a connection through the proxy."""

    client: asyncio.StreamReader
    to_server: asyncio.StreamWriter
    server: asyncio.StreamReader
    to_client: asyncio.StreamWriter


@dataclass(slots=True)
class Ends:
    """A client and a server with a proxy between them."""

    proxy: Proxy
    _accepted: "asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]"
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self) -> Connection:
        client, to_server = await asyncio.open_connection("127.0.0.1", urlsplit(self.proxy.url).port)
        server, to_client = await asyncio.wait_for(self._accepted.get(), PATIENCE_SECONDS)
        self._writers += [to_server, to_client]
        return Connection(client, to_server, server, to_client)

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def proxied() -> AsyncIterator[Ends]:
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue(10)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"amqp://me:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/here"
    async with Proxy(url).listening() as proxy:
        ends = Ends(proxy, accepted)
        try:
            yield ends
        finally:
            ends.close()
            server.close()
    await server.wait_closed()


async def soon(awaited: Awaitable[bytes]) -> bytes:
    return await asyncio.wait_for(awaited, PATIENCE_SECONDS)


async def arrives(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: bytes) -> bool:
    writer.write(piece)
    try:
        return await asyncio.wait_for(reader.readexactly(len(piece)), SILENCE_SECONDS) == piece
    except TimeoutError:
        return False


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await soon(reader.read(1)) == b""
    except ConnectionError:
        return True


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a killed process does that had not read all."""
    socket = writer.get_extra_info("socket")
    socket.setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
    writer.transport.abort()


async def test_dropped_answers_are_lost_while_requests_arrive() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.state = LinkState(down=Flow.DROP)
        assert await arrives(connection.server, connection.to_server, b"commit")
        assert not await arrives(connection.client, connection.to_client, b"committed")
        ends.proxy.state = CLEAR
        assert await ended(connection.client)
        assert await ended(connection.server)


async def test_held_bytes_arrive_when_the_link_is_clear_again() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.state = LinkState(up=Flow.HOLD, down=Flow.HOLD)
        assert not await arrives(connection.server, connection.to_server, b"claim")
        ends.proxy.state = CLEAR
        assert await soon(connection.server.readexactly(5)) == b"claim"
        assert await arrives(connection.client, connection.to_client, b"claimed")


@pytest.mark.parametrize("flow", [Flow.HOLD, Flow.DROP])
async def test_the_end_of_a_client_reaches_the_server_only_when_the_link_is_clear_again(
    flow: Flow,
) -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        assert await arrives(connection.server, connection.to_server, b"hello")
        ends.proxy.state = LinkState(up=flow)
        reset(connection.to_server)
        assert not await arrives(connection.server, connection.to_client, b"anybody?")
        assert ends.proxy.connections == 1
        ends.proxy.state = CLEAR
        assert await ended(connection.server)


async def test_a_cut_link_breaks_open_connections_and_refuses_new_ones() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.state = LinkState(refuses=True)
        assert await ended(connection.client)
        assert await ended(connection.server)
        port = urlsplit(ends.proxy.url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ended(reader)
        writer.close()
        ends.proxy.state = CLEAR
        again = await ends.connect()
        assert await arrives(again.server, again.to_server, b"hello")
