"""Heals what a lost message or a dead process left behind; never the normal path (P7, P8).

Each tick asks the live tables a handful of bounded questions, in `common/sql/60_watchdog.sql`, and repeats
what should have happened: an offer, a completion, a grant, a wake-up, an expiry, a reclaim. Every replica
runs it; the statements skip rows that another one is working on. One failing sweep does not stop the others.
After its start and after an outage it waits one whole healthy lease before it reclaims anything: by then
every worker that lives has renewed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import asyncpg

from common.database import Database
from common.domain.errors import Unavailable
from common.messages import Error
from executor.cancelling import end_message, stop_message
from executor.decisions import Grants
from executor.ends import read_ends
from executor.hand_over import HandOver
from executor.queue_manager import QueueManager, grant_of, grants_of, moved

logger = logging.getLogger(__name__)

SWEEP_ROWS_MAX: Final = 1000
"""Rows per sweep and tick: healing is paced, so that it does not become a load of its own."""


class Watchdog:
    """Looks every `interval_seconds`."""

    def __init__(
        self,
        database: Database,
        queue_manager: QueueManager,
        hand_over: HandOver,
        *,
        interval_seconds: float,
        dispatch_timeout_seconds: float,
        settle_timeout_seconds: float,
        lease_seconds: float,
        event_result_max_bytes: int,
    ) -> None:
        self._database = database
        self._queue_manager = queue_manager
        self._hand_over = hand_over
        self._interval_seconds = interval_seconds
        self._dispatch_timeout_seconds = dispatch_timeout_seconds
        self._settle_timeout_seconds = settle_timeout_seconds
        self._lease_seconds = lease_seconds
        self._event_result_max_bytes = event_result_max_bytes
        self._healthy_since = time.monotonic()

    async def run(self) -> NoReturn:
        """Sweep until cancelled."""
        sweeps: tuple[Callable[[], Awaitable[int]], ...] = (
            self.grant_idle_slots,
            self.wake_due,
            self.expire_due,
            self.repeat_offers,
            self.repeat_completions,
            self.reclaim_lost,
        )
        while True:
            for sweep in sweeps:
                await self._attempt(sweep)
            await asyncio.sleep(self._interval_seconds)

    async def _attempt(self, sweep: Callable[[], Awaitable[int]]) -> None:
        try:
            healed = await sweep()
        except Unavailable as error:
            self._healthy_since = time.monotonic()
            logger.debug("sweep_postponed", extra={"sweep": sweep.__name__, "reason": str(error)})
        except asyncpg.PostgresError as error:
            logger.error("sweep_failed", extra={"sweep": sweep.__name__, "reason": str(error)})
        else:
            if healed:
                logger.info("sweep_healed", extra={"sweep": sweep.__name__, "rows": healed})

    async def grant_idle_slots(self) -> int:
        """Grant where a free slot stands beside a waiting execution."""
        rows = await self._database.fetch("SELECT * FROM turnstile.idle_queues($1)", SWEEP_ROWS_MAX)
        if not rows:
            return 0
        grants = await self._queue_manager.grant([row[0] for row in rows])
        await self._hand_over.offer(grants)
        return len(grants.granted)

    async def wake_due(self) -> int:
        """Let what is due take its place in line."""
        row = await self._database.fetchrow("SELECT * FROM turnstile.wake_due($1)", SWEEP_ROWS_MAX)
        assert row is not None
        woken = [moved(item) for item in row["woken"] or ()]
        self._hand_over.announce_moves(woken)
        # Also where none woke: the same call may have granted to those that waited.
        await self._hand_over.offer(grants_of(row))
        return len(woken)

    async def expire_due(self) -> int:
        """End what did not start in time, and tell it."""
        rows = await self._database.fetch("SELECT * FROM turnstile.expire_due($1)", SWEEP_ROWS_MAX)
        moves = [moved(row) for row in rows]
        self._hand_over.announce_moves(moves)
        error = Error(type="Expired", message="did not start within its time to live")
        await self._hand_over.tell([end_message(move, error) for move in moves])
        return len(moves)

    async def reclaim_lost(self) -> int:
        """Take back what lost workers held.

        Each is told to stop before its work is offered again: it may only have lost the database.
        """
        if time.monotonic() - self._healthy_since < self._lease_seconds:
            return 0
        row = await self._database.fetchrow("SELECT * FROM turnstile.reclaim($1)", SWEEP_ROWS_MAX)
        assert row is not None
        returned = [moved(item) for item in row["returned"] or ()]
        ended = [moved(item) for item in row["ended"] or ()]
        if not (returned or ended):
            return 0
        self._hand_over.announce_moves([*returned, *ended])
        await self._hand_over.tell([stop_message(move) for move in (*returned, *ended)])
        ids = [move.execution_id for move in ended]
        await self._hand_over.tell(
            await read_ends(self._database, ids, result_bytes_max=self._event_result_max_bytes)
        )
        await self._hand_over.offer(grants_of(row))
        return len(returned) + len(ended)

    async def repeat_offers(self) -> int:
        """Offer again what was granted and not claimed."""
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.due_offers($1, $2)", self._dispatch_timeout_seconds, SWEEP_ROWS_MAX
        )
        await self._hand_over.offer(Grants(granted=[grant_of(row) for row in rows]))
        return len(rows)

    async def repeat_completions(self) -> int:
        """Tell again what ended and was not settled."""
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.due_completions($1, $2)", self._settle_timeout_seconds, SWEEP_ROWS_MAX
        )
        if not rows:
            return 0
        ids = [row[0] for row in rows]
        await self._hand_over.tell(
            await read_ends(self._database, ids, result_bytes_max=self._event_result_max_bytes)
        )
        return len(rows)
