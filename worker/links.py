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

from turnstile.common.batcher import Batcher, Gatherer
from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.courier import Courier
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.reliable import ReliablePublisher
from turnstile.common.domain.errors import Unavailable
from turnstile.common.envelopes import ANNOUNCE_DELAY_SECONDS, status_message
from turnstile.common.messages import StatusChanged
from turnstile.common.undelivered import Undelivered
from turnstile.worker.lease import Lease
from turnstile.worker.log_flusher import LogFlusher
from turnstile.worker.metrics import UNDELIVERED
from turnstile.worker.record import Claim, Finished, Offer, Record, Report, Verdict

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 2.0


class Links:
    """What all attempts of one worker id share."""

    def __init__(
        self, record: Record, publisher: Publisher, strangers: Publisher, lease: Lease, logs: LogFlusher
    ) -> None:
        """`strangers` is a second connection, for dead letters and what listeners refused."""
        self.lease = lease
        self.logs = logs
        self._record = record
        self._publisher = publisher
        undelivered = Undelivered(UNDELIVERED.add)
        self._courier = Courier(strangers, on_dropped=undelivered)
        self._reliable = ReliablePublisher(
            publisher, self._courier, restore=self._restore, on_abandoned=undelivered
        )
        self._wishes: Batcher[Offer | Report, Claim | Verdict | Finished] = Batcher(
            self._exchange, size_bytes=self._wish_bytes
        )
        self._parameters_bytes = 0
        self._messages: Batcher[Outgoing, None] = Batcher(
            self._publish, size_bytes=lambda message: len(message.body)
        )
        self._announcements: Gatherer[StatusChanged] = Gatherer(
            self._announce_all, delay_seconds=ANNOUNCE_DELAY_SECONDS
        )

    async def run(self) -> None:
        """Keep the batches going until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wishes.run(), name="claims-and-finishes")
            tasks.create_task(self._messages.run(), name="messages")
            tasks.create_task(self.logs.run(), name="logs")
            tasks.create_task(self._courier.run(), name="courier")

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
        """Publish, and return once each is confirmed, or abandoned where its own queue refuses it."""
        await _until_available(lambda: self._messages.submit_all(messages), "tell")

    async def bury(self, letter: Outgoing) -> None:
        """Publish a dead letter; return once it is confirmed, or given up and in the log."""
        await asyncio.wait(self._courier.post([letter]))

    def announce(self, change: StatusChanged) -> None:
        """Announce a move, if that is possible at once."""
        self._announcements.add(change)

    def _announce_all(self, changes: list[StatusChanged]) -> None:
        self._publisher.announce([status_message(change, app_id="worker") for change in changes])

    async def _exchange(self, wishes: Sequence[Offer | Report]) -> list[Claim | Verdict | Finished]:
        answers = await self._record.exchange(wishes)
        claimed = [len(each.parameters_json) for each in answers if isinstance(each, Claim)]
        if claimed:
            self._parameters_bytes = max(*claimed, self._parameters_bytes * 7 // 8)
        return answers

    def _wish_bytes(self, wish: Offer | Report) -> int:
        """Return what it takes of a batch: a result, or parameters as large as others have lately been."""
        return len(wish.result_json or "") if isinstance(wish, Report) else self._parameters_bytes

    async def _publish(self, messages: Sequence[Outgoing]) -> list[None]:
        await self._reliable.publish(messages)
        return [None] * len(messages)

    async def _restore(self, returned: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Create the deleted delay queue or dead letters anew; the executor sees to its own queues."""
        with suppress(BrokerUnavailable):
            await self._publisher.restore()
        return returned


async def _until_available(ask: Callable[[], Awaitable[T]], name: str) -> T:
    pause_seconds = _PAUSE_FIRST_SECONDS
    while True:
        try:
            return await ask()
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.warning("record_unavailable", extra={"wish": name, "reason": str(error)})
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)
