"""What the parts of a scenario in progress share: its requests, its clock, and when requests are due.

The clock is monotonic; an offset, taken once per scenario, converts it to wall time. So differences are
exact even when the wall clock is set, and the traces of actions on this host have the same scale.
"""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.recording import NEVER, Table
from turnstile.stress.scenario import Scenario

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_OFFSET_SAMPLES: Final = 5


def _offset_ns() -> int:
    """Take the offset from the least disturbed of several samples."""
    samples = []
    for _ in range(_OFFSET_SAMPLES):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        samples.append((after - before, wall - (before + after) // 2))
    return min(samples)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Instants of this host, in nanoseconds since 1970."""

    offset_ns: int = field(default_factory=_offset_ns)

    def now(self) -> int:
        """Return the current instant."""
        return time.monotonic_ns() + self.offset_ns


def instant(text: str | None) -> int:
    """Read an RFC 3339 instant as nanoseconds since 1970; None: NEVER."""
    if text is None:
        return NEVER
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND * 1000


class Pacing:
    """When requests and faults are due, and the progress of all submitters together.

    All planned instants count from the first request.
    """

    def __init__(self, executions: int, rate: float | None) -> None:
        self._executions = executions
        self._rate = rate
        self._began: float | None = None
        self._begun = asyncio.Event()
        self.confirmed = 0
        self.rejected = 0
        self._answered = 0
        self.all_answered = asyncio.Event()

    def begin(self) -> None:
        """Note the first request; later calls have no effect."""
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
            self._begun.set()

    def answer(self, *, rejected: bool) -> None:
        """Count the first reply to a request."""
        self._answered += 1
        self.rejected += rejected
        if self._answered == self._executions:
            self.all_answered.set()

    async def wait_until(self, seconds: float) -> None:
        """Wait until so many seconds after the first request."""
        await self._begun.wait()
        assert self._began is not None
        await asyncio.sleep(self._began + seconds - asyncio.get_running_loop().time())

    async def due(self, numbers: NDArray[np.int64]) -> int:
        """Wait until the first of these requests is due; return how many are."""
        if self._rate is None:
            return len(numbers)
        await self.wait_until(int(numbers[0]) / self._rate)
        assert self._began is not None
        now = (asyncio.get_running_loop().time() - self._began) * self._rate
        return max(1, int(np.searchsorted(numbers, now, side="right")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRun:
    """A scenario in progress."""

    scenario: Scenario
    token: str
    """Identifies its executions among others."""
    amqp_url: str
    orders: Table
    """Its requests: submitters and replies fill in what happened to them."""
    pacing: Pacing
    clock: Clock = field(default_factory=Clock)
