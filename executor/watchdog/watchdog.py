"""Goes round: each sweep in a task of its own, once per tick, for as long as the service lives.

In: nothing but time. Out: what should have happened and did not (P7). Every replica runs all sweeps. One that
fails holds up no other. Those that move something wait for no broker; those that only tell again do, and move
nothing.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, TypeAlias

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.cancelling import Canceller
from turnstile.executor.early_cancels import EarlyCancels
from turnstile.executor.hand_over import HandOver
from turnstile.executor.metrics import LAST_SWEEP, SWEEP_FAILURES, SWEEP_ROWS
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.retention.pruner import Pruner
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.watchdog.counters import Counters
from turnstile.executor.watchdog.leases import Leases
from turnstile.executor.watchdog.lines import Lines
from turnstile.executor.watchdog.links import Links
from turnstile.executor.watchdog.pools import Pools

logger = logging.getLogger(__name__)

SWEEP_ROWS_MAX: Final = 1000
"""Rows per sweep and tick: healing is paced, so that it does not become a load of its own."""
_PRUNING_TICKS: Final = 10
"""Nothing waits for what is pruned."""

Sweep: TypeAlias = Callable[[], Awaitable[int]]


class Watchdog:
    """Looks every `watchdog_interval`."""

    def __init__(
        self,
        settings: ExecutorSettings,
        database: Database,
        queue_manager: QueueManager,
        hand_over: HandOver,
    ) -> None:
        self._interval_seconds = settings.watchdog_interval
        self.lines = Lines(database, queue_manager, hand_over, rows_max=SWEEP_ROWS_MAX)
        self.links = Links(
            database,
            hand_over,
            dispatch_timeout_seconds=settings.dispatch_timeout,
            settle_timeout_seconds=settings.settle_timeout,
            event_result_max_bytes=settings.event_result_max_bytes,
            rows_max=SWEEP_ROWS_MAX,
        )
        self.leases = Leases(
            database,
            hand_over,
            lease_seconds=settings.lease_duration,
            stop_timeout_seconds=settings.stop_timeout,
            event_result_max_bytes=settings.event_result_max_bytes,
            rows_max=SWEEP_ROWS_MAX,
        )
        self.early_cancels = EarlyCancels(
            database, Canceller(queue_manager), hand_over, rows_max=SWEEP_ROWS_MAX
        )
        self.counters = Counters(database, hand_over)
        self.pools = Pools(database, hand_over)
        self.pruner = Pruner(database, settings)

    async def run(self) -> NoReturn:
        """Sweep until cancelled."""
        # What is due in thousands must not take a tick for each thousand: these go on while they are full.
        eager: tuple[Sweep, ...] = (
            self.lines.grant_idle_slots,
            self.lines.roll_out_limits,
            self.lines.wake_due,
            self.lines.expire_due,
        )
        paced: tuple[Sweep, ...] = (
            self.links.repeat_offers,
            self.links.repeat_completions,
            self.leases.reclaim_lost,
            self.leases.return_to_present,
            self.leases.repeat_stops,
            self.leases.stop_overdue,
            self.early_cancels.cancel_early,
            self.counters.repair_counters,
            self.pools.prepare_pools,
        )
        async with asyncio.TaskGroup() as tasks:
            for sweep in eager:
                tasks.create_task(self._repeat(sweep, full_at=SWEEP_ROWS_MAX), name=sweep.__name__)
            for sweep in paced:
                tasks.create_task(self._repeat(sweep), name=sweep.__name__)
            look_seconds = min(self._interval_seconds, self.leases.look_seconds)
            for sweep in (
                self.pruner.prune_executions,
                self.pruner.delete_idle_queues,
                self.pruner.prune_workers,
                self.pruner.prune_changes,
                self.pruner.clean_webhooks,
                self.pruner.prune_dead_letters,
            ):
                pause_seconds = self._interval_seconds * _PRUNING_TICKS
                tasks.create_task(self._repeat(sweep, every_seconds=pause_seconds), name=sweep.__name__)
            tasks.create_task(self._repeat(self.leases.look, every_seconds=look_seconds), name="look")
        raise AssertionError("sweeps end by cancellation only")

    async def _repeat(
        self, sweep: Sweep, *, full_at: float = math.inf, every_seconds: float | None = None
    ) -> NoReturn:
        pause_seconds = self._interval_seconds if every_seconds is None else every_seconds
        while True:
            if await self._attempt(sweep) < full_at:
                await asyncio.sleep(pause_seconds)

    async def _attempt(self, sweep: Sweep) -> int:
        name = sweep.__name__
        try:
            healed = await sweep()
        except Unavailable as error:
            SWEEP_FAILURES.add(name)
            logger.debug("sweep_postponed", extra={"sweep": name, "reason": str(error)})
        except asyncpg.PostgresError as error:
            SWEEP_FAILURES.add(name)
            logger.error("sweep_failed", extra={"sweep": name, "reason": str(error)})
        except Exception:
            # Whatever one row holds, the other sweeps and the service go on (P7).
            SWEEP_FAILURES.add(name)
            logger.exception("sweep_broken", extra={"sweep": name})
        else:
            LAST_SWEEP.set(time.time(), name)
            if healed:
                SWEEP_ROWS.add(name, count=healed)
                logger.info("sweep_healed", extra={"sweep": name, "rows": healed})
            return healed
        return 0
