"""Keeps one connection to the broker: connects, serves, and reconnects after a loss, until cancelled.

In: the broker's AMQP URLs and what to do with each connection. Out: `Link`, one open connection, and for
/readyz whether there is one, whether the broker blocks it, and the last error. Keeps P7 on the wire: after
any loss the next session, with the next node, declares and consumes everything again.

aio-pika's own recovery (RobustConnection) is not used: a delivery is void with its channel and a
half-confirmed batch with its own, so a restored channel would hide what must be given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ChannelPreconditionFailed
from yarl import URL

from turnstile.common.broker.channel import (
    BodyFilter,
    BulkChannel,
    DeliverySink,
    is_blocked,
    open_bulk_channel,
)
from turnstile.common.broker.errors import (
    BrokerUnavailable,
    DeclarationRefused,
    answered,
    declaration_with_remedy,
    explained,
    with_remedy,
)
from turnstile.common.broker.reader import METHOD, FrameReader
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.urls import amqp_urls

logger = logging.getLogger(__name__)

_RANDOM = random.Random()
"""Not the generator of the module: that is the user's, who may have seeded it."""

_REFUSED_DECLARATIONS = (ChannelPreconditionFailed, ChannelAccessRefused, ChannelLockedResource)

_HANDSHAKE_SECONDS = 1.0
"""How long a cancelled attempt to connect is continued, so that it can be closed in good order."""

_CLOSE_SECONDS = 1.0
"""How long the broker may take to answer a close: the end of a process waits for it."""

_CONNECTION_CLOSE = struct.pack(">HH", 10, 50)

Declare = Callable[[AbstractChannel], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTimeouts:
    """How long each exchange with the broker may take, in seconds."""

    connect_seconds: float = 5.0
    """From the first packet to an open connection."""
    rpc_seconds: float = 5.0
    """One method with an answer, or one set of declarations."""
    confirm_seconds: float = 10.0
    """The longest silence while written messages are unconfirmed."""
    wait_seconds: float = 5.0
    """How long a publish waits for a usable connection before it gives up."""
    heartbeat_seconds: int = 10
    """Agreed with the broker; either side closes the connection after three missed ones."""
    quiet_seconds: float = 15.0
    """After this long without a delivery a subscription is renewed: RabbitMQ 3.10 can lose a consumer without
    notice, for instance when its queue is deleted and declared again at once."""
    backoff_first_seconds: float = 0.1
    """The pause before the second attempt to connect; it doubles from there."""
    backoff_max_seconds: float = 5.0
    """The longest pause between two attempts."""


class Link:
    """One open connection."""

    def __init__(
        self,
        connection: aio_pika.Connection,
        amqp: aiormq.Connection,
        transport: asyncio.WriteTransport,
        keeper: _TransportKeeper,
        timeouts: BrokerTimeouts,
        *,
        on_serving: Callable[[], None],
    ) -> None:
        assert keeper.reader is not None
        self._connection = connection
        self._amqp = amqp
        self._transport = transport
        self._keeper = keeper
        self._reader = keeper.reader
        self._timeouts = timeouts
        self._on_serving = on_serving
        self.gone: asyncio.Future[object] = amqp.closing
        """Done, with any exception or none, once the connection is closed."""
        self.served = False

    @property
    def is_open(self) -> bool:
        """Whether what is written now can still reach the broker."""
        return not self.gone.done() and not self._transport.is_closing()

    @property
    def server_version(self) -> str:
        """The version of the broker, as it says."""
        version = self._amqp.server_properties.get("version", "")
        return version.decode() if isinstance(version, bytes) else str(version)

    @property
    def close_reason(self) -> str | None:
        """Why the broker closed the connection, in its words; None: it did not."""
        return self._keeper.close_reason

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no publishes for now (memory or disk alarm)."""
        return is_blocked(self._amqp)

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes written and not yet accepted by the network."""
        return self._transport.get_write_buffer_size()

    @property
    def silent_seconds(self) -> float:
        """How long nothing has arrived. An idle broker sends two heartbeats in each of their intervals."""
        return asyncio.get_running_loop().time() - self._reader.heard_at

    def serving(self) -> None:
        """Mark the session as set up: the outage is over, and the next one begins without a long pause."""
        self.served = True
        self._on_serving()

    async def declare(self, declare: Declare) -> None:
        """Run declarations on a separate channel, so that a refused one closes nothing else.

        Raises DeclarationRefused, BrokerUnavailable.
        """

        async def on_own_channel() -> None:
            # In here: a connection that is being closed refuses it.
            async with self._connection.channel(publisher_confirms=False) as channel:
                await declare(channel)

        try:
            await answered(on_own_channel(), self._timeouts.rpc_seconds)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, _REFUSED_DECLARATIONS):
                raise DeclarationRefused(declaration_with_remedy(str(error))) from error
            raise

    async def open_channel(
        self,
        *,
        confirms: bool = False,
        on_delivery: DeliverySink | None = None,
        keeps: BodyFilter | None = None,
    ) -> BulkChannel:
        """Open a channel for bulk work; deliveries are passed to `on_delivery` while the transport reads.

        `keeps` decides by size whether a body is kept or dropped while it is read.
        """
        opening = open_bulk_channel(
            self._amqp, self._transport, self._reader, confirms=confirms, on_delivery=on_delivery, keeps=keeps
        )
        return await answered(opening, self._timeouts.rpc_seconds)

    async def unblocked(self, timeout_seconds: float) -> None:
        """Wait until the broker takes publishes."""
        await answered(self._amqp.ready(), timeout_seconds)

    async def until_lost(self, *channels: BulkChannel) -> None:
        """Return once the connection or one of these channels is gone.

        Raises BrokerUnavailable with the broker's reason, where it has closed a channel.
        """
        endings = {self.gone, *(channel.gone for channel in channels)}
        await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        for reason in filter(None, [channel.close_reason for channel in channels]):
            raise BrokerUnavailable(explained(reason)) from _Closed(reason)

    def abort(self) -> None:
        """Drop the connection at once, unsent bytes and all."""
        self._transport.abort()

    async def close(self) -> None:
        """Close in good order where the broker still answers, else abort."""
        try:
            await answered(self._connection.close(), min(self._timeouts.rpc_seconds, _CLOSE_SECONDS))
        except BrokerUnavailable:
            self.abort()
            await asyncio.wait({self.gone}, timeout=1.0)


