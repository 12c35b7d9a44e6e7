"""Keep one connection to the broker alive: connect, serve, and after a loss connect again, until cancelled.

In: the broker's AMQP URLs and what to do with each living connection. Out: `Link`, one connection from its
first to its last moment, and for /readyz whether there is one, whether the broker blocks it, the last error.
Keeps P7 on the wire: whatever broke, the next session, with the next node, declares and consumes all anew.

aio-pika's own recovery (RobustConnection) is not used: a delivery is void with its channel, a half-confirmed
batch with its own, so a restored channel would hide what must be given up. Here one loop rebuilds all.

Next: `publisher` and `consumer` say what a session does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import CONNECTION_EXCEPTIONS
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ChannelPreconditionFailed
from yarl import URL

from turnstile.common.amqp_url import amqp_urls
from turnstile.common.broker.bulk_channel import (
    BodyFilter,
    BulkChannel,
    ChannelLost,
    DeliverySink,
    is_blocked,
    open_bulk_channel,
)
from turnstile.common.broker.decoding import read_leniently
from turnstile.common.tls import explained

logger = logging.getLogger(__name__)

_REFUSED_DECLARATIONS = (ChannelPreconditionFailed, ChannelAccessRefused, ChannelLockedResource)

T = TypeVar("T")
Declare = Callable[[AbstractChannel], Awaitable[None]]


class BrokerUnavailable(Exception):
    """The broker did not answer in time or the connection broke: the outcome is unknown, so repeat it."""


class NotSent(BrokerUnavailable):
    """There was no usable connection: nothing of it reached the broker."""


class NotConfirmed(BrokerUnavailable):
    """The connection stands and the broker fell silent: one of the queues concerned may never answer."""


class DeclarationRefused(BrokerUnavailable):
    """The broker answered, and does not declare it: it exists with other properties, or belongs to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTimeouts:
    """How long each exchange with the broker may take, in seconds."""

    connect_seconds: float = 5.0
    """From the first packet to an open connection."""
    rpc_seconds: float = 5.0
    """One answered method, or one set of declarations."""
    confirm_seconds: float = 10.0
    """The longest silence while written messages are unconfirmed."""
    wait_seconds: float = 5.0
    """How long a publish waits for a usable connection before it gives up."""
    heartbeat_seconds: int = 10
    """What client and broker agree on; either gives up the other after three of them."""
    quiet_seconds: float = 15.0
    """After so long without a delivery a subscription starts anew: RabbitMQ 3.10 can forget a consumer
    without a word, as when its queue is deleted and at once declared again."""
    backoff_first_seconds: float = 0.1
    """The pause before the second attempt to connect; it doubles from there."""
    backoff_max_seconds: float = 5.0
    """The longest pause between two attempts."""


async def answered(request: Awaitable[T], timeout_seconds: float) -> T:
    """Await the library within a time limit; raise BrokerUnavailable for every way it can fail.

    The library cancels its callers when a connection dies: a cancellation nobody asked this task for is a
    loss. And it answers a cancellation with errors and results of its own: one that somebody did ask for
    stays one.
    """
    task = asyncio.current_task()
    assert task is not None
    asked_before = task.cancelling()
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = await request
    except asyncio.CancelledError as error:
        if task.cancelling() > asked_before:
            raise
        raise BrokerUnavailable("the connection closed") from error
    except TimeoutError as error:
        _stay_cancelled(task, asked_before)
        raise BrokerUnavailable(f"the broker did not answer within {timeout_seconds:g} s") from error
    except (ChannelLost, *CONNECTION_EXCEPTIONS) as error:
        _stay_cancelled(task, asked_before)
        raise BrokerUnavailable(str(error) or repr(error)) from error
    _stay_cancelled(task, asked_before)
    return answer


def _stay_cancelled(task: asyncio.Task[object], asked_before: int) -> None:
    if task.cancelling() > asked_before:
        raise asyncio.CancelledError


