"""The proxy does to bytes what its weather says, and to nothing else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from socket import SO_LINGER, SOL_SOCKET
from struct import pack

import pytest

from tests.proof.chaos.proxy import CLEAR, Flow, Proxy, Weather

PATIENCE_SECONDS = 10.0
SILENCE_SECONDS = 0.15


class Ends:
    """A client and a server with a proxy between them."""

    def __init__(self, proxy: Proxy, url: str) -> None:
        self.proxy = proxy
        self._url = url
        self._accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue(10)
        self._writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._accepted.put((reader, writer))

    async def connect(self) -> "Connection":
        port = int(self.proxy.url.rpartition(":")[2].partition("/")[0])
        client, to_server = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(to_server)
        server, to_client = await asyncio.wait_for(self._accepted.get(), PATIENCE_SECONDS)
        self._writers.append(to_client)
        return Connection(client, to_server, server, to_client)

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class Connection:
    def __init__(
        self,
        client: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
    ) -> None:
        self.client, self.to_server, self.server, self.to_client = client, to_server, server, to_client


@asynccontextmanager
async def proxied() -> AsyncIterator[Ends]:
    ends: Ends | None = None

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert ends is not None
        await ends.accept(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"amqp://me:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/here"
    async with Proxy(url).standing() as proxy:
        ends = Ends(proxy, url)
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_in_clear_weather_bytes_pass_untouched_both_ways() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        much = bytes(range(256)) * 4000
        connection.to_server.write(much)
        assert await soon(connection.server.readexactly(len(much))) == much
        connection.to_client.write(much)
        assert await soon(connection.client.readexactly(len(much))) == much
        assert ends.proxy.url.startswith("amqp://me:secret@127.0.0.1:")
        assert ends.proxy.url.endswith("/here")


async def test_what_is_delayed_arrives_late_and_in_order() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.weather = Weather(delay_seconds=0.3)
        sent_at = asyncio.get_running_loop().time()
        for piece in (b"one ", b"two ", b"three"):
            connection.to_server.write(piece)
            await asyncio.sleep(0.01)
        assert await soon(connection.server.readexactly(13)) == b"one two three"
        assert asyncio.get_running_loop().time() - sent_at >= 0.3


async def test_answers_that_are_dropped_vanish_while_requests_arrive() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.weather = Weather(down=Flow.DROP)
        assert await arrives(connection.server, connection.to_server, b"commit")
        assert not await arrives(connection.client, connection.to_client, b"committed")
        ends.proxy.weather = CLEAR
        assert await ended(connection.client)
        assert await ended(connection.server)


async def test_a_link_cut_one_way_still_carries_the_other() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.weather = Weather(up=Flow.DROP)
        assert not await arrives(connection.server, connection.to_server, b"renew")
        assert await arrives(connection.client, connection.to_client, b"stop")


async def test_what_is_held_arrives_when_the_weather_clears() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.weather = Weather(up=Flow.HOLD, down=Flow.HOLD)
        assert not await arrives(connection.server, connection.to_server, b"claim")
        ends.proxy.weather = CLEAR
        assert await soon(connection.server.readexactly(5)) == b"claim"
        assert await arrives(connection.client, connection.to_client, b"claimed")


@pytest.mark.parametrize("flow", [Flow.HOLD, Flow.DROP])
async def test_the_server_does_not_learn_of_a_client_that_is_gone_before_the_weather_clears(
    flow: Flow,
) -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        assert await arrives(connection.server, connection.to_server, b"hello")
        ends.proxy.weather = Weather(up=flow)
        reset(connection.to_server)
        assert not await arrives(connection.server, connection.to_client, b"anybody?")
        assert ends.proxy.connections == 1
        ends.proxy.weather = CLEAR
        assert await ended(connection.server)


async def test_a_cut_link_breaks_what_stands_and_refuses_what_comes() -> None:
    async with proxied() as ends:
        connection = await ends.connect()
        ends.proxy.weather = Weather(refuses=True)
        assert await ended(connection.client)
        assert await ended(connection.server)
        port = int(ends.proxy.url.rpartition(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ended(reader)
        writer.close()
        ends.proxy.weather = CLEAR
        again = await ends.connect()
        assert await arrives(again.server, again.to_server, b"hello")


async def test_a_proxy_that_goes_takes_its_connections_along() -> None:
    async with proxied() as ends:
        proxy = ends.proxy
        await ends.connect()
        await until(lambda: proxy.connections == 1)
    assert proxy.connections == 0
