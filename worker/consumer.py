"""Takes offers from the queue of a pool and turns each into an attempt.

A delivery is acknowledged after its attempt has ended and its completion was published (P5). Until then the
broker counts it, so unacknowledged means busy, and each offer goes to a worker that can run it. Three cases
need more, so that the broker never sends more than can be run:

- *A long run* is acknowledged early, before the broker's acknowledgement timeout closes the channel of all
  its neighbours. From then on the lease protects it. The bound of the subscription is lowered first, so that
  no other offer replaces it until it has ended.
- *A run whose channel died* is redelivered by the broker. A copy that arrives here replaces the dead
  delivery: it is held until the run ends, and counted. Until it arrives, or where another worker got it
  (whose claim is refused), the bound is lower by that run.
- *Slots held by other pools.* Any pool may use all slots of the worker, so one pool's offers can arrive when
  another pool has filled it. An offer that got no slot within a second is returned to the queue; the pool
  then requests only what it runs and what is free, and for more when a slot becomes free. So a message
  is redelivered about once per freed slot, never in a loop.

`common.broker.prefetch` enforces the bound.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from turnstile.common.batcher import Gatherer
from turnstile.common.broker.consumer import Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.worker.attempt import Attempts, Disposition

logger = logging.getLogger(__name__)

_WAIT_SECONDS_MAX: Final = 1.0
"""How long an offer waits for a slot before it is returned to the queue."""


class TakenOffer:
    """One offer delivered to this process; it waits for a slot, or holds one."""

    __slots__ = ("delivered_at", "delivery", "has_slot", "task")

    delivery: Delivery | None
    """The unsettled delivery; None once it is settled."""
    delivered_at: float
    """When it arrived, by the event loop's clock."""
    task: asyncio.Task[None]

    def __init__(self, delivery: Delivery) -> None:
        self.has_slot = False
        self.replace(delivery)

    def replace(self, delivery: Delivery) -> None:
        """Let `delivery` be the delivery of this offer from now on."""
        self.delivery = delivery
        self.delivered_at = asyncio.get_running_loop().time()

    @property
    def counted(self) -> bool:
        """Whether the broker counts it: its delivery is unsettled and its channel is open."""
        return self.delivery is not None and self.delivery.live


