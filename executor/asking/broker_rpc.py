"""Asks the leader on another host, over the broker, and takes such questions in each leader process.

A question goes to the exchange `executor.questions`. Every leader process has a queue of its own there, and
only the one that leads replies: so neither a takeover nor a leader that was stopped with a queue of its own
changes where questions go. Questions expire with the patience of their askers; replies are direct (RabbitMQ:
direct reply-to). Nothing here is persistent or confirmed: who gets no reply asks again.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel
from pamqp.common import FieldTable

from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import ChannelLost, answered
from turnstile.common.broker.message import Outgoing

logger = logging.getLogger(__name__)

EXCHANGE: Final = "executor.questions"
QUESTION: Final = "executor.question"
REPLY: Final = "executor.reply"
_REPLY_TO: Final = "amq.rabbitmq.reply-to"
_QUEUED_MAX: Final = 1000
"""Questions in the queue of one leader process; the oldest make room."""
_UNDER_WAY_MAX: Final = 1000
_WRITTEN_BYTES_MAX: Final = 8 * 1024 * 1024
"""What may be written and not accepted by the network; above it nothing is asked or replied."""
_TIMEOUTS: Final = BrokerTimeouts(backoff_max_seconds=2.0)
_ROUTE_SECONDS: Final = 5.0
"""How long a deleted exchange or binding may be missing."""

Take = Callable[[bytes, float, Callable[[bytes], None]], None]
"""Takes a question, how long its asker waits at most, and what the leader calls with the reply."""


async def declare_exchange(channel: AbstractChannel) -> None:
    """Create the exchange of the questions. Only executors may publish there."""
    await channel.declare_exchange(EXCHANGE, ExchangeType.FANOUT, durable=True)


class BrokerAsker:
    """Asks the executor that leads. `run` keeps it connected."""

    def __init__(self, amqp_url: str) -> None:
        self._connection = BrokerConnection(amqp_url, name="executor asker", timeouts=_TIMEOUTS)
        self._link: Link | None = None
        self._channel: BulkChannel | None = None
        self._waiting: dict[str, asyncio.Future[bytes]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether a question can be published."""
        return self._channel is not None and self._channel.usable

    async def run(self) -> None:
        """Stay connected until cancelled."""
        await self._connection.run(self._serve)

    async def _serve(self, link: Link) -> None:
        await link.declare(declare_exchange)
        channel = await link.open_channel(on_delivery=self._take_reply)
        consuming = channel.basic_consume(_REPLY_TO, _unused, no_ack=True)
        await answered(consuming, _TIMEOUTS.rpc_seconds)
        self._link, self._channel = link, channel
        link.serving()
        try:
            await link.until_lost(channel)
        finally:
            self._link = self._channel = None

    async def ask(self, data: bytes, seconds: float) -> bytes | None:
        """Return the reply; None: there is none in time, or no connection."""
        link, channel = self._link, self._channel
        if link is None or channel is None or link.blocked or len(self._waiting) >= _UNDER_WAY_MAX:
            return None
        if link.write_buffer_bytes > _WRITTEN_BYTES_MAX:
            return None
        number = str(uuid.uuid4())
        message = Outgoing(
            exchange=EXCHANGE, routing_key="", body=data, type=QUESTION, message_id=number,
            correlation_id=number, reply_to=_REPLY_TO, app_id="executor", persistent=False, mandatory=False,
            expiration_ms=max(int(seconds * 1000), 1),
        )  # fmt: skip
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            channel.publish_unconfirmed([message])
            await asyncio.wait({reply, channel.gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return reply.result() if reply.done() else None
        except ChannelLost:
            return None
        finally:
            del self._waiting[number]

    def _take_reply(self, delivery: Delivery) -> None:
        reply = self._waiting.get(delivery.correlation_id or "")
        if reply is not None and not reply.done():
            reply.set_result(delivery.body)


class BrokerQuestions:
    """Takes questions from the broker in a leader process. `run` keeps it connected."""

    def __init__(self, amqp_url: str, take: Take) -> None:
        self._connection = BrokerConnection(amqp_url, name="executor questions", timeouts=_TIMEOUTS)
        self._take = take
        self._link: Link | None = None
        self._channel: BulkChannel | None = None

    async def run(self) -> None:
        """Stay connected until cancelled."""
        await self._connection.run(self._serve)

    async def _serve(self, link: Link) -> None:
        await link.declare(declare_exchange)
        channel = await link.open_channel(on_delivery=self._ask)
        queue = await answered(_consume(channel), _TIMEOUTS.rpc_seconds)
        self._link, self._channel = link, channel
        link.serving()
        endings = {link.gone, channel.gone}
        try:
            while True:
                done, _ = await asyncio.wait(
                    endings, timeout=_ROUTE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return
                if not link.blocked:
                    # The broker does not report a deleted exchange or binding. Without the queue this raises.
                    await link.declare(declare_exchange)
                    await answered(channel.queue_bind(queue, EXCHANGE), _TIMEOUTS.rpc_seconds)
        finally:
            self._link = self._channel = None

    def _ask(self, delivery: Delivery) -> None:
        reply_to, number = delivery.reply_to, delivery.correlation_id
        if reply_to is None or number is None:
            logger.info("question_without_reply_to")
            return
        self._take(
            delivery.body, _TIMEOUTS.rpc_seconds, lambda data: self._reply(data, to=reply_to, number=number)
        )

    def _reply(self, data: bytes, *, to: str, number: str) -> None:
        link, channel = self._link, self._channel
        if link is None or channel is None or link.write_buffer_bytes > _WRITTEN_BYTES_MAX:
            return
        message = Outgoing(
            exchange="", routing_key=to, body=data, type=REPLY, message_id=str(uuid.uuid4()),
            correlation_id=number, app_id="executor", persistent=False, mandatory=False,
        )  # fmt: skip
        try:
            channel.publish_unconfirmed([message])
        except ChannelLost:
            # The connection of the asker's question is gone, and with it the reply.
            return


async def _consume(channel: BulkChannel) -> str:
    """Consume a new queue; return its name."""
    arguments: FieldTable = {"x-max-length": _QUEUED_MAX, "x-overflow": "drop-head"}
    declared = await channel.queue_declare("", exclusive=True, auto_delete=True, arguments=arguments)
    assert declared.queue is not None
    await channel.queue_bind(declared.queue, EXCHANGE)
    await channel.basic_consume(declared.queue, _unused, no_ack=True)
    return declared.queue


async def _unused(_: object) -> None:
    """Serve as the callback that the library requires: deliveries go to `on_delivery`."""
