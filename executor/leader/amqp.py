"""The broker port of the leader, on RabbitMQ.

Four connections. One consumes, and only while this executor leads: `open` and `close` decide, and a loss
closes it until the next `open`, so that the leader knows that it heard nothing. One publishes to sessions
and to the leader's own queues; a queue that does not confirm delays the others once, for a second. One
carries events (`events`). One carries replies and dead letters (`best_effort`), and no turn waits for these:
a message is acknowledged behind its dead letter, or behind its reply, for which it waits two seconds at most.

All queues share the consuming connection, each on a channel of its own, so that one leader has all of them.
The broker alternates between channels: beside 40 requests of 15 MiB a heartbeat takes up to 250 ms (36 ms on
a connection of its own), and 150 ms instead of 27 over a line of 60 MB/s. A lease is 15 s.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

from msgspec import structs

from turnstile.common.broker import delivery as broker
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Declare, Link
from turnstile.common.broker.consumer import Subscription
from turnstile.common.broker.errors import BrokerUnavailable as Unavailable
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.message import Publication as Outcome
from turnstile.common.broker.prefetch import ByteBounds
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REQUESTS,
    QueueType,
    declare_events,
    declare_executor,
    declare_routes,
)
from turnstile.common.requests import PARAMETERS_BYTES_MAX, request_bytes_max
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.best_effort import BestEffortPublisher, RecentAddresses, Undelivered
from turnstile.executor.leader.dispatcher import client_message, is_for_client, own_messages
from turnstile.executor.leader.door import Message, Reader, RefusalOf
from turnstile.executor.leader.events import Events
from turnstile.executor.leader.ports import BrokerUnavailable, Delivery, Publication, Request, StatusChanged
from turnstile.executor.metrics import DEAD_LETTERED, UNDELIVERED

logger = logging.getLogger(__name__)

_CONSUMING: Final = BrokerTimeouts(
    heartbeat_seconds=2, connect_seconds=2.0, rpc_seconds=2.0, backoff_max_seconds=1.0
)
"""The broker closes the connection of a leader that stands still after two to three heartbeats."""
_PUBLISHING: Final = BrokerTimeouts(heartbeat_seconds=2, wait_seconds=0.05, backoff_max_seconds=1.0)
"""A turn does not wait for a connection: it publishes what is left in a later one."""
_EVENTS: Final = BrokerTimeouts(wait_seconds=2.0, backoff_first_seconds=0.02, backoff_max_seconds=1.0)
_BEST_EFFORT: Final = BrokerTimeouts(confirm_seconds=2.0)
_ROUTES_SECONDS: Final = 5.0
"""How long exchanges and bindings that were deleted may be missing: shorter than a lease of workers."""
_OPEN_SECONDS: Final = 0.5
"""How long `open` waits; the attempt goes on behind it."""
_BEGIN_SECONDS: Final = 5.0
_CONFIRM_SECONDS: Final = 1.0
_SILENT_CONFIRM_SECONDS: Final = 0.05
_SILENCE_REMEMBERED_SECONDS: Final = 60.0
_REPLY_SECONDS: Final = 2.0
"""How long an acknowledgement waits for a reply; the publisher tries for longer."""
_LETTER_SECONDS: Final = 60.0
"""Longer than the publisher tries: then the broker moves the message itself."""
_WAITING_MAX: Final = 1000
"""Messages whose acknowledgement waits for replies; well below the prefetch: others are delivered."""
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
        """Consume all queues; raises the broker's Unavailable if one cannot be consumed in time."""
        for queue, subscription in self._subscriptions.items():
            task = asyncio.create_task(subscription.serve(self._link), name=f"consume-{queue}")
            task.add_done_callback(self._ended)
            self._serving.append(task)
        self._serving.append(asyncio.create_task(self._watch(), name="watch-silence"))
        try:
            async with asyncio.timeout(timeout_seconds):
                while not all(each.ready for each in self._subscriptions.values()):
                    if not self._link.is_open:
                        raise Unavailable("the connection closed")
                    await asyncio.sleep(_READY_PAUSE_SECONDS)
        except TimeoutError:
            reasons = [each.last_error for each in self._subscriptions.values() if each.last_error]
            raise Unavailable(reasons[0] if reasons else "the broker does not answer") from None
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
            has_letters = all(letter.done() and letter.result() for letter in message.letters)
            (accepted if has_letters else refused).append(message.delivery)
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


