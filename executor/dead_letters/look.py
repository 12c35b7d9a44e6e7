"""Hold all dead letters for a moment: nobody else sees them meanwhile, and then they go back in their order.

In: an AMQP URL. Out: `Held`, every letter of the queue and the deliveries that somebody asked to keep, to be
acknowledged or given back. On a connection of its own, so that an alarm that blocks publishers, or large
letters, hold up nothing. RabbitMQ puts what is given back behind what was given back before: only a look
that takes all keeps the order, so each one does, and one look at a time is let in over all executors: a queue
that only one connection may declare is the lock. Keeps P5: whatever ends the look, the broker gives back what
was not acknowledged. Next: `desk`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelLockedResource, ChannelNotFoundEntity

from common.broker.bulk_channel import BulkChannel
from common.broker.connection import BrokerConnection, BrokerTimeouts, BrokerUnavailable, Link, answered
from common.broker.delivery import Delivery
from common.broker.outstanding import Outstanding
from common.broker.topology import DEAD_LETTERS
from common.domain.errors import Unavailable
from executor.dead_letters.letter import Letter, in_order, read_letter

T = TypeVar("T")
Keeps = Callable[[Delivery, Letter], bool]

LETTERS_MAX: Final = 10_000
"""Most letters of one look: the oldest."""
_LOCK: Final = "executions.dead_letters.look"
_TIMEOUTS: Final = BrokerTimeouts()
_POLL_SECONDS: Final = 0.02


@dataclass(slots=True, kw_only=True)
class Held:
    """What the queue held when it was looked at."""

    channel: BulkChannel | None
    """None where there is no queue."""
    outstanding: Outstanding = field(default_factory=Outstanding)
    last_tag: int = 0
    letters: list[Letter] = field(default_factory=list)
    """In the order of their deaths."""
    kept: dict[str, list[Delivery]] = field(default_factory=dict)
    """Deliveries that were asked for, by fingerprint."""
    beyond: int = 0
    """Letters that no look reaches before these are gone."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Take these out of the queue for good; raises Unavailable: they may still be there."""
        if self.channel is not None and deliveries:
            self.channel.ack(*self.outstanding.settle(delivery.tag for delivery in deliveries))
            await _in_step(self.channel)


@asynccontextmanager
async def all_held(amqp_url: str, *, body_bytes_max: int, keeps: Keeps) -> AsyncIterator[Held]:
    """Hold the letters while the block runs, each with the beginning of its body.

    What `keeps` says yes to is kept as a delivery too. The caller bounds the time. Raises Unavailable.
    """
    async with _linked(amqp_url) as link:
        await _lock(link)
        held = Held(channel=None)

        def take(delivery: Delivery) -> None:
            held.outstanding.arrive(delivery.tag)
            held.last_tag = delivery.tag
            letter = read_letter(delivery, body_bytes_max=body_bytes_max)
            held.letters.append(letter)
            if keeps(delivery, letter):
                held.kept.setdefault(letter.fingerprint, []).append(delivery)

        channel = await link.open_channel(on_delivery=take)
        try:
            held.beyond = await _take_all(channel, held.letters)
        except ChannelNotFoundEntity:
            # Nobody has declared the queue yet, or somebody deleted it: there is no letter.
            yield held
            return
        held.channel, held.letters = channel, in_order(held.letters)
        try:
            yield held
        finally:
            await _give_back(channel, held.outstanding, last_tag=held.last_tag)


async def _take_all(channel: BulkChannel, taken: Sequence[Letter]) -> int:
    """Consume until the queue has no more, or enough were taken; return how many it has left."""
    await _ask(channel.queue_declare(DEAD_LETTERS, passive=True))
    await _ask(channel.basic_qos(prefetch_count=LETTERS_MAX))
    consumer_tag = (await _ask(channel.basic_consume(DEAD_LETTERS, _never_called))).consumer_tag
    while True:
        ready = (await _ask(channel.queue_declare(DEAD_LETTERS, passive=True))).message_count or 0
        await _in_step(channel)
        if not ready or len(taken) >= LETTERS_MAX:
            # What is given back must not come back to this very look.
            await _ask(channel.basic_cancel(consumer_tag or ""))
            return ready
        await asyncio.sleep(_POLL_SECONDS)


async def _give_back(channel: BulkChannel, outstanding: Outstanding, last_tag: int) -> None:
    """Return what is not acknowledged; where that fails, the broker does it when it misses the connection."""
    with suppress(Unavailable):
        channel.nack(*outstanding.settle(range(1, last_tag + 1)), requeue=True)
        await _in_step(channel)


async def _in_step(channel: BulkChannel) -> None:
    """Wait until the broker has dealt with all before this, and all it sent until then has arrived."""
    await _ask(channel.basic_qos(prefetch_count=LETTERS_MAX))


async def _lock(link: Link) -> None:
    async def declare(channel: AbstractChannel) -> None:
        await channel.declare_queue(_LOCK, exclusive=True, durable=False)

    while True:
        try:
            await link.declare(declare)
        except BrokerUnavailable as error:
            if not isinstance(error.__cause__, ChannelLockedResource):
                raise Unavailable(f"broker: {error}") from error
            # Somebody else looks: it takes a moment.
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return


@asynccontextmanager
async def _linked(amqp_url: str) -> AsyncIterator[Link]:
    """Lend a connection of its own; raises Unavailable where the first attempt fails."""
    connection = BrokerConnection(amqp_url, name="executor dead letters", timeouts=_TIMEOUTS)
    linked: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def serve(link: Link) -> None:
        if not linked.done():
            linked.set_result(link)
        await asyncio.wait({link.gone})

    running = asyncio.create_task(connection.run(serve), name="dead-letters")
    try:
        while not linked.done():
            if connection.last_error is not None:
                raise Unavailable(f"broker: {connection.last_error}")
            await asyncio.wait({linked}, timeout=_POLL_SECONDS)
        yield linked.result()
    finally:
        running.cancel()
        await asyncio.wait({running}, timeout=_TIMEOUTS.rpc_seconds)


async def _ask(request: Awaitable[T]) -> T:
    try:
        return await answered(request, _TIMEOUTS.rpc_seconds)
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, ChannelNotFoundEntity):
            raise error.__cause__ from None
        raise Unavailable(f"broker: {error}") from error


async def _never_called(_: object) -> None:
    """Stand in for a callback where the library asks for one; the channel hands over by itself."""
