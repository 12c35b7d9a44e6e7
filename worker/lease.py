"""What this worker knows of its lease, and that it is lost once it is lost (P6).

In: renewals (`worker.lease_thread`), answers of the broker (`worker.cancels`). Out: what may be done at this
moment, as `worker.fence` decides, for any thread; once, in the event loop, a call that all must be stopped.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from turnstile.worker.clock import clock
from turnstile.worker.fence import Evidence, Standing, Terms

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.25
"""Longest wait between two looks at the clock: waiting is counted on one that stands still in a sleep."""


class Lease:
    """One worker id's lease; make it in the event loop that runs the attempts."""

    def __init__(
        self, terms: Terms, *, on_lost: Callable[[], None], hold_until: Callable[[float | None], None]
    ) -> None:
        """`on_lost` is called in the event loop, at most once.

        `hold_until` is told, from any thread, when the guardian is to kill what runs.
        """
        self.terms = terms
        self._on_lost = on_lost
        self._hold_until = hold_until
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._renewed_at: float | None = None
        self._reached_at: float | None = None
        self._news = asyncio.Event()
        self._all_stopped = threading.Event()
        self.lost_at: float | None = None
        """When it was found to be over; for good."""
        self.given_up = False
        """Whether the database said so: this worker's work is taken back already."""

    @property
    def evidence(self) -> Evidence:
        """What is known at this moment."""
        return Evidence(renewed_at=self._renewed_at, reached_at=self._reached_at)

    @property
    def lost(self) -> bool:
        """Whether it was found to be over."""
        return self.lost_at is not None

    def standing(self) -> Standing:
        """Judge now. The first to see that the lease is over makes it so."""
        if self.lost_at is None:
            standing = self.terms.standing(self.evidence, now=clock())
            if standing is not Standing.OVER:
                return standing
            self.lose("neither the database nor the broker was reached in time")
        return Standing.OVER

    def renewed(self, asked_at: float) -> None:
        """Note that the database did what it was asked at this instant of the clock."""
        with self._guard:
            if self.lost:
                return
            self._renewed_at = asked_at
        self._hold_until(self.terms.killed_from_outside_at(self.evidence))
        self._loop.call_soon_threadsafe(self._news.set)

    def reached_broker(self, asked_at: float) -> None:
        """Note that the broker, asked at this instant of the clock, would have delivered a word to stop."""
        with self._guard:
            if self.lost:
                return
            self._reached_at = asked_at
        self._hold_until(self.terms.killed_from_outside_at(self.evidence))

    def lose(self, reason: str, *, given_up: bool = False) -> None:
        """Give it up; what is learned later changes nothing."""
        with self._guard:
            if self.lost:
                return
            self.given_up = given_up
            self.lost_at = clock()
        self._loop.call_soon_threadsafe(self._tell_lost)
        logger.error("lease_lost", extra={"reason": reason})

    def _tell_lost(self) -> None:
        self._news.set()
        self._on_lost()

    async def certain(self) -> bool:
        """Wait until something may be started; False once nothing may: the lease is lost."""
        while (standing := self.standing()) is Standing.IN_DOUBT:
            await self.next_renewal()
        return standing is Standing.CERTAIN

    async def doubted(self) -> None:
        """Wait until nothing may be started any more; before the first renewal that is not yet said."""
        while True:
            spare_seconds = self.terms.certain_until(self.evidence) - clock()
            if self.evidence.renewed_at is None:
                await self.next_renewal()
            elif spare_seconds > 0:
                await asyncio.sleep(min(spare_seconds, _LOOK_SECONDS))
            else:
                return

    async def next_renewal(self) -> bool:
        """Wait for a renewal that is yet to come; False once there will be none: the lease is lost."""
        if not self.lost:
            self._news.clear()
            await self._news.wait()
        return not self.lost

    def seconds_to_doubt(self) -> float:
        """Return how long the broker need not be asked; nothing or less while a renewal is late."""
        return self.terms.asks_broker_from(self.evidence) - clock()

    def all_stopped(self) -> None:
        """Say that nothing runs any more."""
        self._all_stopped.set()

    @property
    def is_all_stopped(self) -> bool:
        """Whether somebody said so; for any thread."""
        return self._all_stopped.is_set()
