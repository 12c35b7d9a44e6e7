"""How far the submitters of a stage have come, and when what comes next is due.

In: the rate that was asked for. Out: who waits until when. All instants of a stage's plan, those of its
requests and of its faults, count from the first request.
"""

import asyncio

import numpy as np
from numpy.typing import NDArray


class Progression:
    """How far all submitters together have come; each counts in what is its own to count."""

    def __init__(self, executions: int, rate: float | None) -> None:
        self._executions = executions
        self._rate = rate
        self._began: float | None = None
        self.begun = asyncio.Event()
        self.confirmed = 0
        self.rejected = 0
        self._answered = 0
        self.all_answered = asyncio.Event()

    def begin(self) -> None:
        """Note that the first request is about to leave; only the first time counts."""
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
            self.begun.set()

    def answer(self, *, rejected: bool) -> None:
        """Count a request's first answer."""
        self._answered += 1
        self.rejected += rejected
        if self._answered == self._executions:
            self.all_answered.set()

    async def wait_until(self, seconds: float) -> None:
        """Wait until so long after the first request."""
        await self.begun.wait()
        assert self._began is not None
        await asyncio.sleep(self._began + seconds - asyncio.get_running_loop().time())

    async def due(self, numbers: NDArray[np.int64]) -> int:
        """Wait until the first of these is due; return how many are."""
        if self._rate is None:
            return len(numbers)
        await self.wait_until(int(numbers[0]) / self._rate)
        assert self._began is not None
        now = (asyncio.get_running_loop().time() - self._began) * self._rate
        return max(1, int(np.searchsorted(numbers, now, side="right")))