class Link:
    """One living connection."""

    def __init__(
        self,
        connection: aio_pika.Connection,
        amqp: aiormq.Connection,
        transport: asyncio.WriteTransport,
        timeouts: BrokerTimeouts,
    ) -> None:
        self._connection = connection
        self._amqp = amqp
        self._transport = transport
        self._timeouts = timeouts
        self.gone: asyncio.Future[object] = amqp.closing
        """Done, with whatever exception or none, once the connection is closed."""
        self.served = False

    @property
    def is_open(self) -> bool:
        """Whether what is written now can still reach the broker."""
        return not self.gone.done() and not self._transport.is_closing()

    @property
    def blocked(self) -> bool:
        """Whether the broker told us that it takes no publishes for now."""
        return is_blocked(self._amqp)

    @property
    def write_buffer_bytes(self) -> int:
        """What we wrote and the network has not taken yet."""
        return self._transport.get_write_buffer_size()

    def serving(self) -> None:
        """Say that the session is set up: the next attempt after a loss starts without a long pause."""
        self.served = True

    async def declare(self, declare: Declare) -> None:
        """Run declarations on a channel of their own, so that a refused one ends nothing else.

        Raises DeclarationRefused, BrokerUnavailable.
        """
        channel = self._connection.channel(publisher_confirms=False)

        async def on_own_channel() -> None:
            async with channel:
                await declare(channel)

        try:
            await answered(on_own_channel(), self._timeouts.rpc_seconds)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, _REFUSED_DECLARATIONS):
                raise DeclarationRefused(str(error)) from error
            raise

    async def open_channel(
        self,
        *,
        confirms: bool = False,
        on_delivery: DeliverySink | None = None,
        keeps: BodyFilter | None = None,
    ) -> BulkChannel:
        """Open a channel for bulk work; deliveries are handed to `on_delivery` in the reader's own step.

        A body that `keeps` does not want, asked with its size, is dropped while it comes.
        """
        opening = open_bulk_channel(
            self._amqp, self._transport, confirms=confirms, on_delivery=on_delivery, keeps=keeps
        )
        return await answered(opening, self._timeouts.rpc_seconds)

    async def unblocked(self, timeout_seconds: float) -> None:
        """Wait until the broker takes publishes."""
        await answered(self._amqp.ready(), timeout_seconds)

    def abort(self) -> None:
        """Drop the connection at once, unsent bytes and all."""
        self._transport.abort()

    async def close(self) -> None:
        """Part in good order where the broker still listens, else drop it."""
        try:
            await answered(self._connection.close(), self._timeouts.rpc_seconds)
        except BrokerUnavailable:
            self.abort()
            await asyncio.wait({self.gone}, timeout=1.0)


class BrokerConnection:
    """The loop that keeps a `Link` standing, and its state for /readyz."""

    def __init__(self, url: str, *, name: str, timeouts: BrokerTimeouts) -> None:
        read_leniently()
        # In an order of its own, so that the processes of one installation spread over the nodes.
        self._urls = deque(amqp_urls(url, heartbeat=timeouts.heartbeat_seconds))
        random.shuffle(self._urls)
        self._name = name
        self._timeouts = timeouts
        self._link: Link | None = None
        self.last_error: str | None = None
        """Why the last session or attempt ended; None while all is well."""

    @property
    def connected(self) -> bool:
        """Whether a session is set up and its connection stands."""
        return self._link is not None and self._link.served and self._link.is_open

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no publishes for now (memory or disk alarm)."""
        return self._link is not None and self._link.blocked

    async def run(self, serve: Callable[[Link], Awaitable[None]]) -> NoReturn:
        """Connect and serve, for ever; `serve` returns or raises BrokerUnavailable when its link is gone."""
        pause_seconds = self._timeouts.backoff_first_seconds
        while True:
            try:
                link = await self._connect()
                self._link = link
                try:
                    await serve(link)
                    self._note("connection lost")
                finally:
                    self._link = None
                    if link.served:
                        pause_seconds = self._timeouts.backoff_first_seconds
                    await link.close()
            except BrokerUnavailable as error:
                self._note(str(error))
            self._urls.rotate(-1)
            # Jitter keeps the processes of one installation from knocking in step after a broker restart.
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))
            pause_seconds = min(pause_seconds * 2, self._timeouts.backoff_max_seconds)

    async def _connect(self) -> Link:
        url = self._urls[0]
        keeper = _TransportKeeper(url.scheme)
        connection = aio_pika.Connection(url, client_properties={"connection_name": self._name})
        connection.kwargs["transport_factory"] = keeper
        try:
            await answered(connection.connect(), self._timeouts.connect_seconds)
        except BaseException:
            await connection.close()
            raise
        assert connection.transport is not None
        assert keeper.transport is not None
        amqp = connection.transport.connection
        assert isinstance(amqp, aiormq.Connection)
        self.last_error = None
        logger.info("broker_connected", extra={"connection": self._name, "host": url.host, "port": url.port})
        return Link(connection, amqp, keeper.transport, self._timeouts)

    def _note(self, error: str) -> None:
        error = explained(error, authority="cafile in TURNSTILE_AMQP_URL")
        if error != self.last_error:
            logger.warning("broker_unavailable", extra={"connection": self._name, "error": error})
        self.last_error = error


class _TransportKeeper(TransportFactory):
    """Open the connection as the library does, and keep the transport, to read its level and abort it."""

    def __init__(self, scheme: str) -> None:
        self._factory = TLSTransportFactory() if scheme == "amqps" else TCPTransportFactory()
        self.transport: asyncio.WriteTransport | None = None

    async def create(self, url: URL, **options: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._factory.create(url, **options)
        self.transport = writer.transport
        return reader, writer
