"""Tells the workers, the submitters and the world what was decided.

The rows are the outbox: whatever is lost here, the watchdog finds in them and tells again (P4, P7).

In: grants, moves and answers, after their commit. Out: messages, each confirmed by its own queue, or
abandoned where that queue refuses it. A caller acknowledges what led to a decision only after `tell`
returned. What goes to addresses of strangers (replies, dead letters) is repeated a few times, and holds up
nothing else.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

import asyncpg

from common.batcher import Gatherer
from common.broker.connection import BrokerUnavailable
from common.broker.courier import Courier
from common.broker.delivery import Outgoing
from common.broker.publisher import Publisher
from common.broker.reliable import ReliablePublisher
from common.broker.topology import QueueType, declare_executor, scheduled_key
from common.domain.errors import Unavailable
from common.domain.identifiers import QueueId
from common.domain.states import Status
from common.envelopes import ANNOUNCE_DELAY_SECONDS, scheduled_message, status_message
from common.messages import ExecutionScheduled, StatusChanged
from common.undelivered import Undelivered
from executor import transitions
from executor.decisions import Accepted, Grant, Grants, Move
from executor.metrics import UNDELIVERED
from executor.pool_queues import PoolQueues
from executor.queue_manager import QueueManager

logger = logging.getLogger(__name__)


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

    async def offer(self, grants: Grants) -> None:
        """Offer granted executions to the workers of their pools; where a batch was full, `run` grants on.

        Offers to a pool whose queue cannot be declared are left to the watchdog.
        """
        if grants.more_queue_ids:
            self._more_queue_ids.update(grants.more_queue_ids)
            self._has_more.set()
        if grants.granted:
            usable = await self.pools.usable({grant.pool for grant in grants.granted})
            self.announce_grants(grants.granted)
            with transitions.offering(grants.granted):
                await self.tell([_offer(grant) for grant in grants.granted if grant.pool in usable])

    async def tell(self, messages: Sequence[Outgoing]) -> None:
        """Publish to our own queues and whoever listens; a repeated message is harmless to its receivers.

        Returns once each is confirmed by its own queue, or abandoned where that queue refuses it.
        """
        await self._reliable.publish(messages)

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
