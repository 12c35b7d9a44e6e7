"""Takes offers from the queue of a pool and turns each into an attempt.

A delivery is acknowledged after its attempt has ended and was told (P5). Till then the broker counts it, so
unacknowledged means busy, and each offer goes to a worker that can run it. Three things the broker does not
count by itself, and what is done so that it never sends more than can be run:

- *A long run* is acknowledged early, before the broker's acknowledgement timeout closes the channel with all
  its neighbours. From then on the lease protects it. The bound of the subscription is lowered first, so that
  nothing is sent in its place until it has ended.
- *A run whose channel died* is offered again by the broker. A copy that comes here takes the place of the
  dead delivery: held until the run ends, and counted. Until it comes, or where another worker got it (whose
  claim is refused), the bound is lower by that run.
- *The places that other pools hold.* Any pool may use all places, so one pool's offers can meet a worker that
  another has filled. An offer that got no place within a second is given back, for a worker that has one; the
  pool then asks only for what it runs and what is free, and for more when a place becomes free. So a message
  comes back about once per freed place, never in a loop.

Next: `worker.attempt`; `worker.places` counts; `common.broker.credits` keeps to the bound.
"""

import asyncio
import logging
from typing import Final, NoReturn

from turnstile.common.batcher import Gatherer
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.subscription import Subscription
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.worker.attempt import Attempts, Disposition
from turnstile.worker.places import Places, TakenOffer

logger = logging.getLogger(__name__)

_WAIT_SECONDS_MAX: Final = 1.0
"""How long an offer waits for a place before it is given back."""


class PoolConsumer:
    """Consumes one pool's queue; `places` is shared by all pools of the process."""

    def __init__(
        self,
        subscription: Subscription,
        attempts: Attempts,
        places: Places,
        *,
        batch_max: int,
        acknowledge_after_seconds: float,
    ) -> None:
        self._subscription = subscription
        self._attempts = attempts
        self._places = places
        self._batch_max = batch_max
        self._acknowledge_after_seconds = acknowledge_after_seconds
        self._acknowledgements: Gatherer[Delivery] = Gatherer(self._acknowledge)
        # By body: copies of an offer are alike to the byte.
        self._offers: dict[bytes, TakenOffer] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._left_to_others = 0
        subscription.bound_by(self._bound)
        places.watch(on_freed=self._ask_for_more, on_recounted=subscription.refit)

    async def run(self) -> NoReturn:
        """Start an attempt for every delivery until cancelled; attempts under way go on."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_after_offers(), name="look-after-offers")
            while True:
                for delivery in await self._subscription.next_batch(self._batch_max):
                    self._take(delivery)

    async def stand_back(self) -> None:
        """Take no more, and give back what has no place yet."""
        await self._subscription.pause()
        self._subscription.reject(self._withdraw(self._waiting_since(0.0)), requeue=True)

    async def take_again(self) -> None:
        """Take offers again."""
        await self._subscription.resume()

    async def drain(self) -> None:
        """Take no more, give back what has not begun, and wait for what is under way."""
        await self.stand_back()
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _take(self, delivery: Delivery) -> None:
        offer = self._offers.get(delivery.body)
        if offer is None:
            offer = self._offers[delivery.body] = TakenOffer(delivery)
            offer.task = asyncio.create_task(self._attempt(offer, delivery), name="attempt")
            self._under_way.add(offer.task)
            offer.task.add_done_callback(self._under_way.discard)
        elif offer.counted:
            self._acknowledgements.add(delivery)
        else:
            offer.hold(delivery)
            self._places.recounted()

    async def _attempt(self, offer: TakenOffer, delivery: Delivery) -> None:
        try:
            async with self._places.held_by(offer):
                disposition = await self._run(offer, delivery)
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

    async def _run(self, offer: TakenOffer, delivery: Delivery) -> Disposition:
        # One that died while it waited is delivered again, here or elsewhere.
        if self._attempts.draining or not offer.counted:
            return Disposition.GIVE_BACK
        return await self._attempts.run(delivery)

    def _acknowledge(self, deliveries: list[Delivery]) -> None:
        self._subscription.ack(deliveries)
        reached(CrashPoint.WORKER_ACKNOWLEDGED)

    def _bound(self) -> int:
        """Return how many unsettled deliveries the broker may count for this pool."""
        if self._left_to_others:
            self._left_to_others = min(self._left_to_others, self._held_by_others())
        return max(0, self._places.count - self._places.uncounted - self._left_to_others)

    def _held_by_others(self) -> int:
        others = self._places.holders.difference(self._offers.values())
        return sum(offer.counted for offer in others)

    def _ask_for_more(self) -> None:
        if self._left_to_others:
            self._subscription.refit()

    async def _look_after_offers(self) -> NoReturn:
        pause_seconds = min(_WAIT_SECONDS_MAX, self._acknowledge_after_seconds / 4)
        while True:
            await asyncio.sleep(pause_seconds)
            self._acknowledge_long_runs()
            self._give_back_late()

    def _acknowledge_long_runs(self) -> None:
        since = asyncio.get_running_loop().time() - self._acknowledge_after_seconds
        long_runs: list[Delivery] = []
        for offer in self._offers.values():
            if offer.has_place and offer.counted and offer.delivered_at < since:
                assert offer.delivery is not None
                long_runs.append(offer.delivery)
                offer.delivery = None
        if long_runs:
            logger.info("acknowledged_early", extra={"offers": len(long_runs)})
            self._subscription.release(long_runs, give_back=False)
            self._places.recounted()

    def _give_back_late(self) -> None:
        late = self._withdraw(self._waiting_since(_WAIT_SECONDS_MAX))
        if late:
            logger.info("given_back_late", extra={"offers": len(late)})
            self._left_to_others = self._held_by_others()
            self._subscription.release(late, give_back=True)

    def _waiting_since(self, seconds: float) -> list[TakenOffer]:
        until = asyncio.get_running_loop().time() - seconds
        offers = self._offers.values()
        return [each for each in offers if not each.has_place and each.delivered_at <= until]

    def _withdraw(self, waiting: list[TakenOffer]) -> list[Delivery]:
        """Forget offers that have no place yet; returns the deliveries that stood for them."""
        for offer in waiting:
            assert offer.delivery is not None, "only what holds a place is acknowledged early"
            del self._offers[offer.delivery.body]
            offer.task.cancel()
        return [offer.delivery for offer in waiting if offer.delivery is not None]
