"""One queue consumed on one channel: hand out what came, settle what was done, start again after a loss.

In: deliveries from `bulk_channel`, handed over in the reader's own step. Out: batches for one or more
callers, who settle them in any order. Every channel is a new start: what the old one delivered and nobody
took is dropped here, what was taken can no longer be settled, and the broker delivers both again. Keeps P5.

What is delivered and not settled keeps to a bound, which may move (`bound_by`), and where it is asked for to
one in bytes (`outstanding.Holding`): memory follows neither the size nor the number of what others send (P9).
Next: `credits` starts and
cancels the consumers, `consumer` owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from pamqp.common import FieldTable

from turnstile.common.broker.bulk_channel import BulkChannel
from turnstile.common.broker.connection import BrokerTimeouts, BrokerUnavailable, Declare, Link, answered
from turnstile.common.broker.credits import Credits
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.outstanding import ByteBounds, Holding, Outstanding

logger = logging.getLogger(__name__)

_GATHER_SECONDS = 0.05
"""How long changes of the bound are gathered: each costs a few exchanges with the broker."""


class _Start:
    """One channel of the subscription, from its opening to its end."""

    channel: BulkChannel
    credits: Credits

    def __init__(self, holding: Holding | None) -> None:
        loop = asyncio.get_running_loop()
        self.holding = holding
        self.spent: asyncio.Future[object] = loop.create_future()
        self.outstanding = Outstanding()
        self.buffer: deque[Delivery] = deque()
        self.released: list[tuple[list[Delivery], bool]] = []
        self.consumes = False
        self.quiet = False
        self.unfit: asyncio.Future[object] = loop.create_future()
        self.cancelled_by_broker: asyncio.Future[object] = loop.create_future()

    def note_cancel(self, _: object) -> None:
        """Remember that the broker ended the consumer, as it does when the queue is deleted or moves."""
        if not self.cancelled_by_broker.done():
            self.cancelled_by_broker.set_result(None)

    def was_quiet(self) -> bool:
        """Whether nothing came since this was asked last, and nothing is unsettled."""
        quiet, self.quiet = self.quiet, True
        return quiet and not self.outstanding

    def note_unfit(self) -> None:
        """Have the consumers fitted to the bound."""
        if not self.unfit.done():
            self.unfit.set_result(None)

    def settle(self, deliveries: Sequence[Delivery]) -> tuple[int, list[int]]:
        """Return which tags to settle, leaving out those of another channel."""
        tags = [delivery.tag for delivery in deliveries if delivery.channel is self.channel]
        if self.credits.settle(tags):
            self.note_unfit()
        if self.holding is not None:
            self.holding.settle(tags)
            if self.holding.spent and not self.spent.done():
                self.spent.set_result(None)
        return self.outstanding.settle(tags)


class Subscription:
    """Deliveries of one queue, `queue`, which may be changed: the next start consumes that one."""

    def __init__(
        self,
        queue: str,
        *,
        prefetch: int,
        declare: Declare | None,
        arguments: FieldTable | None,
        timeouts: BrokerTimeouts,
        byte_bounds: ByteBounds | None = None,
    ) -> None:
        assert prefetch >= 1, "0 would mean: without any bound"
        self.queue = queue
        self.last_error: str | None = None
        self._byte_bounds = byte_bounds
        self._prefetch = self._fitting = prefetch
        self._bound: Callable[[], int] = lambda: self._fitting
        self._declare = declare
        self._arguments = arguments
        self._timeouts = timeouts
        self._paused = False
        self._renewing = False
        self._start: _Start | None = None
        self._arrived = asyncio.Event()
        # Pausing, resuming and a new bound are several methods each; one change at a time.
        self._changing = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """Whether deliveries can come, or none are wanted."""
        return self._renewing or (self._start is not None and self._start.consumes)

    @property
    def buffered(self) -> int:
        """How many deliveries wait to be taken."""
        return 0 if self._start is None else len(self._start.buffer)

    @property
    def full(self) -> bool:
        """Whether nothing more is taken in until all that was handed out is settled."""
        holding = None if self._start is None else self._start.holding
        return holding is not None and holding.full

    async def next_batch(self, items_max: int, *, bytes_max: int | None = None) -> list[Delivery]:
        """Wait for a first delivery, then take what is there, in order, up to both bounds."""
        while True:
            start = self._start
            if start is not None and start.buffer and start.channel.usable:
                buffer = start.buffer
                count = min(items_max, len(buffer))
                if bytes_max is not None:
                    count = _count_within(bytes_max, islice(buffer, count))
                return [buffer.popleft() for _ in range(count)]
            self._arrived.clear()
            await self._arrived.wait()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge in one write, leaving out what a dead channel delivered: it comes again."""
        if (start := self._start) is not None:
            start.channel.ack(*start.settle(deliveries))

    def reject(self, deliveries: Sequence[Delivery], *, requeue: bool) -> None:
        """Give back to the front of the queue, or else to the dead letters."""
        start = self._start
        if start is not None:
            start.channel.nack(*start.settle(deliveries), requeue=requeue)

    def bound_by(self, bound: Callable[[], int]) -> None:
        """Hold no more unsettled deliveries than `bound()` says; it is asked at each start and `refit`."""
        self._bound = bound
        self.refit()

    def refit(self) -> None:
        """Have the bound asked for again, soon: it changed."""
        if self._start is not None:
            self._start.note_unfit()

    def release(self, deliveries: Sequence[Delivery], *, give_back: bool) -> None:
        """Acknowledge or give back once the bound is asked for again: nothing is sent in their place.

        The caller has lowered the bound by them. A delivery that dies before is left out, as ever.
        """
        start = self._start
        if start is not None and deliveries:
            start.released.append((list(deliveries), give_back))
            start.note_unfit()

    async def pause(self) -> None:
        """Take no more; what nobody took yet goes back to the queue, what was taken can still be settled."""
        async with self._changing:
            self._paused = True
            await self._fit()
            start = self._start
            if start is not None:
                buffered = list(start.buffer)
                start.buffer.clear()
                self.reject(buffered, requeue=True)

    async def resume(self) -> None:
        """Take deliveries again."""
        async with self._changing:
            self._paused = False
            await self._fit()

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
        start = _Start(self._new_holding())
        start.channel = channel = await link.open_channel(
            on_delivery=partial(self._take, start),
            keeps=None if start.holding is None else start.holding.keeps,
        )
        start.credits = Credits(channel, self.queue, self._arguments, self._timeouts)
        channel.on_consumer_cancel_callbacks.add(start.note_cancel)
        try:
            async with self._changing:
                self._start = start
                await start.credits.raise_to(self._wanted())
            start.consumes = True
            self.last_error = None
            self._renewing = await self._keep_to_bound(start, link)
        finally:
            self._start = None
            if channel.usable:
                with suppress(BrokerUnavailable):
                    await answered(channel.close(), self._timeouts.rpc_seconds)
        if link.is_open and not self._renewing:
            self._note(_reason(start))

    def _new_holding(self) -> Holding | None:
        if self._byte_bounds is None:
            return None
        return Holding(self._byte_bounds, prefetch=self._fitting, prefetch_max=self._prefetch)

    def _take(self, start: _Start, delivery: Delivery) -> None:
        start.outstanding.arrive(delivery.tag)
        start.credits.arrive(delivery.tag, delivery.consumer)
        start.quiet = False
        holding = start.holding
        if holding is not None and not holding.arrive(delivery.tag, delivery.size_bytes, kept=delivery.kept):
            return
        start.buffer.append(delivery)
        self._arrived.set()

    async def _keep_to_bound(self, start: _Start, link: Link) -> bool:
        """Fit the consumers whenever there is a reason to, until the start ends.

        True where it ends to be renewed: all was quiet, or what it may hold is spent.
        """
        ends = {start.channel.gone, start.cancelled_by_broker, link.gone, start.spent}
        while not any(end.done() for end in ends):
            reasons, seconds = {*ends, start.unfit}, self._timeouts.quiet_seconds
            done, _ = await asyncio.wait(reasons, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done and start.was_quiet() and not self._paused:
                return True
            if start.unfit.done():
                await asyncio.wait(ends, timeout=_GATHER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                start.unfit = asyncio.get_running_loop().create_future()
                async with self._changing:
                    await self._fit()
        if start.holding is not None and start.spent.done():
            self._fitting = start.holding.fitting_prefetch
            logger.info("broker_prefetch_fitted", extra={"queue": self.queue, "prefetch": self._fitting})
            return True
        return False

    def _wanted(self) -> int:
        return 0 if self._paused else self._bound()

    async def _fit(self) -> None:
        """Bring the consumers to the bound, if there is a channel; where that fails, the next one obeys."""
        start = self._start
        if start is None or not start.channel.usable:
            return
        with suppress(BrokerUnavailable):
            released, start.released = start.released, []
            await start.credits.lower_to(self._wanted())
            # Not before: a consumer that is still there would be sent another one for each.
            for deliveries, give_back in released:
                self.reject(deliveries, requeue=True) if give_back else self.ack(deliveries)
            await start.credits.raise_to(self._wanted())

    def _note(self, error: str) -> None:
        self._renewing = False
        if error != self.last_error:
            logger.warning("broker_subscription_lost", extra={"queue": self.queue, "error": error})
        self.last_error = error


def _count_within(bytes_max: int, deliveries: Iterable[Delivery]) -> int:
    """Return how many of them, from the first on and at least one, hold no more than that together."""
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