class Concurrency:
    """The slots of one worker, shared by its pools and given in the order of the requests."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.holders: set[TakenOffer] = set()
        self._free = asyncio.Semaphore(limit)
        self._on_freed: list[Callable[[], None]] = []
        self._on_recounted: list[Callable[[], None]] = []

    @property
    def uncounted(self) -> int:
        """How many slots are held by offers that the broker does not count."""
        return sum(not offer.counted for offer in self.holders)

    def watch(self, *, on_freed: Callable[[], None], on_recounted: Callable[[], None]) -> None:
        """Call `on_freed` when a slot becomes free, `on_recounted` when `uncounted` may have changed."""
        self._on_freed.append(on_freed)
        self._on_recounted.append(on_recounted)

    def recounted(self) -> None:
        """Notify all pools that `uncounted` may have changed."""
        for notify in self._on_recounted:
            notify()

    async def acquire(self, offer: TakenOffer) -> None:
        """Wait for a slot; from then on `offer` holds it, until `release`."""
        await self._free.acquire()
        offer.has_slot = True
        self.holders.add(offer)

    def release(self, offer: TakenOffer) -> None:
        """Give the slot of `offer` to the next one that waits."""
        self.holders.discard(offer)
        for notify in self._on_freed:
            notify()
        if not offer.counted:
            self.recounted()
        self._free.release()


class PoolConsumer:
    """Consumes one pool's queue."""

    def __init__(
        self,
        subscription: Subscription,
        attempts: Attempts,
        concurrency: Concurrency,
        *,
        acknowledge_after_seconds: float,
    ) -> None:
        self._subscription = subscription
        self._attempts = attempts
        self._concurrency = concurrency
        self._acknowledge_after_seconds = acknowledge_after_seconds
        self._acknowledgements: Gatherer[Delivery] = Gatherer(self._acknowledge)
        # By body: copies of an offer are equal to the byte.
        self._offers: dict[bytes, TakenOffer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_to_others = 0
        subscription.bound_by(self._bound)
        concurrency.watch(on_freed=self._slot_freed, on_recounted=subscription.refit)

    async def run(self) -> NoReturn:
        """Start an attempt for every delivery until cancelled; started attempts continue."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._maintain_offers(), name="maintain-offers")
            while True:
                for delivery in await self._subscription.next_batch(self._concurrency.limit):
                    self._take(delivery)

    async def pause(self) -> None:
        """Take no more offers, and return those without a slot to the queue."""
        await self._subscription.pause()
        self._subscription.reject(self._withdraw(self._waiting_since(0.0)), requeue=True)

    async def resume(self) -> None:
        """Take offers again."""
        await self._subscription.resume()

    async def drain(self) -> None:
        """Pause, and wait for the attempts that have started."""
        await self.pause()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _take(self, delivery: Delivery) -> None:
        offer = self._offers.get(delivery.body)
        if offer is None:
            offer = self._offers[delivery.body] = TakenOffer(delivery)
            offer.task = asyncio.create_task(self._attempt(offer, delivery), name="attempt")
            self._tasks.add(offer.task)
            offer.task.add_done_callback(self._tasks.discard)
        elif offer.counted:
            self._acknowledgements.add(delivery)
        else:
            offer.replace(delivery)
            self._concurrency.recounted()

    async def _attempt(self, offer: TakenOffer, delivery: Delivery) -> None:
        disposition = Disposition.REQUEUE
        try:
            await self._concurrency.acquire(offer)
            try:
                # If its channel died while it waited, it is redelivered, here or elsewhere.
                if offer.counted and not self._attempts.draining:
                    disposition = await self._attempts.run(delivery)
            finally:
                self._concurrency.release(offer)
        finally:
            # No await from here on: a copy must not be held for an offer that has ended.
            if self._offers.get(delivery.body) is offer:
                del self._offers[delivery.body]
        if offer.delivery is None:
            return
        if disposition is Disposition.ACKNOWLEDGE:
            self._acknowledgements.add(offer.delivery)
        else:
            self._subscription.reject([offer.delivery], requeue=True)

    def _acknowledge(self, deliveries: list[Delivery]) -> None:
        self._subscription.ack(deliveries)
        reached(CrashPoint.WORKER_ACKNOWLEDGED)

    def _bound(self) -> int:
        """Return how many unsettled deliveries the broker may count for this pool."""
        if self._left_to_others:
            self._left_to_others = min(self._left_to_others, self._held_by_others())
        return max(0, self._concurrency.limit - self._concurrency.uncounted - self._left_to_others)

    def _held_by_others(self) -> int:
        others = self._concurrency.holders.difference(self._offers.values())
        return sum(offer.counted for offer in others)

    def _slot_freed(self) -> None:
        if self._left_to_others:
            self._subscription.refit()

    async def _maintain_offers(self) -> NoReturn:
        pause_seconds = min(_WAIT_SECONDS_MAX, self._acknowledge_after_seconds / 4)
        while True:
            await asyncio.sleep(pause_seconds)
            self._acknowledge_long_runs()
            self._return_late_offers()

    def _acknowledge_long_runs(self) -> None:
        since = asyncio.get_running_loop().time() - self._acknowledge_after_seconds
        long_runs: list[Delivery] = []
        for offer in self._offers.values():
            if offer.has_slot and offer.counted and offer.delivered_at < since:
                assert offer.delivery is not None
                long_runs.append(offer.delivery)
                offer.delivery = None
        if long_runs:
            logger.info("acknowledged_early", extra={"offers": len(long_runs)})
            self._subscription.release(long_runs, give_back=False)
            self._concurrency.recounted()

    def _return_late_offers(self) -> None:
        late = self._withdraw(self._waiting_since(_WAIT_SECONDS_MAX))
        if late:
            logger.info("given_back_late", extra={"offers": len(late)})
            self._left_to_others = self._held_by_others()
            self._subscription.release(late, give_back=True)

    def _waiting_since(self, seconds: float) -> list[TakenOffer]:
        until = asyncio.get_running_loop().time() - seconds
        offers = self._offers.values()
        return [each for each in offers if not each.has_slot and each.delivered_at <= until]

    def _withdraw(self, waiting: list[TakenOffer]) -> list[Delivery]:
        """Forget offers that have no slot yet; return their deliveries."""
        for offer in waiting:
            assert offer.delivery is not None, "only an offer with a slot is acknowledged early"
            del self._offers[offer.delivery.body]
            offer.task.cancel()
        return [offer.delivery for offer in waiting if offer.delivery is not None]
