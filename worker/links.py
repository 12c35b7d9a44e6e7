"""The worker's two links, in batches and with patience: the record (claim, finish, hand back) and the broker.

In: one attempt's wish. Out: the answer, after as many tries as it takes; every one of these may be repeated.
While the lease is in doubt nothing is claimed; a report that comes too late for it waits for the next renewal
(`worker.lease`). So an attempt waits here instead of failing. Once the lease is lost, `worker.attempt` ends
its waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import asyncpg

from common.batcher import Batcher, Gatherer
from common.broker.connection import BrokerUnavailable
from common.broker.delivery import Outgoing, Publication
from common.broker.publisher import Publisher
from common.domain.errors import Unavailable
from common.envelopes import ANNOUNCE_DELAY_SECONDS, status_message
from common.messages import StatusChanged
from worker.lease import Lease
from worker.log_flusher import LogFlusher
from worker.record import Claim, Finished, Offer, Record, Report, Verdict

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 2.0


class Links:
    """What all attempts of one worker id share."""

    def __init__(self, record: Record, publisher: Publisher, lease: Lease, logs: LogFlusher) -> None:
        self.lease = lease
        self.logs = logs
        self._record = record
        self._publisher = publisher
        self._wishes: Batcher[Offer | Report, Claim | Verdict | Finished] = Batcher(record.exchange)
        self._messages: Batcher[Outgoing, None] = Batcher(self._publish)
        self._announcements: Gatherer[StatusChanged] = Gatherer(
            self._announce_all, delay_seconds=ANNOUNCE_DELAY_SECONDS
        )

    async def run(self) -> None:
        """Keep the batches going until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wishes.run(), name="claims-and-finishes")
            tasks.create_task(self._messages.run(), name="messages")
            tasks.create_task(self.logs.run(), name="logs")

    async def claim(self, offer: Offer, *, give_up: Callable[[], bool]) -> Claim | Verdict | None:
        """Claim one attempt; None once `give_up` says so, or the lease is lost, before it was claimed."""
        while await self.lease.certain() and not give_up():
            try:
                answer = await self._wishes.submit(offer)
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.warning(
                    "claim_postponed", extra={"execution_id": offer.execution_id, "reason": str(error)}
                )
                await asyncio.sleep(_PAUSE_MAX_SECONDS / 4)
                continue
            assert not isinstance(answer, Finished), "an offer is answered by a claim"
            if answer is Verdict.HELD:
                await asyncio.sleep(_PAUSE_MAX_SECONDS / 4)
                continue
            if answer is not Verdict.LEASE_OVER:
                return answer
            if not await self.lease.next_renewal():
                return None
        return None

    async def finish(self, report: Report) -> Finished:
        """Report one end, until the record has answered, or the lease is lost."""
        while True:
            finished = await _until_available(lambda: self._wishes.submit(report), "finish")
            assert isinstance(finished, Finished), "a report is answered by what became of it"
            if finished.verdict is Verdict.HELD:
                await asyncio.sleep(_PAUSE_MAX_SECONDS / 4)
                continue
            if finished.verdict is not Verdict.LEASE_OVER or not await self.lease.next_renewal():
                return finished

    async def hand_back(self, offer: Offer) -> bool:
        """Give one attempt back; False where it was not ours any more."""
        given = await _until_available(lambda: self._record.hand_back([offer]), "hand_back")
        return offer.execution_id in given

    async def tell(self, messages: Sequence[Outgoing]) -> None:
        """Publish, and return once all are confirmed."""
        await _until_available(lambda: self._messages.submit_all(messages), "tell")

    def announce(self, change: StatusChanged) -> None:
        """Announce a move, if that is possible at once."""
        self._announcements.add(change)

    def _announce_all(self, changes: list[StatusChanged]) -> None:
        self._publisher.announce([status_message(change, app_id="worker") for change in changes])

    async def _publish(self, messages: Sequence[Outgoing]) -> list[None]:
        pending, pause_seconds = list(messages), _PAUSE_FIRST_SECONDS
        while pending:
            try:
                outcomes = await self._publisher.publish(pending)
            except BrokerUnavailable as error:
                logger.debug("tell_repeated", extra={"messages": len(pending), "reason": str(error)})
            else:
                pending = [
                    m for m, o in zip(pending, outcomes, strict=True) if o is not Publication.CONFIRMED
                ]
                if pending:
                    await self._restore_topology()
            if pending:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)
        return [None] * len(messages)

    async def _restore_topology(self) -> None:
        """Create the deleted delay queue or dead letters anew; the executor sees to its own queues."""
        with suppress(BrokerUnavailable):
            await self._publisher.restore()


async def _until_available(ask: Callable[[], Awaitable[T]], name: str) -> T:
    pause_seconds = _PAUSE_FIRST_SECONDS
    while True:
        try:
            return await ask()
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.warning("record_unavailable", extra={"wish": name, "reason": str(error)})
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)
