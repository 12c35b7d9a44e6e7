"""Publishes offers, cancels, completions, replies and status events, after the commit that caused them.

The rows are the outbox: the watchdog republishes what is lost here (P4, P7). In: grants, moves and
messages. Out: messages, each confirmed by its own queue, or abandoned where that queue refuses it. A caller
acknowledges its input only after `publish` returned. Messages to addresses that the service does not control
(replies, dead letters) are retried a few times and delay nothing else. The queue of a pool is declared before
its first offer; a queue that cannot be declared delays no other pool (P9).
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import asyncpg
from aio_pika.abc import AbstractChannel

from turnstile.common.broker.best_effort import BestEffortPublisher, Undelivered
from turnstile.common.broker.errors import BrokerUnavailable, DeclarationRefused
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.reliable import ReliablePublisher
from turnstile.common.broker.topology import (
    QueueType,
    declare_executor,
    declare_pool,
    pool_queue,
    ready_offers,
    scheduled_key,
)
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import QueueId
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import scheduled_message
from turnstile.common.messages import StatusChanged
from turnstile.common.status_events import StatusEvents
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor import instrumentation
from turnstile.executor.metrics import POOL_UNUSABLE, UNDELIVERED
from turnstile.executor.packing import Packing
from turnstile.executor.results import Accepted, Grant, Grants, Move
from turnstile.executor.slot_grants import QueueManager

logger = logging.getLogger(__name__)

_CONCURRENT_POOLS_MAX: Final = 16
_BACKGROUND_MESSAGES_MAX: Final = 5000
"""Upper bound on messages that background tasks publish; reaching it means that the broker is down."""
_DECLARE_PAUSE_SECONDS: Final = 0.2
_DECLARE_TRIES_MAX: Final = 2
"""Tries of a declaration that the broker does not answer, while the connection is open."""
_REFUSAL_SECONDS: Final = 1.0
"""Pause before a refused declaration is retried."""


class Dispatcher:
    """Publishes for the executor service: offers, and what other modules pass to it.

    Also grants what is left of a queue where one statement granted its maximum, decides which offers share a
    message, declares the queues of pools, counts their ready messages, and runs publishing in the background.
    """

    def __init__(
        self, publisher: Publisher, queue_manager: QueueManager, queue_type: QueueType, replies: Publisher
    ) -> None:
        """Use `replies`, a second connection, for replies, dead letters and refused listeners' copies."""
        self._publisher = publisher
        self._queue_manager = queue_manager
        self._queue_type: QueueType = queue_type
        self._undelivered = Undelivered(UNDELIVERED.add)
        self.best_effort = BestEffortPublisher(replies, on_dropped=self._undelivered)
        self.pools = PoolQueues(publisher, queue_type)
        self.packing = Packing()
        self._reliable = ReliablePublisher(
            publisher, self.best_effort, restore=self._restore, on_abandoned=self._undelivered
        )
        self._more_queue_ids: set[QueueId] = set()
        self._has_more = asyncio.Event()
        self._broken = Episodes(logger, "publishing_broken", level=logging.ERROR)
        self._postponed = Episodes(logger, "grant_postponed")
        self._status_events = StatusEvents(publisher, app_id="executor")
        self.granted = asyncio.Event()
        """Set with each grant; the rate timer clears it."""
        self._background: set[asyncio.Task[None]] = set()
        self._background_count = 0

    async def run(self) -> NoReturn:
        """Send replies, and grant the rest where one statement did not grant all, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.best_effort.run(), name="best-effort publisher")
            await self._grant_more()
        raise AssertionError("the dispatcher ends by cancellation only")

    async def _grant_more(self) -> NoReturn:
        """Grant the rest where one statement granted its maximum, until cancelled.

        In a task of its own: granting a queue of a million executions would delay the caller that granted the
        first of them, and everything behind it (P9).
        """
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            queue_ids, self._more_queue_ids = sorted(self._more_queue_ids), set()
            try:
                grants = await self._queue_manager.grant(queue_ids)
            except (Unavailable, asyncpg.PostgresError) as error:
                # What was granted is offered; the watchdog grants the rest of the queue (P7).
                self._postponed.failed("grant", reason=str(error))
            else:
                self._postponed.works("grant")
                if grants.granted:
                    reached(CrashPoint.MORE_GRANTED)
                await self.dispatch(grants)

    @property
    def connected(self) -> bool:
        """Whether the connection of the publisher is open, as far as is known."""
        return self._publisher.connected

    async def declare_pools(self, pools: Iterable[str]) -> None:
        """Declare the queues of these pools that were not declared yet."""
        await self.pools.usable(pools)

    async def ready_offers(self, pools: Iterable[str]) -> dict[str, int]:
        """Return how many messages are ready in the queues of these pools, as far as the broker answers."""
        slots = asyncio.Semaphore(_CONCURRENT_POOLS_MAX)
        ready: dict[str, int] = {}

        async def count(pool: str) -> None:
            async def read(channel: AbstractChannel) -> None:
                ready[pool] = await ready_offers(channel, pool)

            async with slots:
                try:
                    await self._publisher.declare(read)
                except BrokerUnavailable as error:
                    # One queue whose node is down must not hide the others.
                    logger.debug("pool_not_seen", extra={"pool": pool, "reason": str(error)})

        async with asyncio.TaskGroup() as tasks:
            for pool in pools:
                tasks.create_task(count(pool), name="count-offers")
        return ready

    async def dispatch(self, grants: Grants, *, alone: bool = False) -> None:
        """Offer granted executions to the workers of their pools; where a batch was full, `run` grants more.

        `alone`: each offer in a message of its own. The watchdog publishes the offers of pools whose queue
        cannot be declared now.
        """
        if grants.more_queue_ids:
            self._more_queue_ids.update(grants.more_queue_ids)
            self._has_more.set()
        if not grants.granted:
            return
        self.granted.set()
        self.announce_grants(grants.granted)
        usable = await self.pools.usable({grant.pool for grant in grants.granted})
        with instrumentation.dispatch_span(grants.granted):
            offered = [grant for grant in grants.granted if grant.pool in usable]
            messages = ((grant,) for grant in offered) if alone else self.packing.messages(offered)
            await self.publish([_offer_message(each) for each in messages])

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish to our own queues and to listeners; receivers tolerate a repeated message.

        Returns once each is confirmed by its own queue, or abandoned where that queue refuses it.
        """
        await self._reliable.publish(messages)

    def in_background(self, publishing: Coroutine[Any, Any, None], *, count: int) -> bool:
        """Run `publishing`, about `count` messages, in a task of its own, so that its caller does not wait.

        False if too many messages wait already: then it is dropped, and the watchdog publishes from the rows.
        """
        if self._background_count > 0 and self._background_count + count > _BACKGROUND_MESSAGES_MAX:
            publishing.close()
            logger.debug("publishing_left_to_watchdog", extra={"messages": count})
            return False
        self._background_count += count
        task = asyncio.create_task(self._run_in_background(publishing, count), name="publish")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return True

    def dispatch_in_background(self, grants: Grants) -> bool:
        """Offer grants as by `dispatch`, without waiting for the broker; False as by `in_background`."""
        if not grants.granted and not grants.more_queue_ids:
            return True
        return self.in_background(self.dispatch(grants), count=len(grants.granted))

    async def finish(self, timeout_seconds: float) -> None:
        """Wait until the background tasks are done; what takes longer is left to the watchdog."""
        if self._background:
            _, late = await asyncio.wait(set(self._background), timeout=timeout_seconds)
            for task in late:
                task.cancel()

    async def _run_in_background(self, publishing: Coroutine[Any, Any, None], count: int) -> None:
        try:
            await publishing
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.debug("publishing_left_to_watchdog", extra={"messages": count, "reason": str(error)})
        except Exception as error:  # noqa: BLE001  (logged with its traceback)
            # A fault in one message stops neither the others nor the service; the rows remain.
            self._broken.broke(type(error).__name__, error)
        finally:
            self._background_count -= count

    def announce_admitted(self, admitted: Iterable[tuple[str, Accepted]]) -> None:
        """Publish that these executions, each with its action's ref, were queued or delayed."""
        if not self._status_events.wanted:
            return
        now = datetime.now(UTC)
        self.announce_changes(
            StatusChanged(
                execution_id=accepted.execution_id,
                action_ref=action_ref,
                # An execution granted in the same statement was queued before.
                status=Status.DELAYED if accepted.status is Status.DELAYED else Status.QUEUED,
                previous_status=None,
                attempt=0,
                changed_at=now,
            )
            for action_ref, accepted in admitted
        )

    def announce_grants(self, grants: Iterable[Grant]) -> None:
        """Publish that these executions left their queue."""
        if not self._status_events.wanted:
            return
        now = datetime.now(UTC)
        self.announce_changes(_change(each, Status.QUEUED, Status.SCHEDULED, now) for each in grants)

    def announce_moves(self, moves: Iterable[Move]) -> None:
        """Publish status changes that the executor made."""
        if self._status_events.wanted:
            self.announce_changes(_change(m, m.previous_status, m.status, m.moved_at) for m in moves)

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        """Publish status events to bound queues, without confirmation."""
        self._status_events.add(*changes)

    async def _restore(self, returned: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Declare queues that were deleted; return the messages that can be published now."""
        try:
            await self._publisher.declare(lambda c: declare_executor(c, queue_type=self._queue_type))
        except BrokerUnavailable:
            return returned
        await self.pools.declare_again()
        unusable = {scheduled_key(pool) for pool in self.pools.unusable}
        return [message for message in returned if message.routing_key not in unusable]


def _offer_message(grants: Sequence[Grant]) -> Outgoing:
    first, *more = grants
    return scheduled_message(
        first.execution_id,
        first.attempt,
        first.action_ref,
        pool=first.pool,
        traceparent=first.traceparent,
        more=[grant[:3] for grant in more],
    )


def _change(of: Grant | Move, previous: Status, status: Status, at: datetime) -> StatusChanged:
    return StatusChanged(
        execution_id=of.execution_id,
        action_ref=of.action_ref,
        status=status,
        previous_status=previous,
        attempt=of.attempt,
        changed_at=at,
    )


class PoolQueues:
    """Declares the queues of pools, and remembers those that cannot be declared.

    Another client may have declared the queue of a pool with other arguments; the broker then refuses ours.
    The offers to that pool wait in their rows until the queue can be declared.
    """

    def __init__(self, publisher: Publisher, queue_type: QueueType) -> None:
        self._publisher = publisher
        self._queue_type: QueueType = queue_type
        self._declared: set[str] = set()
        self._unusable: dict[str, str] = {}
        self._tried_at: dict[str, float] = {}
        self._episodes = Episodes(logger, "pool_unusable", lasting=True)

    @property
    def unusable(self) -> Mapping[str, str]:
        """The pools whose queues cannot be declared, and why."""
        return self._unusable

    async def usable(self, pools: Iterable[str]) -> set[str]:
        """Declare what was not declared yet; return the pools that can be published to."""
        wanted = set(pools)
        for pool in wanted - self._declared:
            await self._declare(pool)
        return wanted & self._declared

    async def declare_again(self) -> None:
        """Declare all of them again, after the broker returned a message for a missing queue."""
        pools, self._declared = self._declared, set()
        await self.usable(pools)

    async def _declare(self, pool: str) -> None:
        loop = asyncio.get_running_loop()
        if pool in self._unusable and loop.time() - self._tried_at[pool] < _REFUSAL_SECONDS:
            return
        tries_left = _DECLARE_TRIES_MAX
        while True:
            try:
                await self._publisher.declare(lambda c: declare_pool(c, pool, queue_type=self._queue_type))
            except DeclarationRefused as error:
                self._note_unusable(pool, str(error))
                return
            except BrokerUnavailable as error:
                tries_left -= self._publisher.connected
                if not tries_left:
                    self._note_unusable(pool, str(error))
                    return
                await asyncio.sleep(_DECLARE_PAUSE_SECONDS)
            else:
                self._note_usable(pool)
                return

    def _note_unusable(self, pool: str, error: str) -> None:
        queue = pool_queue(pool)
        reason = f"queue {queue!r} cannot be declared: {error}; delete it: the executor declares it"
        self._unusable[pool] = reason
        self._tried_at[pool] = asyncio.get_running_loop().time()
        POOL_UNUSABLE.set(1, pool)
        self._episodes.failed(pool, pool=pool, queue=queue, reason=reason)

    def _note_usable(self, pool: str) -> None:
        self._declared.add(pool)
        if self._unusable.pop(pool, None) is not None:
            POOL_UNUSABLE.set(0, pool)
            self._episodes.works(pool, pool=pool)
