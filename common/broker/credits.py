"""How much one channel may hold: consumers whose prefetches together keep to a bound that moves.

In: the bound, deliveries as they arrive and as they are settled. Out: consumers started and cancelled. Keeps
unacknowledged equal to busy, whatever the bound does (P7: what we cannot run, another one gets).

RabbitMQ fixes a consumer's prefetch when it starts, and what a cancelled consumer left unsettled counts
towards nobody's. So less means: cancel one; its unsettled deliveries are *loose* from then on, and we count
them ourselves. More, also for a loose one that was settled, means: start one beside the others. To cancel and
start anew each time would forget, each time, everything that is under way. Next: `subscription` owns it.
"""

from __future__ import annotations

import itertools
from collections import Counter

from pamqp.common import FieldTable

from turnstile.common.broker.bulk_channel import BulkChannel
from turnstile.common.broker.connection import BrokerTimeouts, answered

_CONSUMERS_MAX = 16


class Credits:
    """The consumers of one channel on one queue. Calls of `lower_to` and `raise_to` must not overlap."""

    def __init__(
        self, channel: BulkChannel, queue: str, arguments: FieldTable | None, timeouts: BrokerTimeouts
    ) -> None:
        self._channel = channel
        self._queue = queue
        self._arguments = arguments
        self._timeouts = timeouts
        self._names = map(str, itertools.count(1))
        self._prefetches: dict[str, int] = {}
        self._consumer_of: dict[int, str] = {}

    def arrive(self, tag: int, consumer: str) -> None:
        """Note a delivery."""
        self._consumer_of[tag] = consumer

    def settle(self, tags: list[int]) -> bool:
        """Note that they are settled; return whether a loose one was among them: there is room again."""
        consumers = [self._consumer_of.pop(tag, None) for tag in tags]
        return any(each is not None and each not in self._prefetches for each in consumers)

    async def lower_to(self, bound: int) -> None:
        """Cancel as few consumers as it takes; raises BrokerUnavailable."""
        while self._prefetches and self._asked_for() > bound:
            held = Counter(self._consumer_of.values())
            await self._cancel(max(self._prefetches, key=lambda each: self._prefetches[each] - held[each]))

    async def raise_to(self, bound: int) -> None:
        """Start a consumer for what is missing, in place of the idle ones; raises BrokerUnavailable."""
        if self._asked_for() >= bound:
            return
        held = Counter(self._consumer_of.values())
        fewest_first = sorted(self._prefetches, key=lambda each: held[each])
        surplus = len(fewest_first) - _CONSUMERS_MAX
        for index, consumer in enumerate(fewest_first):
            if not held[consumer] or index <= surplus:
                await self._cancel(consumer)
        # Counted anew: a consumer may get deliveries until the broker has answered its cancellation.
        if (room := bound - self._asked_for()) > 0:
            await self._start(room)

    def _asked_for(self) -> int:
        """Return what is held at most if the broker sends all it may: the prefetches and the loose."""
        loose = sum(consumer not in self._prefetches for consumer in self._consumer_of.values())
        return sum(self._prefetches.values()) + loose

    async def _start(self, prefetch: int) -> None:
        assert prefetch >= 1, "0 would mean: without any bound"
        channel, timeout_seconds, name = self._channel, self._timeouts.rpc_seconds, next(self._names)
        await answered(channel.basic_qos(prefetch_count=prefetch), timeout_seconds)
        # Before it is answered: a delivery may be read in the same step as the answer.
        self._prefetches[name] = prefetch
        consuming = channel.basic_consume(
            self._queue, _never_called, arguments=self._arguments, consumer_tag=name
        )
        await answered(consuming, timeout_seconds)

    async def _cancel(self, consumer: str) -> None:
        await answered(self._channel.basic_cancel(consumer), self._timeouts.rpc_seconds)
        # Only now: until then it counts in full, so nothing is asked for twice.
        self._prefetches.pop(consumer, None)


async def _never_called(_: object) -> None:
    """Stand in for a callback where the library asks for one; `BulkChannel` hands over by itself."""
