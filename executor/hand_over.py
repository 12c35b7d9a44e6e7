"""Tells the workers, the submitters and the world what was decided.

The rows are the outbox: whatever is lost here, the watchdog finds in them and tells again (P4, P7).

In: grants, moves and answers, after their commit. Out: messages, each confirmed by its own queue, or
abandoned where that queue refuses it. A caller acknowledges what led to a decision only after `tell`
returned. What goes to addresses of strangers (replies, dead letters) is repeated a few times, and holds up
nothing else.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import asyncpg
from aio_pika.abc import AbstractChannel

from turnstile.common.batcher import Gatherer
from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.courier import Courier
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.reliable import ReliablePublisher
from turnstile.common.broker.topology import QueueType, declare_executor, ready_offers, scheduled_key
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import QueueId
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import ANNOUNCE_DELAY_SECONDS, scheduled_message, status_message
from turnstile.common.messages import ExecutionScheduled, StatusChanged
from turnstile.common.undelivered import Undelivered
from turnstile.executor import transitions
from turnstile.executor.decisions import Accepted, Grant, Grants, Move
from turnstile.executor.metrics import UNDELIVERED
from turnstile.executor.pool_queues import PoolQueues
from turnstile.executor.queue_manager import QueueManager

logger = logging.getLogger(__name__)

_LOOKS_AT_ONCE: Final = 16
_LATER_MAX: Final = 5000
"""Messages that wait to be told by tasks of their own. Reaching it means that the broker is out of reach."""


class HandOver:
    """Publishes for the executor service, and creates the queue of a pool before it is first used."""

    def __init__(
        self, publisher: Publisher, queue_manager: QueueManager, queue_type: QueueType, strangers: Publisher
    ) -> None:
        """`strangers` is a second connection, for replies, dead letters and what listeners refused."""
        self._publisher = publisher
        self._queue_manager = queue_manager
        self._queue_type: QueueType = queue_type
        self._undelivered = Undelivered(UNDELIVERED.add)
        self.courier = Courier(strangers, on_dropped=self._undelivered)
        self.pools = PoolQueues(publisher, queue_type)
        self._reliable = ReliablePublisher(
            publisher, self.courier, restore=self._restore, on_abandoned=self._undelivered
        )
        self._more_queue_ids: set[QueueId] = set()
        self._has_more = asyncio.Event()
        self._announcements: Gatherer[StatusChanged] = Gatherer(
            self._announce_all, delay_seconds=ANNOUNCE_DELAY_SECONDS
        )
        self.unserved_refs: frozenset[str] = frozenset()
        """Actions whose pool has workers, but none with their code, as the watchdog saw it last."""
        self._later: set[asyncio.Task[None]] = set()
        self._later_count = 0

    async def run(self) -> NoReturn:
        """Publish to strangers, and grant on where one statement did not grant all, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.courier.run(), name="courier")
            await self._grant_on()
        raise AssertionError("the hand-over ends by cancellation only")

    async def _grant_on(self) -> NoReturn:
        """Grant on where more may start than one statement grants, until cancelled.

        In a task of its own: a line of a million that may all start would hold up whoever granted the first
        of them, and with it everything that comes behind (P9).
        """
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            queue_ids, self._more_queue_ids = sorted(self._more_queue_ids), set()
            try:
                grants = await self._queue_manager.grant(queue_ids)
            except (Unavailable, asyncpg.PostgresError) as error:
                # What was granted is told; the rest of the line is the watchdog's next grant (P7).
                logger.warning("grant_postponed", extra={"reason": str(error)})
            else:
                await self.offer(grants)

    async def prepare(self, pools: Iterable[str]) -> None:
        """Create the queues of these pools, as far as that was not done yet."""
        await self.pools.usable(pools)

    async def ready_offers(self, pools: Iterable[str]) -> dict[str, int]:
        """Return how many messages wait in the queues of these pools, as far as the broker says."""
        turns = asyncio.Semaphore(_LOOKS_AT_ONCE)
        ready: dict[str, int] = {}

        async def look(pool: str) -> None:
            async def ask(channel: AbstractChannel) -> None:
                ready[pool] = await ready_offers(channel, pool)

            async with turns:
                try:
                    await self._publisher.declare(ask)
                except BrokerUnavailable as error:
                    # One queue whose node is down is no reason not to look at the others.
                    logger.debug("pool_not_seen", extra={"pool": pool, "reason": str(error)})

        async with asyncio.TaskGroup() as tasks:
            for pool in pools:
                tasks.create_task(look(pool), name="look-at-pool")
        return ready

    async def offer(self, grants: Grants) -> None:
        """Offer granted executions to the workers of their pools; where a batch was full, `run` grants on.

        Offers to a pool whose queue cannot be declared are left to the watchdog.
        """
        if grants.more_queue_ids:
            self._more_queue_ids.update(grants.more_queue_ids)
            self._has_more.set()
        if not grants.granted:
            return
        self.announce_grants(grants.granted)
        if served := await self._served(grants.granted):
            usable = await self.pools.usable({grant.pool for grant in served})
            with transitions.offering(served):
                await self.tell([_offer(grant) for grant in served if grant.pool in usable])

    async def tell(self, messages: Sequence[Outgoing]) -> None:
        """Publish to our own queues and whoever listens; a repeated message is harmless to its receivers.

        Returns once each is confirmed by its own queue, or abandoned where that queue refuses it.
        """
        await self._reliable.publish(messages)

    def tell_later(self, telling: Coroutine[Any, Any, None], *, count: int) -> bool:
        """Run `telling`, about `count` messages, in a task of its own: its caller waits for no broker.

        False where too much waits already: it is dropped, and the rows remind the watchdog of it.
        """
        if self._later_count > 0 and self._later_count + count > _LATER_MAX:
            telling.close()
            logger.debug("telling_left_to_the_rows", extra={"messages": count})
            return False
        self._later_count += count
        task = asyncio.create_task(self._run_later(telling, count), name="tell-later")
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return True

    async def finish_telling(self, timeout_seconds: float) -> None:
        """Wait until what `tell_later` has begun is done; what takes longer is left to the rows."""
        if self._later:
            _, late = await asyncio.wait(set(self._later), timeout=timeout_seconds)
            for task in late:
                task.cancel()

    async def _run_later(self, telling: Coroutine[Any, Any, None], count: int) -> None:
        try:
            await telling
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.debug("telling_left_to_the_rows", extra={"messages": count, "reason": str(error)})
        except Exception:
            # Whatever one message holds, the others and the service go on; the rows remind of this one.
            logger.exception("telling_broken")
        finally:
            self._later_count -= count

    def announce_admitted(self, admitted: Iterable[tuple[str, Accepted]]) -> None:
        """Announce that these executions, each with its action's ref, took their place."""
        now = datetime.now(UTC)
        self.announce_changes(
            StatusChanged(
                execution_id=accepted.execution_id,
                action_ref=action_ref,
                # What was granted in the same breath stood in line for it.
                status=Status.DELAYED if accepted.status is Status.DELAYED else Status.QUEUED,
                previous_status=None,
                attempt=0,
                changed_at=now,
            )
            for action_ref, accepted in admitted
        )

    def announce_grants(self, grants: Iterable[Grant]) -> None:
        """Announce that these executions left the line."""
        now = datetime.now(UTC)
        self.announce_changes(
            StatusChanged(
                execution_id=grant.execution_id,
                action_ref=grant.action_ref,
                status=Status.SCHEDULED,
                previous_status=Status.QUEUED,
                attempt=grant.attempt,
                changed_at=now,
            )
            for grant in grants
        )

    def announce_moves(self, moves: Iterable[Move]) -> None:
        """Announce moves that the executor service made itself."""
        self.announce_changes(
            StatusChanged(
                execution_id=move.execution_id,
                action_ref=move.action_ref,
                status=move.status,
                previous_status=move.previous_status,
                attempt=move.attempt,
                changed_at=move.moved_at,
            )
            for move in moves
        )

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        """Announce status changes to whoever binds, if that is possible at once."""
        self._announcements.add(*changes)

    async def _served(self, grants: Sequence[Grant]) -> Sequence[Grant]:
        """Leave out what nobody could run; the rows say who, and when it is to be offered after all."""
        doubtful = [grant for grant in grants if grant.action_ref in self.unserved_refs]
        if not doubtful:
            return grants
        try:
            withheld = await self._queue_manager.withhold(doubtful)
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.debug("offers_not_withheld", extra={"offers": len(doubtful), "reason": str(error)})
            return grants
        return [grant for grant in grants if grant.execution_id not in withheld]

    def _announce_all(self, changes: list[StatusChanged]) -> None:
        self._publisher.announce([status_message(change, app_id="executor") for change in changes])

    async def _restore(self, returned: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Create what somebody deleted; return what can be published then."""
        try:
            await self._publisher.declare(lambda c: declare_executor(c, queue_type=self._queue_type))
        except BrokerUnavailable:
            return returned
        await self.pools.declare_again()
        hopeless = {scheduled_key(pool) for pool in self.pools.unusable}
        return [message for message in returned if message.routing_key not in hopeless]


def _offer(grant: Grant) -> Outgoing:
    scheduled = ExecutionScheduled(
        execution_id=grant.execution_id, attempt=grant.attempt, action_ref=grant.action_ref
    )
    return scheduled_message(scheduled, pool=grant.pool, traceparent=grant.traceparent)
