"""A TCP proxy between one service and one server, with a weather of its own.

In: connections of that service alone. Out: the same bytes, late, held, lost in one direction or in both, or
no connection at all, as its `weather` says. In clear weather they are untouched. So a fault hits one link of
one service, and a bad link is told apart from a bad server (P5, P6).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_PIECE_BYTES: Final = 1 << 16
_CONNECT_SECONDS: Final = 10.0


class Flow(Enum):
    """What becomes of the bytes of one direction."""

    PASS = "pass"
    HOLD = "hold"
    """They wait, and go on when the weather clears: what was sent long ago arrives then."""
    DROP = "drop"
    """They vanish; the connection breaks when the weather clears, since the rest would make no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The state of a link; `up` is from the service to the server."""

    delay_seconds: float = 0.0
    """Every piece is this late, at least."""
    up: Flow = Flow.PASS
    down: Flow = Flow.PASS
    refuses: bool = False
    """All that is connected breaks, and nothing connects."""

    @property
    def drops(self) -> bool:
        """Whether bytes are being lost."""
        return Flow.DROP in (self.up, self.down)


CLEAR: Final = Weather()


class Proxy:
    """Listens on a port of its own for the length of `standing`; `url` leads to the server through it."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._weather = CLEAR
        self._changed = asyncio.Event()
        self._links: set[_Link] = set()
        self.url = ""

    @property
    def connections(self) -> int:
        """How many connections stand, or seem to."""
        return len(self._links)

    @property
    def weather(self) -> Weather:
        """What bytes meet from now on."""
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()
        for link in list(self._links):
            if weather.refuses or (link.lost_bytes and not weather.drops):
                link.task.cancel()

    @asynccontextmanager
    async def standing(self) -> AsyncIterator["Proxy"]:
        """Listen until the end of the block."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        account, at, _ = self._server.netloc.rpartition("@")
        self.url = urlunsplit(self._server._replace(netloc=f"{account}{at}127.0.0.1:{port}"))
        try:
            yield self
        finally:
            server.close()
            tasks = [link.task for link in self._links]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = _Link(task)
        self._links.add(link)
        ends = [to_client]
        # A cancellation here is ours: it breaks this connection and nothing else.
        with suppress(asyncio.CancelledError, OSError, TimeoutError):
            if not self._weather.refuses:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    server, to_server = await asyncio.open_connection(
                        self._server.hostname, self._server.port
                    )
                ends.append(to_server)
                await self._carry(link, (client, to_server), (server, to_client))
        self._links.discard(link)
        for end in ends:
            end.transport.abort()

    async def _carry(
        self,
        link: "_Link",
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        pumps = [
            asyncio.create_task(self._pump(link, *up, upwards=True), name="proxy-up"),
            asyncio.create_task(self._pump(link, *down, upwards=False), name="proxy-down"),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upwards: bool
    ) -> None:
        """Pass on until one side is gone, and the news of that has passed too."""
        now = asyncio.get_running_loop().time
        while piece := await _read(reader):
            arrived_at = now()
            while (flow := self._flow(upwards)) is Flow.HOLD:
                await self._changed.wait()
            if flow is Flow.DROP:
                link.lost_bytes = True
                continue
            await asyncio.sleep(max(0.0, arrived_at + self._weather.delay_seconds - now()))
            try:
                writer.write(piece)
                await writer.drain()
            except OSError:
                # That the receiver is gone is news that travels the other way.
                await self._news(link, upwards=not upwards)
                return
        await self._news(link, upwards=upwards)

    async def _news(self, link: "_Link", *, upwards: bool) -> None:
        """Wait until the end of one side can reach the other."""
        while (flow := self._flow(upwards)) is not Flow.PASS:
            link.lost_bytes |= flow is Flow.DROP
            await self._changed.wait()
        await asyncio.sleep(self._weather.delay_seconds)

    def _flow(self, upwards: bool) -> Flow:
        return self._weather.up if upwards else self._weather.down


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_PIECE_BYTES)
    except OSError:
        return b""


class _Link:
    """One connection through the proxy."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self.task = task
        self.lost_bytes = False