class BrokerConnection:
    """The loop that keeps a `Link` open, and its state for /readyz."""

    def __init__(self, url: str, *, name: str, timeouts: BrokerTimeouts) -> None:
        # Shuffled, so that the processes of one installation spread over the nodes.
        self._urls = deque(amqp_urls(url, heartbeat=timeouts.heartbeat_seconds))
        _RANDOM.shuffle(self._urls)
        self._name = name
        self._timeouts = timeouts
        self._link: Link | None = None
        self._unavailable = Episodes(logger, "broker_unavailable")
        self._has_connected = False
        self.last_error: str | None = None
        """Why the last session or attempt ended; None while a session is set up."""

    @property
    def connected(self) -> bool:
        """Whether a session is set up and its connection is open."""
        return self._link is not None and self._link.served and self._link.is_open

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no publishes for now (memory or disk alarm)."""
        return self._link is not None and self._link.blocked

    async def run(self, serve: Callable[[Link], Awaitable[None]]) -> NoReturn:
        """Connect and serve until cancelled; `serve` ends, or raises BrokerUnavailable, with its link."""
        pause_seconds = self._timeouts.backoff_first_seconds
        while True:
            link = None
            try:
                link = await self._connect()
                self._link = link
                try:
                    await serve(link)
                    self._note(
                        self._reason("connection lost", link), cause=link.close_reason or "connection lost"
                    )
                finally:
                    self._link = None
                    if link.served:
                        pause_seconds = self._timeouts.backoff_first_seconds
                    await link.close()
            except BrokerUnavailable as error:
                self._note(self._reason(str(error), link), cause=_cause_of(error))
            self._urls.rotate(-1)
            # Jitter keeps the processes of one installation from reconnecting in step after a broker restart.
            await asyncio.sleep(pause_seconds * _RANDOM.uniform(0.5, 1.0))
            pause_seconds = min(pause_seconds * 2, self._timeouts.backoff_max_seconds)

    async def connect(self) -> Link:
        """Connect once, for a caller that decides when to connect again; the next call tries the next node.

        Raises BrokerUnavailable.
        """
        try:
            return await self._connect()
        except BrokerUnavailable as error:
            self._note(str(error), cause=_cause_of(error))
            self._urls.rotate(-1)
            raise

    async def _connect(self) -> Link:
        url = self._urls[0]
        keeper = _TransportKeeper(url.scheme)
        connection = aio_pika.Connection(url, client_properties={"connection_name": self._name})
        connection.kwargs["transport_factory"] = keeper
        connecting = asyncio.ensure_future(connection.connect())
        try:
            await answered(asyncio.shield(connecting), self._timeouts.connect_seconds)
        except BrokerUnavailable as error:
            await _end(connection, connecting, keeper)
            if (closed := keeper.close_reason) is not None:
                raise BrokerUnavailable(with_remedy(closed, url)) from _Closed(closed)
            raise BrokerUnavailable(with_remedy(str(error), url)) from error
        except BaseException:
            if keeper.transport is not None:
                await asyncio.wait({connecting}, timeout=_HANDSHAKE_SECONDS)
            await _end(connection, connecting, keeper)
            raise
        assert connection.transport is not None
        assert keeper.transport is not None
        assert keeper.reader is not None
        amqp = connection.transport.connection
        assert isinstance(amqp, aiormq.Connection)
        keeper.reader.frame_bytes_max = amqp.connection_tune.frame_max or 0
        on_serving = partial(self._note_serving, url)
        return Link(connection, amqp, keeper.transport, keeper, self._timeouts, on_serving=on_serving)

    def _note_serving(self, url: URL) -> None:
        # Not before: a broker that refuses what a session declares is connected again and again.
        fields = {"connection": self._name, "host": url.host, "port": url.port}
        # Later sessions are the ends of failures, at most one a minute.
        self._unavailable.all_work(**fields)
        self.last_error = None
        if not self._has_connected:
            self._has_connected = True
            logger.info("broker_connected", extra=fields)

    def _reason(self, error: str, link: Link | None) -> str:
        """Return why the session ended: in the broker's words, where it has closed the connection."""
        closed = None if link is None else link.close_reason
        return error if closed is None else with_remedy(closed, self._urls[0])

    def _note(self, error: str, *, cause: str) -> None:
        # Not by its text, which may name another host or port each time.
        self._unavailable.failed(cause, connection=self._name, error=error)
        self.last_error = error


