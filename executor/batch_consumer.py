"""Consumes one queue in batches: process (one commit), then publish (confirmed), then acknowledge.

While the results of one batch are published the next batch is processed, both in order. A delivery is
acknowledged only after its result is committed and every message that follows from it is confirmed (P5).
Whatever fails before that is delivered again, and processing it again is harmless. A batch is bounded in
messages and in bytes. A batch that the database does not finish in time is retried with half of its messages,
down to one; that one is rejected after a few tries (P9). Replies and dead letters go through the best-effort
publisher, and only their own deliveries wait for them. Deliveries that need a row that another session holds
are blocked: they are processed again before later ones (P2).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol, TypeVar

import asyncpg

from turnstile.common.batcher import BATCH_BYTES_MAX
from turnstile.common.broker.best_effort import BestEffortPublisher
from turnstile.common.broker.consumer import Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal, StatementTimeout, Unavailable
from turnstile.common.gathering import GatherWindow
from turnstile.common.telemetry.logs import Episodes

logger = logging.getLogger(__name__)
_DIVIDED: Final = Episodes(logger, "decision_divided")
_POSTPONED: Final = Episodes(logger, "decision_postponed")
_FAILED: Final = Episodes(logger, "decision_failed", level=logging.ERROR)

LONE_TIMEOUTS_MAX: Final = 3
"""How often the database may time out over one message alone."""
_UNPUBLISHED_BATCHES_MAX: Final = 2
_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 5.0
_REPLY_SECONDS: Final = 2.0
"""How long an acknowledgement waits for a reply; the publisher retries for longer."""
_BLOCKED_BATCHES_MAX: Final = 3
"""Bound on blocked batches; at the bound no new deliveries are read. The prefetch holds four batches."""
_BLOCKED_PAUSE_SECONDS: Final = 0.1
"""Pause before blocked deliveries are processed again if nothing new arrives."""
_WAITING_MAX: Final = 1000
"""Deliveries whose acknowledgement waits for replies; well below the prefetch: others are delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A message to an address that the service does not control: a reply or a dead letter."""

    delivery: Delivery
    message: Outgoing


class BatchResult(Protocol):
    """Result of processing a batch."""

    @property
    def replies(self) -> Sequence[Reply]:
        """Replies and dead letters; a delivery is acknowledged after its own, or when they take too long."""

    @property
    def left(self) -> Sequence[Delivery]:
        """Deliveries that were not processed: they come first in the next batch."""

    @property
    def blocked(self) -> Sequence[Delivery]:
        """Deliveries that need a row that another session holds: processed before later ones (P2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """A result that needs no further step."""

    replies: Sequence[Reply] = ()
    left: Sequence[Delivery] = ()
    blocked: Sequence[Delivery] = ()


Result = TypeVar("Result", bound=BatchResult)


class BatchHandler(Protocol[Result]):
    """Processes the deliveries of one queue."""

    async def process(self, deliveries: Sequence[Delivery], /) -> Result:
        """Process a batch, in order, in one commit; raises Unavailable to have it processed again."""

    def give_up(self, delivery: Delivery, reason: str, /) -> Result:
        """Reject a delivery that cannot be processed, so that those behind it can."""

    async def publish(self, result: Result, /) -> None:
        """Return once every message that follows from the result is confirmed, except for its replies."""


@dataclass(slots=True)
class BatchSize:
    """Maximum number of messages in the next statement: halved by a timeout, doubled by a success."""

    maximum: int
    now: int

    def shrink(self, tried: int) -> None:
        """Note that the database timed out on a batch of this size."""
        self.now = max(1, tried // 2)

    def grow(self) -> None:
        """Note that a statement was finished."""
        self.now = min(self.now * 2, self.maximum)


async def consume_batches(
    subscription: Subscription,
    handler: BatchHandler[Result],
    *,
    batch_max: int,
    stop: asyncio.Event,
    best_effort: BestEffortPublisher | None = None,
    window: GatherWindow | None = None,
) -> None:
    """Process and publish batch after batch until `stop`, then publish what is processed and return.

    With a `window` a batch gathers a little longer where that saves processor time. What was delivered and
    not processed goes back to the front of the queue when the connection closes, before another consumer
    receives it (P2).
    """
    unpublished: asyncio.Queue[tuple[Sequence[Delivery], Result]] = asyncio.Queue(_UNPUBLISHED_BATCHES_MAX)
    replies = _Replies(subscription, best_effort)
    size = BatchSize(batch_max, batch_max)
    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(
            _publish_in_order(unpublished, handler, subscription, replies),
            name=f"publish-{subscription.queue}",
        )
        stopping = tasks.create_task(_set(stop), name="stop-signal")
        blocked: list[Delivery] = []
        while not stop.is_set():
            fresh: Sequence[Delivery] = ()
            if len(blocked) < batch_max * _BLOCKED_BATCHES_MAX:
                timeout_seconds = _BLOCKED_PAUSE_SECONDS if blocked else None
                # Blocked deliveries come first, and without delay.
                taking = _take(subscription, size.now, None if blocked else window)
                fresh = await _unless_stopped(taking, stopping, timeout_seconds)
            else:
                await asyncio.sleep(_BLOCKED_PAUSE_SECONDS)
            if stop.is_set() or not (blocked or fresh):
                continue
            if not fresh and subscription.full and not subscription.buffered:
                # Only they prevent the renewal of the channel. The broker redelivers them first (P2).
                subscription.reject(blocked, requeue=True)
                blocked.clear()
                continue
            if window is not None:
                window.begin(len(fresh))
            async for processed in results_of(blocked, fresh, handler, size):
                await unpublished.put(processed)
        await unpublished.join()
        publishing.cancel()
    await replies.settled()


async def _publish_in_order(
    unpublished: "asyncio.Queue[tuple[Sequence[Delivery], Result]]",
    handler: BatchHandler[Result],
    subscription: Subscription,
    replies: "_Replies",
) -> NoReturn:
    while True:
        deliveries, result = await unpublished.get()
        await handler.publish(result)
        waiting = replies.post(result.replies)
        _acknowledge(subscription, [each for each in deliveries if id(each) not in waiting])
        reached(CrashPoint.EXECUTOR_ACKNOWLEDGED)
        unpublished.task_done()


class _Replies:
    """Acknowledges deliveries after their replies are published."""

    def __init__(self, subscription: Subscription, best_effort: BestEffortPublisher | None) -> None:
        self._subscription = subscription
        self._best_effort = best_effort
        self._waiting = 0
        self._waits: set[asyncio.Task[None]] = set()

    def post(self, replies: Sequence[Reply]) -> set[int]:
        """Post replies; return the ids of the deliveries that are acknowledged after them."""
        if not replies:
            return set()
        assert self._best_effort is not None, "a handler with replies has a publisher"
        posted = self._best_effort.post([reply.message for reply in replies])
        deliveries = {id(reply.delivery): reply.delivery for reply in replies}
        if self._waiting + len(deliveries) > _WAITING_MAX:
            return set()
        self._waiting += len(deliveries)
        wait = asyncio.create_task(self._acknowledge(list(deliveries.values()), posted), name="replies")
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)
        return set(deliveries)

    async def settled(self) -> None:
        """Return when no acknowledgement waits; each wait is bounded."""
        if self._waits:
            await asyncio.wait(self._waits)

    async def _acknowledge(self, deliveries: list[Delivery], posted: list[asyncio.Future[bool]]) -> None:
        await asyncio.wait(posted, timeout=_REPLY_SECONDS)
        self._waiting -= len(deliveries)
        _acknowledge(self._subscription, deliveries)


def _acknowledge(subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
    """Acknowledge. A message too large to be kept is rejected: the broker, which has it, dead-letters it."""
    subscription.ack([each for each in deliveries if each.kept])
    too_large = [each for each in deliveries if not each.kept]
    if too_large:
        subscription.reject(too_large, requeue=False)


async def results_of(
    blocked: list[Delivery], fresh: Sequence[Delivery], handler: BatchHandler[Result], size: BatchSize
) -> AsyncIterator[tuple[Sequence[Delivery], Result]]:
    """Yield processed deliveries and their result, in order, until all are processed or in `blocked`.

    The blocked ones are part of every statement, so that no later delivery passes them.
    """
    unprocessed, lone_timeouts = list(fresh), 0
    while True:
        part = unprocessed[: size.now]
        try:
            result = await _until_available(handler, [*blocked, *part])
            size.grow()
        except StatementTimeout as error:
            _DIVIDED.failed("decision", messages=len(part), reason=str(error))
            size.shrink(len(part))
            lone_timeouts += len(part) <= 1
            if lone_timeouts < LONE_TIMEOUTS_MAX:
                continue
            if not part:
                return
            reason = f"{error}, {lone_timeouts} times for this message alone; send it again later"
            yield part, handler.give_up(part[0], reason)
            unprocessed, lone_timeouts = unprocessed[1:], 0
            continue
        lone_timeouts = 0
        not_processed = {*result.left, *result.blocked}
        processed = [each for each in (*blocked, *part) if each not in not_processed]
        blocked[:] = result.blocked
        yield processed, result
        unprocessed = [*result.left, *unprocessed[len(part) :]]
        if not unprocessed:
            return


def check_kept(delivery: Delivery) -> None:
    """Raise Refusal for a message that was too large to be kept in memory."""
    if not delivery.kept:
        raise Refusal(
            Code.TOO_LARGE, f"message: {delivery.size_bytes} bytes; send a reference to the data instead"
        )


async def _until_available(handler: BatchHandler[Result], deliveries: Sequence[Delivery]) -> Result:
    """Process, with backoff, until the database answers; raises StatementTimeout.

    Deliveries whose channel was lost are left out: the broker delivers them again.
    """
    pause_seconds = _PAUSE_FIRST_SECONDS
    what = type(handler).__name__
    while True:
        try:
            result = await handler.process([delivery for delivery in deliveries if delivery.live])
        except StatementTimeout:
            raise
        except Unavailable as error:
            _POSTPONED.failed(what, messages=len(deliveries), reason=str(error))
        except asyncpg.PostgresError as error:
            # Not caused by the data (that is divided off): missing rights, a full disk.
            _FAILED.failed(what, messages=len(deliveries), reason=str(error))
        else:
            _POSTPONED.works(what)
            _FAILED.works(what)
            return result
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)


async def _take(subscription: Subscription, batch_max: int, window: GatherWindow | None) -> list[Delivery]:
    """Return the next deliveries, and those that arrive within the window."""
    batch = await subscription.next_batch(batch_max, bytes_max=BATCH_BYTES_MAX)
    seconds = 0.0 if window is None or len(batch) == batch_max else window.seconds(len(batch))
    if seconds > 0:
        await asyncio.sleep(seconds)
        bytes_left = BATCH_BYTES_MAX - sum(delivery.size_bytes for delivery in batch)
        if subscription.buffered and bytes_left > 0:
            batch += await subscription.next_batch(batch_max - len(batch), bytes_max=bytes_left)
    return batch


async def _set(stop: asyncio.Event) -> None:
    await stop.wait()


async def _unless_stopped(
    taking: Coroutine[Any, Any, list[Delivery]], stopping: asyncio.Task[None], timeout_seconds: float | None
) -> list[Delivery]:
    """Return the deliveries that `taking` returns, or none once `stopping` is done or the time is over."""
    arriving = asyncio.create_task(taking, name="next-batch")
    try:
        await asyncio.wait({stopping, arriving}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        return arriving.result() if arriving.done() and not stopping.done() else []
    finally:
        arriving.cancel()
