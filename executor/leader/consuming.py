"""The connection that a leader consumes on: its queues, what was taken from them, what is acknowledged.

In: messages of three queues, each on a channel of its own with a bound on what is held. Out: deliveries, in
the order of their queue; acknowledgements. A consumer is never cancelled, and nothing is requeued: what a
leader holds goes back in order when the connection closes, before the next leader receives anything (P2).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeAlias
from uuid import UUID

from msgspec import structs

from turnstile.common.broker import delivery as broker
from turnstile.common.broker.connection import BrokerTimeouts, Declare, Link
from turnstile.common.broker.consumer import Subscription
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.prefetch import ByteBounds
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REQUESTS
from turnstile.executor.leader.deliveries import Message, Reader
from turnstile.executor.leader.ports import Delivery, Request

logger = logging.getLogger(__name__)

_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A larger message is refused by its size alone. At most twice as much is held of each queue."""
_PREFETCHES: Final = {EXECUTOR_REQUESTS: 2000, EXECUTOR_COMPLETIONS: 2000, EXECUTOR_HEARTBEATS: 2000}
_TAKEN_BYTES_MAX: Final = {
    EXECUTOR_REQUESTS: 1024 * 1024,
    EXECUTOR_COMPLETIONS: 4 * 1024 * 1024,
    EXECUTOR_HEARTBEATS: 1024 * 1024,
}
"""What one turn takes, so that parsing and storing it never takes long; a larger message comes alone."""
_LARGE_BYTES: Final = 64 * 1024
_MANY_VALUES: Final = 5_000
"""Parameters and metadata of this size with so many values are stored beside the turns: the database takes
0.6 microseconds to read a value, and little to read a long text."""
_READ_SECONDS: Final = 0.05
"""How long a turn reads and checks the messages of one queue; the others are read in the next one."""
_READY_PAUSE_SECONDS: Final = 0.005
_SILENCE_SECONDS: Final = 3.0
"""After so long without a byte, three heartbeats of the broker, the connection is given up."""
_WATCH_SECONDS: Final = 0.5

StoreBody: TypeAlias = Callable[[bytes, bytes | None], Awaitable[UUID | None]]
"""Stores parameters and metadata before the turn that admits them; returns their key. None: it failed."""


