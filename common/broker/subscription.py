"""One queue consumed on one channel: hand out what came, settle what was done, start again after a loss.

In: deliveries from `bulk_channel`, handed over in the reader's own step. Out: batches for one or more
callers, who settle them in any order. Every channel is a new start: what the old one delivered and nobody
took is dropped here, what was taken can no longer be settled, and the broker delivers both again. Keeps P5.
Next: `consumer` owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from pamqp.common import FieldTable

from common.broker.bulk_channel import BulkChannel
from common.broker.connection import BrokerTimeouts, BrokerUnavailable, Declare, Link, answered
from common.broker.delivery import Delivery
from common.broker.outstanding import Outstanding

log = logging.getLogger(__name__)


class _Start:
    """One channel of the subscription, from its opening to its end."""

    channel: BulkChannel

    def __init__(self) -> None:
        self.outstanding = Outstanding()
        self.buffer: deque[Delivery] = deque()
        self.consumer_tag: str | None = None
        self.cancelled_by_broker: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def note_cancel(self, _: object) -> None:
        """Remember that the broker ended the consumer, as it does when the queue is deleted or moves."""
        if not self.cancelled_by_broker.done():
            self.cancelled_by_broker.set_result(None)


class Subscription:
    """Deliveries of one queue. Made by `ConsumerConnection.subscribe`."""

    def __init__(
        self,
        queue: str,
        *,
        prefetch: int,
        declare: Declare | None,
        arguments: FieldTable | None,
        timeouts: BrokerTimeouts,
    ) -> None:
        assert prefetch >= 1, "0 would mean: without any bound"
        self.queue = queue
        self.last_error: str | None = None
        self._prefetch = prefetch
        self._declare = declare
        self._arguments = arguments
        self._timeouts = timeouts
        self._paused = False
        self._start: _Start | None = None
        self._arrived = asyncio.Event()
        # Pausing, resuming and a new prefetch are several methods each; one change at a time.
        self._changing = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """Whether deliveries can come, or none are wanted."""
        start = self._start
        return start is not None and (self._paused or start.consumer_tag is not None)

    @property
    def buffered(self) -> int:
        """How many deliveries wait to be taken."""
        start = self._start
        return 0 if start is None else len(start.buffer)

    async def next_batch(self, items_max: int) -> list[Delivery]:
        """Wait for a first delivery, then take what is there, in order, up to `items_max`."""
        while True:
            start = self._start
            if start is not None and start.buffer and start.channel.usable:
                buffer = start.buffer
                return [buffer.popleft() for _ in range(min(items_max, len(buffer)))]
            self._arrived.clear()
            await self._arrived.wait()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge in one write, leaving out what a dead channel delivered: it comes again."""
        start = self._start
        if start is not None:
            upto, singles = start.outstanding.settle(_tags(start, deliveries))
            start.channel.ack(upto, singles)

    def reject(self, deliveries: Sequence[Delivery], *, requeue: bool) -> None:
        """Give back to the front of the queue, or else to the dead letters."""
        start = self._start
        if start is not None:
            upto, singles = start.outstanding.settle(_tags(start, deliveries))
            start.channel.nack(upto, singles, requeue=requeue)

    async def set_prefetch(self, prefetch: int) -> None:
        """Change the bound; deliveries not settled yet do not count towards the new one."""
        assert prefetch >= 1, "0 would mean: without any bound"
        async with self._changing:
            self._prefetch = prefetch
            # A consumer keeps the bound it started with, so it has to start again.
            await self._change(consume=False)
            await self._change(consume=not self._paused)

    async def pause(self) -> None:
        """Take no more; what nobody took yet goes back to the queue, what was taken can still be settled."""
        async with self._changing:
            self._paused = True
            await self._change(consume=False)
            start = self._start
            if start is not None:
                buffered = list(start.buffer)
                start.buffer.clear()
                self.reject(buffered, requeue=True)

    async def resume(self) -> None:
        """Take deliveries again."""
        async with self._changing:
            self._paused = False
            await self._change(consume=True)

    async def serve(self, link: Link) -> None:
        """Consume on this link until it is gone, on a new channel whenever one ends."""
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
        start = _Start()
        start.channel = channel = await link.open_channel(on_delivery=partial(self._take, start))
        channel.on_consumer_cancel_callbacks.add(start.note_cancel)
        try:
            async with self._changing:
                self._start = start
                if not self._paused:
                    await self._consume(start)
            self.last_error = None
            ends: set[asyncio.Future[object]] = {channel.gone, start.cancelled_by_broker, link.gone}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._start = None
            if channel.usable:
                with suppress(BrokerUnavailable):
                    await answered(channel.close(), self._timeouts.rpc_seconds)
        if link.is_open:
            self._note(_reason(start))

    def _take(self, start: _Start, delivery: Delivery) -> None:
        start.outstanding.arrive(delivery.tag)
        start.buffer.append(delivery)
        self._arrived.set()

    async def _change(self, *, consume: bool) -> None:
        """Start or stop the consumer, if there is a channel; where that fails, the next one obeys."""
        start = self._start
        if start is None or consume == (start.consumer_tag is not None):
            return
        with suppress(BrokerUnavailable):
            if consume:
                await self._consume(start)
            elif start.consumer_tag is not None:
                tag, start.consumer_tag = start.consumer_tag, None
                await answered(start.channel.basic_cancel(tag), self._timeouts.rpc_seconds)

    async def _consume(self, start: _Start) -> None:
        channel, timeout_seconds = start.channel, self._timeouts.rpc_seconds
        await answered(channel.basic_qos(prefetch_count=self._prefetch), timeout_seconds)
        consuming = channel.basic_consume(self.queue, _never_called, arguments=self._arguments)
        start.consumer_tag = (await answered(consuming, timeout_seconds)).consumer_tag

    def _note(self, error: str) -> None:
        if error != self.last_error:
            log.warning("broker.subscription_lost", extra={"queue": self.queue, "error": error})
        self.last_error = error


def _tags(start: _Start, deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.tag for delivery in deliveries if delivery.channel is start.channel]


def _reason(start: _Start) -> str:
    if start.cancelled_by_broker.done():
        return "the broker cancelled the consumer"
    gone = start.channel.gone
    return "channel closed" if not gone.done() or gone.cancelled() else repr(gone.exception())


async def _never_called(_: object) -> None:
    """Stand in for a callback where the library asks for one; `BulkChannel` hands over by itself."""