class AmqpBroker:
    """Implements `ports.Broker`. `run` keeps the publishing connections; all else needs it running."""

    def __init__(
        self,
        url: str,
        *,
        refusal_of: RefusalOf,
        event_result_bytes_max: int,
        parameters_bytes_max: int = PARAMETERS_BYTES_MAX,
        queue_type: QueueType = "quorum",
        wake: Callable[[], None] = lambda: None,
        store_body: StoreBody | None = None,
    ) -> None:
        """`wake` is called in the loop with each message that arrives; it must not block."""
        self._declare: Declare = lambda channel: declare_executor(channel, queue_type=queue_type)
        self._connection = BrokerConnection(url, name="leader consumer", timeouts=_CONSUMING)
        self._publisher = Publisher(url, name="leader publisher", declare=self._declare, timeouts=_PUBLISHING)
        events = Publisher(url, name="leader events", declare=declare_events, timeouts=_EVENTS)
        best_effort = Publisher(url, name="leader best-effort", declare=self._declare, timeouts=_BEST_EFFORT)
        self._undelivered = Undelivered(UNDELIVERED.add)
        self._best_effort = BestEffortPublisher(best_effort, on_dropped=self._undelivered)
        self._events_publisher = events
        self.events = Events(
            events, self._best_effort, on_dropped=self._undelivered, result_bytes_max=event_result_bytes_max
        )
        self._probe_secret = secrets.token_hex(16)
        self._reader = Reader(
            refusal_of, parameters_bytes_max=parameters_bytes_max, probe_secret=self._probe_secret
        )
        self._message_bytes_max = request_bytes_max(parameters_bytes_max)
        self._wake = wake
        self._store_body = store_body
        self._consuming: Consuming | None = None
        self._opening: asyncio.Task[Consuming] | None = None
        self._waits: set[asyncio.Task[None]] = set()
        self._waiting: dict[Message, str] = {}
        """Messages whose acknowledgement waits for replies alone, with their queues."""
        self._silent = RecentAddresses(_SILENCE_REMEMBERED_SECONDS)
        self._silences = Episodes(logger, "session_silent")
        self._refusals = Episodes(logger, "message_refused", level=logging.INFO)

    async def run(self) -> NoReturn:
        """Keep the publishing connections until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="leader-publisher")
            tasks.create_task(self._events_publisher.run(), name="leader-events")
            tasks.create_task(self._best_effort.run(), name="leader-best-effort")
            tasks.create_task(self._keep_routes(), name="leader-routes")
        raise AssertionError("unreachable: only a cancellation ends this")

    async def _keep_routes(self) -> NoReturn:
        while True:
            await asyncio.sleep(_ROUTES_SECONDS)
            # Its consumer declares a missing queue again, and a new connection declares everything.
            with suppress(Unavailable):
                await self._publisher.declare(declare_routes)

    @property
    def connected(self) -> bool:
        """Whether this executor can publish, so that it could lead."""
        return self._publisher.connected

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no publishes for now (memory or disk alarm)."""
        return self._publisher.blocked

    @property
    def last_error(self) -> str | None:
        """Why a connection is missing, or None."""
        return self._publisher.last_error or self._connection.last_error

    # Consuming.

    @property
    def is_open(self) -> bool:
        """Whether the consuming connection stands."""
        return self._consuming is not None and self._consuming.is_open

    async def open(self) -> None:
        """Begin to consume the leader's queues. Raises BrokerUnavailable, also while an attempt goes on."""
        if self.is_open:
            return
        await self._close_consuming()
        opening = self._opening
        if opening is None:
            opening = self._opening = asyncio.create_task(self._begin(), name="open-leader-queues")
        await asyncio.wait({opening}, timeout=_OPEN_SECONDS)
        if not opening.done():
            raise BrokerUnavailable("the connection is not open yet")
        self._opening = None
        try:
            self._consuming = opening.result()
        except Unavailable as error:
            raise BrokerUnavailable(str(error)) from error

    async def _begin(self) -> Consuming:
        link = await self._connection.connect()
        consuming = Consuming(
            link,
            self._reader,
            declare=self._declare,
            timeouts=_CONSUMING,
            message_bytes_max=self._message_bytes_max,
            on_arrival=self._wake,
            store_body=self._store_body,
        )
        try:
            await consuming.begin(_BEGIN_SECONDS)
        except BaseException:
            await consuming.close()
            raise
        return consuming

    async def close(self) -> None:
        """Stop consuming; what was not acknowledged is redelivered to the next consumer."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        await self._close_consuming()

    async def _close_consuming(self) -> None:
        consuming, self._consuming = self._consuming, None
        if consuming is None:
            return
        # Decided and committed: without a message id the next leader would take them for new ones.
        for message, queue in self._waiting.items():
            consuming.settle(queue, [message])
        self._waiting.clear()
        for wait in self._waits:
            wait.cancel()
        self._waits.clear()
        await consuming.close()

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Return up to `count` deliveries that have arrived, in order; empty while not connected."""
        return [] if self._consuming is None or not self.is_open else self._consuming.take(queue, count)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge messages of which all deliveries are named; those with answers, behind these."""
        consuming = self._consuming
        if consuming is None:
            return
        now: dict[str, list[Message]] = {}
        replied: dict[str, list[Message]] = {}
        buried: dict[str, list[Message]] = {}
        for each in deliveries:
            message: Message = each.tag
            if message.source is not consuming:
                # Of an earlier connection: it is delivered again.
                continue
            message.left -= 1
            if message.left == 0:
                group = buried if message.letters else replied if message.replies else now
                group.setdefault(each.queue, []).append(message)
        for queue, messages in now.items():
            consuming.settle(queue, messages)
        for queue, messages in replied.items():
            if len(self._waiting) + len(messages) > _WAITING_MAX:
                consuming.settle(queue, messages)
            else:
                self._waiting.update(dict.fromkeys(messages, queue))
                self._settle_later(consuming, queue, messages, _REPLY_SECONDS)
        for queue, messages in buried.items():
            self._settle_later(consuming, queue, messages, _LETTER_SECONDS)

    def _settle_later(
        self, consuming: Consuming, queue: str, messages: Sequence[Message], seconds: float
    ) -> None:
        async def settle() -> None:
            answers = [answer for each in messages for answer in (*each.letters, *each.replies)]
            await asyncio.wait(answers, timeout=seconds)
            for each in messages:
                self._waiting.pop(each, None)
            consuming.settle(queue, messages)

        wait = asyncio.create_task(settle(), name="acknowledge-behind-answers")
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)

    # Publishing.

    async def publish(self, publications: Sequence[Publication]) -> list[bool]:
        """Publish in order for each target; return for each whether it was routed.

        Returns once messages to sessions and own queues are confirmed, and events routed. Replies and dead
        letters are only handed over: the acknowledgement of their message waits for them. Raises
        BrokerUnavailable.
        """
        try:
            if not publications:
                await self._publisher.publish_each([], seconds=0.0)
                return []
            events = [each.body for each in publications if each.to == "event"]
            if events:
                await self.events.publish([each for each in events if isinstance(each, Mapping)])
            routed = await self._publish_own(publications)
        except Unavailable as error:
            raise BrokerUnavailable(str(error)) from error
        # Last: what is published again after a failure must not repeat them.
        self._answer([each for each in publications if is_for_client(each)])
        return routed

    async def publish_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Publish events to listeners; return once they are routed. Raises BrokerUnavailable."""
        try:
            await self.events.publish(events)
        except Unavailable as error:
            raise BrokerUnavailable(str(error)) from error

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        """Publish status changes soon; they may be lost."""
        self.events.announce(changes)

    async def _publish_own(self, publications: Sequence[Publication]) -> list[bool]:
        routed = [True] * len(publications)
        messages = own_messages(publications, self._probe_secret)
        silent = [each for each in messages if each[0] in self._silent]
        heard = [each for each in messages if each[0] not in self._silent] if silent else messages
        for part, seconds in ((heard, _CONFIRM_SECONDS), (silent, _SILENT_CONFIRM_SECONDS)):
            if not part:
                continue
            outcomes = await self._publisher.publish_each([each for each, _ in part], seconds=seconds)
            for (message, indices), outcome in zip(part, outcomes, strict=True):
                if outcome is not Outcome.CONFIRMED:
                    self._note_unrouted(message, outcome)
                    for index in indices:
                        routed[index] = False
        return routed

    def _note_unrouted(self, message: Outgoing, outcome: Outcome | None) -> None:
        """Remember a queue that does not confirm. What it lacks is sent again behind the next heartbeat."""
        if outcome is None:
            self._silent.add(message)
            self._silences.failed(message.routing_key, queue=message.routing_key)

    def _answer(self, publications: Iterable[Publication]) -> None:
        for each in publications:
            message = client_message(each)
            of = None if each.of is None else each.of.tag
            is_letter = each.to == "dead letters"
            if is_letter:
                self._note_refusal(each)
            answers = [_not_published()] if message is None else self._best_effort.post([message])
            if isinstance(of, Message):
                (of.letters if is_letter else of.replies).extend(answers)

    def _note_refusal(self, letter: Publication) -> None:
        assert isinstance(letter.body, Mapping)
        code = str(letter.body["x-error-code"])
        DEAD_LETTERED.add(code)
        queue = None if letter.of is None else letter.of.queue
        self._refusals.failed(f"{queue} {code}", code=code, queue=queue, reason=letter.body.get("x-error"))


def _not_published() -> asyncio.Future[bool]:
    """Return the outcome of a dead letter that the broker has to move itself."""
    outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    outcome.set_result(False)
    return outcome
