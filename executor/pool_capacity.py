"""Keeps the capacities of the pools at what their workers are, and grants what that allows (P7, P9).

In: time. It reads the live workers a few times per second, and more often while the pools complete something
and capacity is scarce, because the lead of a pool follows that pace. Out: grants. The replica that sweeps
runs it. The watchdog recounts everything at each of its ticks.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, NoReturn

import asyncpg

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.protocol import ExecutorProtocol
from turnstile.executor.slot_grants import QueueManager
from turnstile.executor.sweep_turns import SweepTurns

logger = logging.getLogger(__name__)

LEAD_SECONDS: Final = 0.2
"""The lead of a pool is what its workers complete in this time; docs/benchmarks.md compares other values."""
_REFRESH_SECONDS: Final = 0.25
"""Pause between two refreshes."""
_BUSY_SECONDS: Final = 0.1
"""The same while the pace decides: something completes, and more than half of the capacity is in use."""
_PACE_SECONDS: Final = 1.0
"""The pace is the mean over this time: runs that end together do not look like short ones."""


class PoolCount(NamedTuple):
    """What is known about a pool after a count."""

    total: int
    """Worker slots that it took back so far. Grants would not do: a larger lead makes more of them."""
    lead: int
    is_scarce: bool
    """Something waits for capacity, or more than half of the capacity is in use."""


class Leads:
    """Measures how fast each pool completes executions, and decides about its lead."""

    def __init__(self, lead_seconds: float = LEAD_SECONDS) -> None:
        self._lead_seconds = lead_seconds
        self._seen: dict[int, deque[tuple[float, int]]] = {}

    def note(self, counts: Mapping[int, PoolCount], at: float) -> dict[int, int]:
        """Return the pools whose lead has to change, with the new one."""
        changes = {}
        for pool_id, count in counts.items():
            seen = self._seen.setdefault(pool_id, deque())
            seen.append((at, count.total))
            while len(seen) > 2 and at - seen[1][0] >= _PACE_SECONDS:
                seen.popleft()
            seconds = max(at - seen[0][0], _BUSY_SECONDS)
            lead = math.ceil((count.total - seen[0][1]) / seconds * self._lead_seconds)
            # A change is a write: small ones are left out. A short measurement does not prove a slow pace.
            is_slow = lead * 2 < count.lead and seconds >= _PACE_SECONDS
            if lead > count.lead * 1.2 or is_slow:
                changes[pool_id] = lead
        for pool_id in self._seen.keys() - counts.keys():
            del self._seen[pool_id]
        return changes


def pause_seconds(before: Mapping[int, PoolCount], now: Mapping[int, PoolCount]) -> float:
    """Return the pause after a refresh, from what it and the one before it found."""
    is_busy = any(count.is_scarce and count != before.get(pool_id) for pool_id, count in now.items())
    return _BUSY_SECONDS if is_busy else _REFRESH_SECONDS


class PoolRefresher:
    """Reads the live workers a few times per second, and sets capacities and leads."""

    def __init__(self, queue_manager: QueueManager, dispatcher: Dispatcher, turns: SweepTurns) -> None:
        self._protocol: ExecutorProtocol = queue_manager.protocol
        self._queue_manager = queue_manager
        self._dispatcher = dispatcher
        self._turns = turns
        self._workers: str | None = None
        self._leads = Leads()
        self._changes: Mapping[int, int] = {}
        self._counts: Mapping[int, PoolCount] = {}

    async def run(self) -> NoReturn:
        """Keep the capacities until cancelled."""
        while True:
            before = self._counts
            if not self._turns.stands_by:
                await self.refresh()
            await asyncio.sleep(pause_seconds(before, self._counts))

    async def refresh(self) -> None:
        """Set the leads, and count the workers if others are live than at the last refresh."""
        try:
            refreshed = await self._protocol.refresh_pools(self._workers, self._changes)
            self._workers = refreshed.workers
            self._counts = {pool_id: PoolCount(*count) for pool_id, count in refreshed.totals.items()}
            self._changes = self._leads.note(self._counts, time.monotonic())
            if refreshed.more_queue_ids:
                reached(CrashPoint.POOLS_REFRESHED)
                await self._dispatcher.dispatch(await self._queue_manager.grant(refreshed.more_queue_ids))
        except (Unavailable, asyncpg.PostgresError) as error:
            logger.debug("pool_refresh_postponed", extra={"reason": str(error)})