async def _end(
    connection: aio_pika.Connection, connecting: asyncio.Future[None], keeper: _TransportKeeper
) -> None:
    """End an attempt to connect. The library keeps a socket open whose `connect` is cancelled at its end."""
    connecting.cancel()
    await asyncio.wait({connecting})
    await connection.close()
    if keeper.transport is not None:
        keeper.transport.abort()


def _cause_of(error: BaseException) -> str:
    """Return the broker's reason, or the class of the error that led to this one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) if isinstance(error, _Closed) else type(error).__name__


class _Closed(Exception):
    """The broker closed the connection or a channel, with this reason."""


class _TransportKeeper(TransportFactory):
    """Opens the connection as the library does, with our reader; keeps the transport to measure and abort."""

    def __init__(self, scheme: str) -> None:
        self._factory = TLSTransportFactory() if scheme == "amqps" else TCPTransportFactory()
        self.transport: asyncio.WriteTransport | None = None
        self.reader: FrameReader | None = None
        self.close_reason: str | None = None
        """The broker's, if it closed the connection: the library gives no reason for a failed handshake."""

    async def create(self, url: URL, **options: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._factory.create(url, **options)
        self.transport = writer.transport
        self.reader = FrameReader(writer.transport)
        self.reader.add_channel(0, self._read_close)
        return reader, writer

    def _read_close(self, kind: int, data: bytes, start: int, end: int) -> bool:
        # connection.close: the method, a reply code, and the text behind the octet of its size (1.4.2.9).
        if kind == METHOD and data.startswith(_CONNECTION_CLOSE, start, end):
            text = start + len(_CONNECTION_CLOSE) + 3
            self.close_reason = data[text : text + data[text - 1]].decode(errors="replace")
        return False
