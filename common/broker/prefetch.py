"""Bounds on what one channel holds unsettled, in messages and in bytes.

In: deliveries as they arrive and as they are settled. Out: consumers started and cancelled (`Credits`),
bodies kept or dropped (`ByteBudget`). Keeps unacknowledged equal to busy while the bound moves (P7: what one
worker cannot run is delivered to another), and memory independent of what others send (P9).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pamqp.common import FieldTable

from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.errors import answered

_CONSUMERS_MAX = 16
_RECENT = 256
"""The number of latest deliveries in the mean size."""
_GROWTH = 4
"""A channel is renewed for a larger prefetch only from this factor on."""


class Credits:
    """The consumers of one channel on one queue. Calls of `lower_to` and `raise_to` must not overlap.

    RabbitMQ fixes the prefetch of a consumer when it starts, and what a cancelled consumer left unsettled
    counts towards no other. So lowering the bound means to cancel a consumer and to count its unsettled
    deliveries here ("loose"); raising it, also after a loose one was settled, means to start a consumer for
    the difference. Replacing all consumers instead would stop counting everything unsettled at each change.
    """

    def __init__(
        self, channel: BulkChannel, queue: str, timeouts: BrokerTimeouts, *, priority: int | None = None
    ) -> None:
        """`priority` is that of every consumer; the broker serves the highest one that has credit."""
        self._channel = channel
        self._queue = queue
        self._timeouts = timeouts
        self._arguments: FieldTable = {} if priority is None else {"x-priority": priority}
        self._names = map(str, itertools.count(1))
        self._prefetches: dict[str, int] = {}
        self._consumer_of: dict[int, str] = {}

    def arrive(self, tag: int, consumer: str) -> None:
        """Count a delivery."""
        self._consumer_of[tag] = consumer

    def settle(self, tags: list[int]) -> bool:
        """Stop counting these deliveries; return whether a loose one was among them, which frees capacity."""
        consumers = [self._consumer_of.pop(tag, None) for tag in tags]
        return any(each is not None and each not in self._prefetches for each in consumers)

    async def lower_to(self, bound: int) -> None:
        """Cancel as few consumers as necessary; raises BrokerUnavailable."""
        while self._prefetches and self._held_max() > bound:
            held = Counter(self._consumer_of.values())
            await self._cancel(max(self._prefetches, key=lambda each: self._prefetches[each] - held[each]))

    async def raise_to(self, bound: int) -> None:
        """Start a consumer for the difference, replacing idle ones; raises BrokerUnavailable."""
        if self._held_max() >= bound:
            return
        held = Counter(self._consumer_of.values())
        fewest_first = sorted(self._prefetches, key=lambda each: held[each])
        surplus = len(fewest_first) - _CONSUMERS_MAX
        for index, consumer in enumerate(fewest_first):
            if not held[consumer] or index <= surplus:
                await self._cancel(consumer)
        # Counted again: a consumer may receive deliveries until the broker answered its cancellation.
        if (free := bound - self._held_max()) > 0:
            await self._start(free)

    def _held_max(self) -> int:
        """Return how many are unsettled if the broker sends all it may: the prefetches and the loose ones."""
        loose = sum(consumer not in self._prefetches for consumer in self._consumer_of.values())
        return sum(self._prefetches.values()) + loose

    async def _start(self, prefetch: int) -> None:
        assert prefetch >= 1, "0 means no bound in AMQP"
        channel, timeout_seconds, name = self._channel, self._timeouts.rpc_seconds, next(self._names)
        await answered(channel.basic_qos(prefetch_count=prefetch), timeout_seconds)
        # Before the answer: a delivery may be read in the same step as the answer.
        self._prefetches[name] = prefetch
        consuming = channel.basic_consume(
            self._queue, _never_called, consumer_tag=name, arguments=self._arguments
        )
        await answered(consuming, timeout_seconds)

    async def _cancel(self, consumer: str) -> None:
        await answered(self._channel.basic_cancel(consumer), self._timeouts.rpc_seconds)
        # Not before: until the answer it counts in full, so that the bound holds.
        self._prefetches.pop(consumer, None)


async def _never_called(_: object) -> None:
    """Serve as the callback that the library requires; `BulkChannel` passes on deliveries itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteBounds:
    """How much the unsettled deliveries of one channel may hold."""

    held: int
    """All of them together, unless there is only one."""
    one: int
    """A single one: the body of a larger one is never kept."""


class ByteBudget:
    """Keeps the unsettled deliveries of one channel within a bound in bytes.

    The broker bounds what it sends by count alone. So a delivery beyond the bound is dropped while it is
    read, with all behind it, and stays unsettled. Once everything before it is settled the channel is
    `spent`: a new channel receives the dropped ones again, in order, with a prefetch that fits their size.
    Everything is still read: a broker that cannot send closes the consumer's connection.
    """

    __slots__ = ("_bounds", "_count", "_held", "_mean_bytes", "_prefetch", "_prefetch_max", "_sizes", "full")

    def __init__(self, bounds: ByteBounds, *, prefetch: int, prefetch_max: int) -> None:
        self._bounds = bounds
        self._prefetch = prefetch
        self._prefetch_max = prefetch_max
        self._sizes: dict[int, int] = {}
        self._held = 0
        self._count = 0
        self._mean_bytes = 0.0
        self.full = False
        """Whether no further body is kept."""

    @property
    def spent(self) -> bool:
        """Whether everything kept is settled, and nothing more will be kept."""
        return self.full and not self._sizes

    def keeps(self, size_bytes: int) -> bool:
        """Decide whether the body of the next delivery is kept."""
        if size_bytes > self._bounds.one:
            return False
        if self._held and self._held + size_bytes > self._bounds.held:
            self.full = True
        return not self.full

    def arrive(self, tag: int, size_bytes: int, *, kept: bool) -> bool:
        """Count a delivery; return whether to hand it out."""
        self._count += 1
        self._mean_bytes += (size_bytes - self._mean_bytes) / min(self._count, _RECENT)
        oversized = size_bytes > self._bounds.one
        if not (kept or oversized):
            return False
        self._sizes[tag] = 0 if oversized else size_bytes
        self._held += self._sizes[tag]
        if (
            self._prefetch < self._prefetch_max
            and self._count >= _GROWTH * self._prefetch
            and self.fitting_prefetch >= min(_GROWTH * self._prefetch, self._prefetch_max)
        ):
            self.full = True
        return True

    def settle(self, tags: Iterable[int]) -> None:
        """Stop counting these deliveries."""
        for tag in tags:
            self._held -= self._sizes.pop(tag, 0)

    @property
    def fitting_prefetch(self) -> int:
        """How many deliveries of the recent mean size fit at once."""
        fitting = int(self._bounds.held / max(self._mean_bytes, 1.0))
        return max(1, min(fitting, self._prefetch_max))
