"""Takes messages from the queue of a pool and turns each offer in them into an attempt.

A message carries one offer, or several where the flow is dense (a pack). It is acknowledged after the
attempts of all its offers have ended and their outcomes were committed (P5). Until then the broker counts
it, so unacknowledged means busy, and each offer goes to a worker that can run it. Four cases need more, so
that the broker never sends more than can be run:

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
- *Packs.* The broker counts messages, and offers need slots. So the bound is lower than the slots by what the
  packs hold beyond one offer each. It is corrected only where a fault lasts an instant: if offers have no
  slot, their messages go back and the bound is lowered to the messages that stay; if slots are free while the
  bound keeps messages away, it is raised. Flows without packs are never corrected.

A message goes back as a whole, to the front of the queue: order and content stay as they are, and a worker's
account needs no right to publish offers. Those of its offers that run here run on as after an early
acknowledgement. If it comes back, they are counted again, and those that have ended are left out; elsewhere
their claims are refused.

`worker.message_bound` decides how far the bound is below the slots, `common.broker.prefetch` enforces it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from turnstile.common.batcher import Gatherer
from turnstile.common.broker.consumer import Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Refusal
from turnstile.worker.attempt import Attempts, Disposition, offers_in
from turnstile.worker.message_bound import MessageBound
from turnstile.worker.protocol import Offer

logger = logging.getLogger(__name__)

_WAIT_SECONDS_MAX: Final = 1.0
"""How long an offer waits for a slot of other pools before it is returned to the queue."""
_INSTANT_SECONDS: Final = 0.05
"""How long a bound that does not fit the packs is kept; a change costs a few exchanges with the broker."""
_ENDED_KEPT: Final = 10_000


class Message:
    """One unsettled delivery, and those of its offers that have not ended here."""

    __slots__ = ("delivered_at", "delivery", "is_pack", "offers")

    def __init__(self, delivery: Delivery, *, is_pack: bool) -> None:
        self.delivery = delivery
        self.delivered_at = asyncio.get_running_loop().time()
        """By the event loop's clock."""
        self.is_pack = is_pack
        self.offers: list[TakenOffer] = []

    @property
    def waits(self) -> bool:
        """Whether one of its offers has no slot."""
        return not all(offer.has_slot for offer in self.offers)