class Consuming:
    """One life of the connection."""

    def __init__(
        self,
        link: Link,
        reader: Reader,
        *,
        declare: Declare,
        timeouts: BrokerTimeouts,
        message_bytes_max: int,
        on_arrival: Callable[[], None],
        store_body: StoreBody | None = None,
    ) -> None:
        """`declare` is run before each start of a channel: a queue may have been deleted.

        `store_body`: None: turns store large bodies, too.
        """
        one_bytes = max(_MESSAGE_BYTES_MAX, message_bytes_max)
        self._link = link
        self._reader = reader
        self._subscriptions = {
            queue: Subscription(
                queue,
                prefetch=prefetch,
                declare=declare,
                timeouts=timeouts,
                byte_bounds=ByteBounds(held=2 * one_bytes, one=one_bytes),
            )
            for queue, prefetch in _PREFETCHES.items()
        }
        self._unread: dict[str, deque[broker.Delivery]] = {queue: deque() for queue in _PREFETCHES}
        """Messages that the last turn took and had no time to read."""
        self._read: dict[str, deque[Delivery]] = {queue: deque() for queue in _PREFETCHES}
        """Deliveries of a message of which the first ones were taken."""
        self._on_arrival, self._store_body = on_arrival, store_body
        self._storing: asyncio.Task[list[Delivery]] | None = None
        """Stores the bodies of large requests. Those behind them wait, so that their order stays."""
        self._serving: list[asyncio.Task[None]] = []
        for subscription in self._subscriptions.values():
            subscription.on_arrival = on_arrival

    async def begin(self, timeout_seconds: float) -> None:
        """Consume all queues; raises BrokerUnavailable if one cannot be consumed in time."""
        for queue, subscription in self._subscriptions.items():
            task = asyncio.create_task(subscription.serve(self._link), name=f"consume-{queue}")
            task.add_done_callback(self._ended)
            self._serving.append(task)
        self._serving.append(asyncio.create_task(self._watch(), name="watch-silence"))
        try:
            async with asyncio.timeout(timeout_seconds):
                while not all(each.ready for each in self._subscriptions.values()):
                    if not self._link.is_open:
                        raise BrokerUnavailable("the connection closed")
                    await asyncio.sleep(_READY_PAUSE_SECONDS)
        except TimeoutError:
            reasons = [each.last_error for each in self._subscriptions.values() if each.last_error]
            raise BrokerUnavailable(reasons[0] if reasons else "the broker does not answer") from None
        self._link.serving()

    async def _watch(self) -> None:
        """Give up a connection that is frozen: its end would show much later."""
        loop = asyncio.get_running_loop()
        while self._link.is_open:
            began_at = loop.time()
            await asyncio.sleep(_WATCH_SECONDS)
            # A loop that stood still has not read what has arrived meanwhile.
            is_late = loop.time() - began_at > 2 * _WATCH_SECONDS
            if not is_late and self._link.silent_seconds > _SILENCE_SECONDS:
                logger.warning("broker_silent", extra={"seconds": round(self._link.silent_seconds, 1)})
                self._link.abort()

    def _ended(self, serving: asyncio.Task[None]) -> None:
        # The leader must learn that it hears nothing more.
        self._link.abort()
        if not serving.cancelled() and (error := serving.exception()) is not None:
            logger.error("consuming_broke", exc_info=error)

    @property
    def is_open(self) -> bool:
        """Whether the connection stands."""
        return self._link.is_open

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Return up to `count` deliveries that have arrived, in order."""
        read = self._read[queue]
        found: list[Delivery] = []
        if self._storing is not None and queue == EXECUTOR_REQUESTS:
            return found
        while read and len(found) < count:
            delivery = read.popleft()
            # Of a channel that closed: the broker delivers them again on the new one.
            if delivery.tag.delivery.live:
                found.append(delivery)
        if len(found) == count or not self.is_open:
            return found
        unread, loop = self._unread[queue], asyncio.get_running_loop()
        if not unread:
            bytes_max = _TAKEN_BYTES_MAX[queue]
            unread.extend(self._subscriptions[queue].take(count - len(found), bytes_max=bytes_max))
        until = loop.time() + _READ_SECONDS
        following: list[Delivery] = []
        while unread and len(found) + len(following) < count:
            message = unread.popleft()
            if message.live:
                following += self._reader.deliveries(queue, Message(message, self))
            if loop.time() > until:
                break
        found += self._without_large(following) if queue == EXECUTOR_REQUESTS else following
        read.extend(found[count:])
        return found[:count]

    def _without_large(self, requests: list[Delivery]) -> list[Delivery]:
        """Return the requests before the first large one; a later turn takes the rest, stored by then."""
        first = next((index for index, each in enumerate(requests) if _is_large(each)), len(requests))
        store_body, rest = self._store_body, requests[first:]
        if store_body is None or not rest:
            return requests

        async def stored(each: Delivery) -> Delivery:
            if not _is_large(each):
                return each
            request = each.body
            assert isinstance(request, Request)
            body_id = await store_body(request.parameters, request.metadata)
            return structs.replace(each, body=structs.replace(request, body_id=body_id))

        async def store() -> list[Delivery]:
            return [await stored(each) for each in rest]

        self._storing = asyncio.create_task(store(), name="store-large-bodies")
        self._storing.add_done_callback(self._stored)
        return requests[:first]

    def _stored(self, storing: asyncio.Task[list[Delivery]]) -> None:
        self._storing = None
        if storing.cancelled():
            return
        if (error := storing.exception()) is not None:
            logger.error("storing_broke", exc_info=error)
            self._link.abort()
            return
        self._read[EXECUTOR_REQUESTS].extend(storing.result())
        self._on_arrival()

    def settle(self, queue: str, messages: Iterable[Message]) -> None:
        """Acknowledge messages. The broker moves those to the dead letters of which we could not."""
        accepted: list[broker.Delivery] = []
        refused: list[broker.Delivery] = []
        for message in messages:
            has_letter = all(letter.done() and letter.result() for letter in message.letters)
            (accepted if message.delivery.kept and has_letter else refused).append(message.delivery)
        subscription = self._subscriptions[queue]
        subscription.ack(accepted)
        if refused:
            subscription.reject(refused, requeue=False)

    async def close(self) -> None:
        """Close the connection in good order, where the broker answers in time; else drop it."""
        await self._link.close()
        if self._storing is not None:
            self._storing.cancel()
        for task in self._serving:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._serving, return_exceptions=True)


def _is_large(delivery: Delivery) -> bool:
    request = delivery.body
    if not isinstance(request, Request) or request.refusal is not None:
        return False
    texts = request.parameters, request.metadata or b""
    # A comma precedes each value but the first one of its list or object.
    return sum(map(len, texts)) > _LARGE_BYTES and sum(each.count(b",") for each in texts) > _MANY_VALUES
