"""Lets one executor sweep while the others stand by, and replaces it when its notices end (P7).

In: a notice after each complete round of sweeps, by NOTIFY of the database. Out: rounds. All executors
receive the notices in one order, their own too. The sender of the last one sweeps again before the interval
is over, any other once it is over. A notice reports work that is done, so there is no claim, and no stored
state that outlives its process. An executor that receives no notice sweeps, since sweeps can overlap.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final, NoReturn
from uuid import uuid4

from turnstile.executor.metrics import LAST_SWEEP

_PAUSE_INTERVALS: Final = 0.9
"""From the start of a round to the next one of the same executor. Its notice is then there in time, and an
executor that takes over after an interval without notices repairs as early as if it had always swept."""


class SweepTurns:
    """The rounds of one executor. Measures durations only, on its own monotonic clock."""

    number = 0
    """The current round; 0: none has begun."""

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = uuid4().hex
        """Names this process in its notices."""
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._stands_by_until = 0.0
        self._begun = asyncio.Condition()
        self._required: frozenset[str] = frozenset()
        self._reported: frozenset[str] = frozenset()
        self._awaited: set[str] = set()

    def expect(self, required: Collection[str], others: Collection[str]) -> None:
        """Name the sweeps that make a round complete, and the others that a notice of a round reports."""
        self._required = frozenset(required)
        self._reported = self._required | frozenset(others)

    @property
    def stands_by(self) -> bool:
        """Whether another executor sweeps."""
        return self._clock() < self._stands_by_until

    def received(self, name: str) -> None:
        """Take a notice."""
        if name == self.name:
            self._stands_by_until = 0.0
            return
        self._stands_by_until = self._clock() + self._interval_seconds
        for sweep in self._reported:
            LAST_SWEEP.set(time.time(), sweep)

    async def run(self) -> NoReturn:
        """Begin rounds, whenever it is this executor's turn, until cancelled."""
        while True:
            pause_seconds = self._stands_by_until - self._clock()
            if pause_seconds <= 0:
                await self.begin()
                pause_seconds = self._interval_seconds * _PAUSE_INTERVALS
            await asyncio.sleep(pause_seconds)

    async def begin(self) -> None:
        """Begin the next round."""
        async with self._begun:
            self.number += 1
            self._awaited = set(self._required)
            self._begun.notify_all()

    async def reach(self, number: int) -> int:
        """Wait until this round has begun; return the number of the current one."""
        async with self._begun:
            await self._begun.wait_for(lambda: self.number >= number)
        return self.number

    def succeeded(self, sweep: str, number: int) -> bool:
        """Note that a sweep of this round succeeded; return whether that completes the current round."""
        if number != self.number or sweep not in self._awaited:
            return False
        self._awaited.remove(sweep)
        return not self._awaited

    def failed(self, sweep: str) -> None:
        """Let the current round stay incomplete, so that the other executors sweep too."""
        self._awaited.add(f"{sweep} failed")