class TakenOffer:
    """One offer delivered to this process; it waits for a slot, or holds one."""

    __slots__ = ("has_slot", "message", "offer", "task")

    offer: Offer | None
    """None: the message offers nothing readable."""
    message: Message | None
    """The message that it belongs to; None once that was settled."""
    task: asyncio.Task[None]

    def __init__(self, offer: Offer | None, message: Message) -> None:
        self.offer = offer
        self.message = message
        self.has_slot = False

    @property
    def counted(self) -> bool:
        """Whether the broker counts it: its message is unsettled and its channel is open."""
        return self.message is not None and self.message.delivery.live


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

    @property
    def free(self) -> int:
        """How many slots are not held."""
        return self.limit - len(self.holders)

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
        self._messages: dict[Message, None] = {}
        self._offers: dict[Offer, TakenOffer] = {}
        # Offers of packs that have ended here, the latest ones: a pack may come back.
        self._ended: dict[Offer, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_to_others = 0
        self._message_bound = MessageBound()
        self._packs = asyncio.Event()
        subscription.bound_by(self._bound)
        concurrency.watch(on_freed=self._slot_freed, on_recounted=subscription.refit)

    async def run(self) -> NoReturn:
        """Start an attempt for every offer until cancelled; started attempts continue."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._maintain_messages(), name="maintain-messages")
            tasks.create_task(self._balance_packs(), name="balance-packs")
            while True:
                for delivery in await self._subscription.next_batch(self._concurrency.limit):
                    self._take(delivery)

    async def pause(self) -> None:
        """Take no more messages, and return those with offers without a slot to the queue."""
        await self._subscription.pause()
        waiting = self._settle(message for message in self._messages if message.waits)
        self._subscription.reject(waiting, requeue=True)

    async def resume(self) -> None:
        """Take messages again."""
        await self._subscription.resume()

    async def drain(self) -> None:
        """Pause, and wait for the attempts that have started."""
        await self.pause()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _take(self, delivery: Delivery) -> None:
        try:
            offers = offers_in(delivery)
        except Refusal as refusal:
            self._begin(None, Message(delivery, is_pack=False), refusal)
            return
        message = Message(delivery, is_pack=len(offers) > 1)
        for offer in offers:
            taken = self._offers.get(offer)
            if taken is None:
                if not (message.is_pack and offer in self._ended):
                    self._begin(offer, message)
            elif not taken.counted:
                self._move(taken, message)
        if not message.offers:
            self._acknowledgements.add(delivery)
        if message.is_pack or self._message_bound.is_lowered:
            self._message_bound.note_message(len(offers))
            self._packs.set()

    def _begin(self, offer: Offer | None, message: Message, refusal: Refusal | None = None) -> None:
        taken = TakenOffer(offer, message)
        if offer is not None:
            self._offers[offer] = taken
        self._messages[message] = None
        message.offers.append(taken)
        taken.task = asyncio.create_task(self._attempt(taken, message, refusal), name="attempt")
        self._tasks.add(taken.task)
        taken.task.add_done_callback(self._tasks.discard)

    def _move(self, taken: TakenOffer, message: Message) -> None:
        """Let `message`, a copy, hold this offer from now on: the broker does not count the other one."""
        if taken.message is not None:
            self._leave(taken, taken.message)
        taken.message = message
        self._messages[message] = None
        message.offers.append(taken)
        self._concurrency.recounted()

    def _leave(self, taken: TakenOffer, message: Message) -> None:
        message.offers.remove(taken)
        if not message.offers:
            del self._messages[message]

    async def _attempt(self, taken: TakenOffer, first: Message, refusal: Refusal | None) -> None:
        offer, disposition = taken.offer, Disposition.REQUEUE
        try:
            await self._concurrency.acquire(taken)
            try:
                # If its channel died while it waited, it is redelivered, here or elsewhere.
                if taken.counted and not self._attempts.draining:
                    if offer is not None:
                        disposition = await self._attempts.run(offer, first.delivery)
                    elif refusal is not None:
                        disposition = await self._attempts.refuse(first.delivery, refusal)
            finally:
                self._concurrency.release(taken)
        finally:
            # No await from here on: a copy must not be held for an offer that has ended.
            if offer is not None and self._offers.get(offer) is taken:
                del self._offers[offer]
        if first.is_pack and offer is not None and disposition is Disposition.ACKNOWLEDGE:
            self._ended[offer] = None
            if len(self._ended) > _ENDED_KEPT:
                del self._ended[next(iter(self._ended))]
        if (message := taken.message) is not None:
            self._end(taken, message, disposition)

    def _end(self, taken: TakenOffer, message: Message, disposition: Disposition) -> None:
        self._leave(taken, message)
        if disposition is Disposition.REQUEUE:
            if message.offers:
                self._subscription.release(self._settle([message]), give_back=True)
            else:
                self._subscription.reject([message.delivery], requeue=True)
        elif not message.offers:
            self._acknowledgements.add(message.delivery)

    def _acknowledge(self, deliveries: list[Delivery]) -> None:
        self._subscription.ack(deliveries)
        reached(CrashPoint.WORKER_ACKNOWLEDGED)

    def _bound(self) -> int:
        """Return how many unsettled messages the broker may count for this pool."""
        return self._message_bound.of(self._slots())

    def _slots(self) -> int:
        """Return how many offers the broker may count for this pool."""
        if self._left_to_others:
            self._left_to_others = min(self._left_to_others, self._held_by_others())
        return max(0, self._concurrency.limit - self._concurrency.uncounted - self._left_to_others)

    def _held_by_others(self) -> int:
        others = self._concurrency.holders.difference(self._offers.values())
        return sum(offer.counted for offer in others)

    def _slot_freed(self) -> None:
        if self._left_to_others:
            self._subscription.refit()

    async def _maintain_messages(self) -> NoReturn:
        pause_seconds = min(_WAIT_SECONDS_MAX, self._acknowledge_after_seconds / 4)
        while True:
            await asyncio.sleep(pause_seconds)
            self._acknowledge_long_runs()
            self._return_late(_WAIT_SECONDS_MAX)

    def _acknowledge_long_runs(self) -> None:
        until = asyncio.get_running_loop().time() - self._acknowledge_after_seconds
        long_runs = [
            each
            for each in self._messages
            if each.delivered_at < until and each.delivery.live and not each.waits
        ]
        if long_runs:
            logger.info("acknowledged_early", extra={"offers": sum(len(each.offers) for each in long_runs)})
            self._subscription.release(self._settle(long_runs), give_back=False)

    def _return_late(self, seconds: float) -> bool:
        """Return messages with offers that have waited so long for a slot; tell whether there were any."""
        until = asyncio.get_running_loop().time() - seconds
        late = [each for each in self._messages if each.delivered_at <= until and each.waits]
        if not late:
            return False
        waiting = sum(not offer.has_slot for message in late for offer in message.offers)
        logger.info("given_back_late", extra={"offers": waiting})
        deliveries = self._settle(late)
        self._left_to_others = self._held_by_others()
        if self._packs.is_set():
            self._message_bound.lower(self._slots(), held=self._held(), free=self._concurrency.free)
        self._subscription.release(deliveries, give_back=True)
        return True

    def _settle(self, messages: Iterable[Message]) -> list[Delivery]:
        """Forget messages, and their offers without a slot; return their deliveries, to be settled.

        Their other offers run on, and the broker does not count them any more.
        """
        deliveries = []
        for message in list(messages):
            del self._messages[message]
            deliveries.append(message.delivery)
            for taken in message.offers:
                taken.message = None
                if not taken.has_slot:
                    if taken.offer is not None:
                        del self._offers[taken.offer]
                    taken.task.cancel()
        if deliveries:
            self._concurrency.recounted()
        return deliveries

    async def _balance_packs(self) -> NoReturn:
        """Correct the bound while there are packs, or while it is lower because there were packs."""
        while True:
            await self._packs.wait()
            while self._messages and self._unbalanced():
                await asyncio.sleep(_INSTANT_SECONDS)
                slots, held, free = self._slots(), self._held(), self._concurrency.free
                if not self._return_late(_INSTANT_SECONDS) and self._message_bound.raise_if_unused(
                    slots, held=held, free=free
                ):
                    self._subscription.refit()
            self._packs.clear()

    def _unbalanced(self) -> bool:
        return self._message_bound.is_lowered or any(message.is_pack for message in self._messages)

    def _held(self) -> int:
        return sum(message.delivery.live for message in self._messages)
