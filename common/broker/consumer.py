"""Consumes on a separate connection: bounded batches in, one write of acknowledgements out.

In: queue names. Out: `Subscription`s, each with its own channel, so that one that fails or is slow delays no
other; batches for one or more callers, who settle them in any order. Every channel is a new start: deliveries
of the old one that were not handed out are dropped here, the others can no longer be settled, and the broker
delivers both again. Keeps P5 (acknowledged only on request) and the arrival order that P2 builds on
(deliveries are handed out in order, and requeued as a whole). `prefetch` bounds what is unsettled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NoReturn

from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Declare, Link
from turnstile.common.broker.delivery import Delivery, UnsettledTags
from turnstile.common.broker.errors import BrokerUnavailable, NotSent, answered
from turnstile.common.broker.prefetch import ByteBounds, ByteBudget
from turnstile.common.telemetry.logs import Episodes

logger = logging.getLogger(__name__)


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
        """Whether the connection is open and every subscription consumes."""
        return self._connection.connected and all(each.ready for each in self._subscriptions)

    @property
    def last_error(self) -> str | None:
        """Why there is no connection, or else why a subscription does not consume."""
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
        byte_bounds: ByteBounds | None = None,
    ) -> Subscription:
        """Consume a queue from now on, across reconnections; `declare` is run before each start.

        `prefetch` and `byte_bounds` limit what is delivered and not settled, and so what is buffered here.
        """
        subscription = Subscription(
            queue,
            prefetch=prefetch,
            declare=declare,
            timeouts=self._timeouts,
            byte_bounds=byte_bounds,
        )
        self._subscriptions.append(subscription)
        self._added.set()
        return subscription

    async def declare(self, declare: Declare) -> None:
        """Run declarations now, on a separate channel of the connection that consumes.

        Raises NotSent without a connection, DeclarationRefused, BrokerUnavailable.
        """
        if self._link is None:
            raise NotSent("there is no usable connection")
        await self._link.declare(declare)

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


async def _never_called(_: object) -> None:
    """Serve as the callback that the library requires; `BulkChannel` passes on deliveries itself."""


async def _wait_gone(link: Link) -> None:
    await asyncio.wait({link.gone})


class _Start:
    """One channel of a subscription, from open to close."""

    channel: BulkChannel

    def __init__(self, budget: ByteBudget | None) -> None:
        loop = asyncio.get_running_loop()
        self.budget = budget
        self.spent: asyncio.Future[object] = loop.create_future()
        self.unsettled = UnsettledTags()
        self.buffer: deque[Delivery] = deque()
        self.consumes = False
        self.quiet = False
        self.cancelled_by_broker: asyncio.Future[object] = loop.create_future()

    def note_cancel(self, _: object) -> None:
        """Note that the broker cancelled the consumer, as it does when the queue is deleted or moves."""
        if not self.cancelled_by_broker.done():
            self.cancelled_by_broker.set_result(None)

    def was_quiet(self) -> bool:
        """Whether nothing arrived since the last call, and nothing is unsettled."""
        quiet, self.quiet = self.quiet, True
        return quiet and not self.unsettled

    def settle(self, deliveries: Sequence[Delivery]) -> tuple[int, list[int]]:
        """Return the tags to settle, without those of another channel."""
        tags = [delivery.tag for delivery in deliveries if delivery.channel is self.channel]
        if self.budget is not None:
            self.budget.settle(tags)
            if self.budget.spent and not self.spent.done():
                self.spent.set_result(None)
        return self.unsettled.settle(tags)


class Subscription:
    """Deliveries of one queue. `queue` may be changed: the next start consumes the new one."""

    def __init__(
        self,
        queue: str,
        *,
        prefetch: int,
        declare: Declare | None,
        timeouts: BrokerTimeouts,
        byte_bounds: ByteBounds | None = None,
    ) -> None:
        assert prefetch >= 1, "0 means no bound in AMQP"
        self.queue = queue
        self._lost = Episodes(logger, "broker_subscription_lost")
        self.last_error: str | None = None
        self._byte_bounds = byte_bounds
        self._prefetch = self._fitting = prefetch
        self._declare = declare
        self._timeouts = timeouts
        self._renewing = False
        self._start: _Start | None = None
        self._arrived = asyncio.Event()
        self.on_arrival: Callable[[], None] = lambda: None
        """Called with each delivery that can be taken; must not block."""

    @property
    def ready(self) -> bool:
        """Whether deliveries can arrive."""
        return self._renewing or (self._start is not None and self._start.consumes)

    @property
    def buffered(self) -> int:
        """How many deliveries wait for `next_batch`."""
        return 0 if self._start is None else len(self._start.buffer)

    @property
    def full(self) -> bool:
        """Whether nothing more is kept until everything handed out is settled."""
        budget = None if self._start is None else self._start.budget
        return budget is not None and budget.full

    async def next_batch(self, items_max: int, *, bytes_max: int | None = None) -> list[Delivery]:
        """Wait for a delivery, then return all that are there, in order, up to both bounds."""
        while not (batch := self.take(items_max, bytes_max=bytes_max)):
            self._arrived.clear()
            await self._arrived.wait()
        return batch

    def take(self, items_max: int, *, bytes_max: int | None = None) -> list[Delivery]:
        """Return the deliveries that are there, in order, up to both bounds, without waiting."""
        start = self._start
        if start is None or not start.buffer or not start.channel.usable:
            return []
        buffer = start.buffer
        count = min(items_max, len(buffer))
        if bytes_max is not None:
            count = _count_within(bytes_max, islice(buffer, count))
        return [buffer.popleft() for _ in range(count)]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge in one write, without deliveries of a closed channel, which are redelivered."""
        if (start := self._start) is not None:
            start.channel.ack(*start.settle(deliveries))

    def reject(self, deliveries: Sequence[Delivery], *, requeue: bool) -> None:
        """Reject: requeue to the front of the queue, or else dead-letter."""
        start = self._start
        if start is not None:
            start.channel.nack(*start.settle(deliveries), requeue=requeue)

    async def serve(self, link: Link) -> None:
        """Consume on this link until it is gone, on a new channel whenever one closes."""
        pause_seconds = self._timeouts.backoff_first_seconds
        while link.is_open:
            try:
                await self._one_start(link)
                pause_seconds = self._timeouts.backoff_first_seconds
            except BrokerUnavailable as error:
                self._note(str(error))
            await asyncio.wait({link.gone}, timeout=pause_seconds)
            pause_seconds = min(pause_seconds * 2, self._timeouts.backoff_max_seconds)

    async def _one_start(self, link: Link) -> None:
        if self._declare is not None:
            await link.declare(self._declare)
        start = _Start(self._new_budget())
        start.channel = channel = await link.open_channel(
            on_delivery=partial(self._take, start),
            keeps=None if start.budget is None else start.budget.keeps,
        )
        channel.on_consumer_cancel_callbacks.add(start.note_cancel)
        try:
            self._start = start
            await self._consume(channel)
            start.consumes = True
            self._lost.all_work(queue=self.queue)
            self.last_error = None
            self._renewing = await self._until_renewal(start, link)
        finally:
            self._start = None
            if channel.usable:
                with suppress(BrokerUnavailable):
                    await answered(channel.close(), self._timeouts.rpc_seconds)
        if link.is_open and not self._renewing:
            self._note(_reason(start))

    async def _consume(self, channel: BulkChannel) -> None:
        seconds = self._timeouts.rpc_seconds
        await answered(channel.basic_qos(prefetch_count=self._fitting), seconds)
        await answered(channel.basic_consume(self.queue, _never_called), seconds)

    def _new_budget(self) -> ByteBudget | None:
        if self._byte_bounds is None:
            return None
        return ByteBudget(self._byte_bounds, prefetch=self._fitting, prefetch_max=self._prefetch)

    def _take(self, start: _Start, delivery: Delivery) -> None:
        start.unsettled.arrive(delivery.tag)
        start.quiet = False
        budget = start.budget
        if budget is not None and not budget.arrive(delivery.tag, delivery.size_bytes, kept=delivery.kept):
            return
        start.buffer.append(delivery)
        self._arrived.set()
        self.on_arrival()

    async def _until_renewal(self, start: _Start, link: Link) -> bool:
        """Wait until the channel ends.

        Returns True where it is to be renewed: it was quiet, or its byte budget is spent.
        """
        endings = {start.channel.gone, start.cancelled_by_broker, link.gone, start.spent}
        while not any(each.done() for each in endings):
            seconds = self._timeouts.quiet_seconds
            done, _ = await asyncio.wait(endings, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done and start.was_quiet():
                return True
        if start.budget is not None and start.spent.done():
            self._fitting = start.budget.fitting_prefetch
            logger.info("broker_prefetch_fitted", extra={"queue": self.queue, "prefetch": self._fitting})
            return True
        return False

    def _note(self, error: str) -> None:
        self._renewing = False
        self._lost.failed(error, queue=self.queue, error=error)
        self.last_error = error


def _count_within(bytes_max: int, deliveries: Iterable[Delivery]) -> int:
    """Return how many deliveries from the first on, at least one, stay within the bound together."""
    count = total_bytes = 0
    for delivery in deliveries:
        total_bytes += len(delivery.body)
        if count and total_bytes > bytes_max:
            break
        count += 1
    return count


def _reason(start: _Start) -> str:
    if start.cancelled_by_broker.done():
        return "the broker cancelled the consumer"
    gone = start.channel.gone
    return "channel closed" if not gone.done() or gone.cancelled() else repr(gone.exception())
