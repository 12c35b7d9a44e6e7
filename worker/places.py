"""The places of one worker: as many attempts as it may run at once, whichever pool they came from.

In: offers taken from the pools' queues. Out: a place for each in turn, and who holds one for what the broker
counts and what it does not. Next: `worker.consumer`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from turnstile.common.broker.delivery import Delivery


class TakenOffer:
    """One offer that this process has taken and not ended; it waits for a place, or holds one."""

    __slots__ = ("delivered_at", "delivery", "has_place", "task")

    delivery: Delivery | None
    """What stands for it at the broker; None once that is settled."""
    delivered_at: float
    """When that came, by the event loop's clock."""
    task: asyncio.Task[None]

    def __init__(self, delivery: Delivery) -> None:
        self.has_place = False
        self.hold(delivery)

    def hold(self, delivery: Delivery) -> None:
        """Let `delivery` stand for this offer from now on."""
        self.delivery = delivery
        self.delivered_at = asyncio.get_running_loop().time()

    @property
    def counted(self) -> bool:
        """Whether the broker counts it: its delivery was not settled, and did not die with its channel."""
        return self.delivery is not None and self.delivery.live


class Places:
    """A place for each of `count` attempts at once, given in the order of asking."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.holders: set[TakenOffer] = set()
        self._free = asyncio.Semaphore(count)
        self._on_freed: list[Callable[[], None]] = []
        self._on_recounted: list[Callable[[], None]] = []

    @property
    def uncounted(self) -> int:
        """How many are held without the broker's counting it."""
        return sum(not offer.counted for offer in self.holders)

    def watch(self, *, on_freed: Callable[[], None], on_recounted: Callable[[], None]) -> None:
        """Have one called when a place is free again, the other when `uncounted` may have changed."""
        self._on_freed.append(on_freed)
        self._on_recounted.append(on_recounted)

    def recounted(self) -> None:
        """Tell all pools that the broker counts more or fewer of those that hold a place."""
        for tell in self._on_recounted:
            tell()

    @asynccontextmanager
    async def held_by(self, offer: TakenOffer) -> AsyncIterator[None]:
        """Hold a place, once there is one."""
        async with self._free:
            offer.has_place = True
            self.holders.add(offer)
            try:
                yield
            finally:
                self.holders.discard(offer)
                for tell in self._on_freed:
                    tell()
                if not offer.counted:
                    self.recounted()
