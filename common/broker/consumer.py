"""Consume on a connection of its own: bounded batches in, one write of acknowledgements out.

In: queue names. Out: `Subscription`s, each with its own channel, so that one that fails or is slow holds up
no other. Keeps P5 (acknowledged only when told to; what a dead channel held, the broker delivers again) and
the arrival order that P2 builds on (deliveries are handed out as they came, given back as a whole). Next:
`connection`, `outstanding`.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from aio_pika.abc import AbstractChannel
from pamqp.common import FieldTable

from turnstile.common.broker.connection import (
    BrokerConnection,
    BrokerTimeouts,
    BrokerUnavailable,
    Declare,
    Link,
)
from turnstile.common.broker.outstanding import ByteBounds
from turnstile.common.broker.subscription import Subscription


class ConsumerConnection:
    """All subscriptions of one service process. `run` keeps them consuming."""

    def __init__(self, url: str, *, name: str, timeouts: BrokerTimeouts | None = None) -> None:
        self._timeouts = timeouts or BrokerTimeouts()
        self._connection = BrokerConnection(url, name=name, timeouts=self._timeouts)
        self._subscriptions: list[Subscription] = []
        self._added = asyncio.Event()
        self._link: Link | None = None

    @property
    def connected(self) -> bool:
        """Whether the connection stands and every subscription consumes (or is paused)."""
        return self._connection.connected and all(each.ready for each in self._subscriptions)

    @property
    def blocked(self) -> bool:
        """Whether the broker raised an alarm on this connection; consuming goes on all the same."""
        return self._connection.blocked

    @property
    def last_error(self) -> str | None:
        """Why there is no connection, else why a subscription does not consume."""
        reasons = (each.last_error for each in self._subscriptions)
        return self._connection.last_error or next((reason for reason in reasons if reason), None)

    async def run(self) -> NoReturn:
        """Stay connected and consuming until cancelled."""
        await self._connection.run(self._serve)

    def subscribe(
        self,
        queue: str,
        *,
        prefetch: int,
        declare: Declare | None = None,
        arguments: FieldTable | None = None,
        byte_bounds: ByteBounds | None = None,
    ) -> Subscription:
        """Consume a queue from now on, over every reconnection; `declare` is run before each start.

        `prefetch` bounds what is delivered and not settled, and so what is buffered here; `byte_bounds` too.
        """
        subscription = Subscription(
            queue,
            prefetch=prefetch,
            declare=declare,
            arguments=arguments,
            timeouts=self._timeouts,
            byte_bounds=byte_bounds,
        )
        self._subscriptions.append(subscription)
        self._added.set()
        return subscription

    async def reaches(self, subscription: Subscription) -> bool:
        """Ask the broker whether what it now put into the queue would be delivered here, and nowhere else.

        It must know one consumer: of two, the other may be what is left of a connection that it has not
        given up yet. False also where it does not answer in time.
        """
        link = self._link
        if link is None or not subscription.ready:
            return False
        consumers: int | None = None

        async def look(channel: AbstractChannel) -> None:
            nonlocal consumers
            queue = await channel.declare_queue(subscription.queue, passive=True)
            consumers = queue.declaration_result.consumer_count

        try:
            await link.declare(look)
        except BrokerUnavailable:
            return False
        return consumers == 1 and link is self._link and subscription.ready

    async def _serve(self, link: Link) -> None:
        self._link = link
        link.serving()
        try:
            await self._serve_subscriptions(link)
        finally:
            self._link = None

    async def _serve_subscriptions(self, link: Link) -> None:
        served = 0
        async with asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(_wait_gone(link), name="broker-link-gone")
            while not gone.done():
                self._added.clear()
                for subscription in self._subscriptions[served:]:
                    tasks.create_task(subscription.serve(link), name=f"consume-{subscription.queue}")
                served = len(self._subscriptions)
                added = tasks.create_task(self._added.wait(), name="subscription-added")
                await asyncio.wait({gone, added}, return_when=asyncio.FIRST_COMPLETED)
                added.cancel()


async def _wait_gone(link: Link) -> None:
    await asyncio.wait({link.gone})
