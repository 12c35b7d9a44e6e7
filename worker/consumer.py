"""Takes offers from the queue of a pool and turns each into an attempt.

The prefetch bounds what this worker holds unacknowledged to what it can run, so the broker balances exactly:
unacknowledged means busy. A delivery is acknowledged after its attempt has ended and was told.
"""

import asyncio
import logging
from typing import NoReturn

from common.batcher import Gatherer
from common.broker.delivery import Delivery
from common.broker.subscription import Subscription
from common.crash_points import CrashPoint, reached
from worker.attempt import Attempts, Disposition

logger = logging.getLogger(__name__)


class PoolConsumer:
    """Consumes one pool's queue; `places` is shared by all pools of the process."""

    def __init__(
        self, subscription: Subscription, attempts: Attempts, places: asyncio.Semaphore, *, batch_max: int
    ) -> None:
        self._subscription = subscription
        self._attempts = attempts
        self._places = places
        self._batch_max = batch_max
        self._acknowledgements: Gatherer[Delivery] = Gatherer(self._acknowledge)
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> NoReturn:
        """Start an attempt for every delivery until cancelled; attempts under way go on."""
        while True:
            for delivery in await self._subscription.next_batch(self._batch_max):
                task = asyncio.create_task(self._attempt(delivery), name="attempt")
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def drain(self) -> None:
        """Take no more, and wait for what is under way."""
        await self._subscription.pause()
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _attempt(self, delivery: Delivery) -> None:
        async with self._places:
            if not delivery.live:
                return  # the broker delivers it again, here or elsewhere
            if self._attempts.draining:
                self._subscription.reject([delivery], requeue=True)
                return
            disposition = await self._attempts.run(delivery)
        if disposition is Disposition.ACKNOWLEDGE:
            self._acknowledgements.add(delivery)
        else:
            self._subscription.reject([delivery], requeue=True)

    def _acknowledge(self, deliveries: list[Delivery]) -> None:
        self._subscription.ack(deliveries)
        reached(CrashPoint.WORKER_ACKNOWLEDGED)
