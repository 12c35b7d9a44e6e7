"""A TCP proxy between one client and one server that can delay, hold, drop, refuse or cut connections.

In: connections of that client alone. Out: the same bytes, late, held, lost in one direction or in both, or
no connection at all, as its `state` says. So a fault affects one link of one service, and not the server
(P5, P6).
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
    """What happens to the bytes of one direction."""

    PASS = "pass"
    HOLD = "hold"
    """They wait until the state clears, and arrive then."""
    DROP = "drop"
    """They are lost; the connection breaks when the state clears, since the rest would make no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The state of a link; `up` is from the service to the server."""

    delay_seconds: float = 0.0
    """Smallest delay of every piece."""
    up: Flow = Flow.PASS
    down: Flow = Flow.PASS
    refuses: bool = False
    """All connections break, and no new one is accepted."""

    @property
    def drops(self) -> bool:
        """Whether bytes are being lost."""
        return Flow.DROP in (self.up, self.down)


CLEAR: Final = LinkState()
_FROZEN: Final = LinkState(up=Flow.HOLD, down=Flow.HOLD)


class Proxy:
    """Listens on a port of its own for the length of `listening`; `url` leads to the server through it."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._state = CLEAR
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._cut_after_bytes: int | None = None
        self.url = ""
        self.accepted = 0
        """How many connections were opened so far."""

    @property
    def connections(self) -> int:
        """How many connections are open, or seem to be."""
        return len(self._connections)

    @property
    def state(self) -> LinkState:
        """What happens to bytes from now on."""
        return self._state

    @state.setter
    def state(self, state: LinkState) -> None:
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()
        for connection in list(self._connections):
            if state.refuses or (connection.lost_bytes and not state.drops):
                connection.task.cancel()

    def freeze(self) -> None:
        """Forward nothing in either direction, not even the end of a connection."""
        self.state = _FROZEN

    def thaw(self) -> None:
        """Forward everything again, first what was sent in the meantime."""
        self.state = CLEAR

    def cut(self) -> None:
        """Break all connections now; new ones can be opened."""
        for connection in self._connections:
            connection.cut()

    def cut_after(self, count_bytes: int) -> None:
        """Break all connections after clients sent this number of further bytes."""
        self._cut_after_bytes = count_bytes

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Proxy"]:
        """Listen until the end of the block."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        account, at, _ = self._server.netloc.rpartition("@")
        self.url = urlunsplit(self._server._replace(netloc=f"{account}{at}127.0.0.1:{port}"))
        try:
            yield self
        finally:
            server.close()
            tasks = [connection.task for connection in self._connections]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(task, to_client)
        self._connections.add(connection)
        self.accepted += 1
        # Only this proxy cancels the task: that breaks this connection and nothing else.
        with suppress(asyncio.CancelledError, OSError, TimeoutError):
            if not self._state.refuses:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    server, to_server = await asyncio.open_connection(
                        self._server.hostname, self._server.port
                    )
                connection.writers.append(to_server)
                await self._carry(connection, (client, to_server), (server, to_client))
        self._connections.discard(connection)
        connection.cut()

    async def _carry(
        self,
        connection: "_Connection",
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        pumps = [
            asyncio.create_task(self._pump(connection, *up, upwards=True), name="proxy-up"),
            asyncio.create_task(self._pump(connection, *down, upwards=False), name="proxy-down"),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        connection: "_Connection",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        upwards: bool,
    ) -> None:
        """Forward until one side has closed, and forward that too."""
        now = asyncio.get_running_loop().time
        while piece := await _read(reader):
            arrived_at = now()
            while (flow := self._flow(upwards)) is Flow.HOLD:
                await self._changed.wait()
            if flow is Flow.DROP:
                connection.lost_bytes = True
                continue
            await asyncio.sleep(max(0.0, arrived_at + self._state.delay_seconds - now()))
            piece, is_cut = self._before_cut(piece) if upwards else (piece, False)
            try:
                writer.write(piece)
                await writer.drain()
            except OSError:
                # The end of the receiver is forwarded in the other direction.
                await self._end_of_stream(connection, upwards=not upwards)
                return
            if is_cut:
                self.cut()
                return
        await self._end_of_stream(connection, upwards=upwards)

    def _before_cut(self, piece: bytes) -> tuple[bytes, bool]:
        """Return the part of a piece that precedes the cut of `cut_after`, and whether the cut follows."""
        left_bytes = self._cut_after_bytes
        if left_bytes is None:
            return piece, False
        is_cut = len(piece) >= left_bytes
        self._cut_after_bytes = None if is_cut else left_bytes - len(piece)
        return piece[:left_bytes], is_cut

    async def _end_of_stream(self, connection: "_Connection", *, upwards: bool) -> None:
        """Wait until the end of one side can reach the other."""
        while (flow := self._flow(upwards)) is not Flow.PASS:
            connection.lost_bytes |= flow is Flow.DROP
            await self._changed.wait()
        await asyncio.sleep(self._state.delay_seconds)

    def _flow(self, upwards: bool) -> Flow:
        return self._state.up if upwards else self._state.down


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_PIECE_BYTES)
    except OSError:
        return b""


class _Connection:
    """One connection through the proxy."""

    def __init__(self, task: "asyncio.Task[object]", to_client: asyncio.StreamWriter) -> None:
        self.task = task
        self.writers = [to_client]
        self.lost_bytes = False

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@asynccontextmanager
async def proxy_to(server_url: str) -> AsyncIterator[Proxy]:
    """Listen in front of a server until the end of the block."""
    async with Proxy(server_url).listening() as proxy:
        yield proxy
