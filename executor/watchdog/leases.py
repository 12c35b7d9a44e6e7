"""What workers hold and should not: the work of lost ones goes back, overdue attempts are stopped (P6, P7).

A worker is told to stop an attempt before that attempt's work is offered again: it may only have lost the
database. Reclaims wait for a healthy database (`health`) and are judged as of a moment when it was. They do
not wait for the broker: while that is out of reach, living workers renew their leases in the database.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

import asyncpg

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.cancelling import stop_message, stop_of
from turnstile.executor.decisions import Grants, Move
from turnstile.executor.ends import read_ends
from turnstile.executor.hand_over import HandOver
from turnstile.executor.metrics import RECLAIMS, REPAIRS, STOPS_ENFORCED
from turnstile.executor.queue_manager import grants_of, moved
from turnstile.executor.watchdog.health import Clock, Health

logger = logging.getLogger(__name__)

_STOPS_ASKED_MAX: Final = 2
"""How often a worker is told to stop an overdue attempt before the attempt is ended without it."""


class Leases:
    """The sweeps over claimed slots."""

    def __init__(
        self,
        database: Database,
        hand_over: HandOver,
        *,
        lease_seconds: float,
        stop_timeout_seconds: float,
        event_result_max_bytes: int,
        rows_max: int,
    ) -> None:
        self._database = database
        self._hand_over = hand_over
        self._stop_timeout_seconds = stop_timeout_seconds
        self._event_result_max_bytes = event_result_max_bytes
        self._rows_max = rows_max
        self._health = Health(lease_seconds)
        self._clock = Clock()
        self._lease_seconds = lease_seconds
        self._returning_until = time.monotonic() + lease_seconds
        self._was_set_back = False
        self._looking = asyncio.Lock()
        self.look_seconds = self._health.look_seconds
        """How often `look` is wanted at least."""

    async def look(self) -> int:
        """See how the database is: nothing is healed by that."""
        # One at a time: an answer that is overtaken would look like a clock that was set back.
        async with self._looking:
            asked = time.monotonic()
            try:
                at = await self._database.fetchval("SELECT clock_timestamp()")
            except (Unavailable, asyncpg.PostgresError):
                self._health.lost()
                raise
            self._health.seen(at)
            self._judge_clock(self._clock.seen(asked, at, time.monotonic()))
        return 0

    def _judge_clock(self, jump_seconds: float) -> None:
        if jump_seconds == 0:
            return
        logger.warning("database_clock_jumped", extra={"seconds": round(jump_seconds, 3)})
        if jump_seconds < 0:
            self._was_set_back = True
            self._returning_until = time.monotonic() + self._lease_seconds

    async def return_to_present(self) -> int:
        """Bring back what lies in the future since the database's clock was set back.

        Looked for while a lease lasts, after that was noticed and after the start: nobody may have seen it.
        """
        if time.monotonic() > self._returning_until:
            return 0
        returned: int = await self._database.fetchval(
            "SELECT turnstile.return_to_present($1)", self._was_set_back
        )
        # Whoever finds some learns of it: the waits before retries are worth a look now.
        self._was_set_back = returned > 0 and not self._was_set_back
        return returned

    async def reclaim_lost(self) -> int:
        """Take back what lost workers held."""
        # An older look would do, and be late by its age.
        await self.look()
        as_of = self._health.well_for_a_lease()
        if as_of is None:
            return 0
        row = await self._database.fetchrow("SELECT * FROM turnstile.reclaim($1, $2)", self._rows_max, as_of)
        assert row is not None
        returned = [moved(item) for item in row["returned"] or ()]
        ended = [moved(item) for item in row["ended"] or ()]
        if not (returned or ended):
            return 0
        reached(CrashPoint.SWEPT)
        for move in (*returned, *ended):
            RECLAIMS.add(move.status)
        self._hand_over.announce_moves([*returned, *ended])
        grants = grants_of(row)
        self._hand_over.tell_later(
            self._tell_reclaimed(returned, ended, grants),
            count=len(returned) + len(ended) * 2 + len(grants.granted),
        )
        return len(returned) + len(ended)

    async def repeat_stops(self) -> int:
        """Tell lost workers to stop what was taken from them, where whoever took it died first."""
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.due_stops($1, $2)", self._stop_timeout_seconds, self._rows_max
        )
        if rows:
            REPAIRS.add("stop_repeated", count=len(rows))
            await self._tell_stops([(row["execution_id"], row["attempt"], row["worker_id"]) for row in rows])
        return len(rows)

    async def stop_overdue(self) -> int:
        """Have stopped what should have stopped by itself; end it where its worker does not obey."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.stop_overdue($1, $2, $3)",
            self._stop_timeout_seconds,
            _STOPS_ASKED_MAX,
            self._rows_max,
        )
        assert row is not None
        asked = [moved(item) for item in row["asked"] or ()]
        ended = [moved(item) for item in row["ended"] or ()]
        if not (asked or ended):
            return 0
        reached(CrashPoint.SWEPT)
        for move in ended:
            STOPS_ENFORCED.add(move.status)
            logger.warning(
                "stop_enforced",
                extra={
                    "execution_id": move.execution_id,
                    "attempt": move.attempt,
                    "worker_id": move.worker_id,
                    "status": str(move.status),
                },
            )
        self._hand_over.announce_moves(ended)
        self._hand_over.tell_later(self._tell_overdue(asked, ended), count=len(asked) + len(ended) * 2)
        return len(asked) + len(ended)

    async def _tell_reclaimed(self, returned: Sequence[Move], ended: Sequence[Move], grants: Grants) -> None:
        # In this order: whoever lost its lease may still run what is offered next.
        await self._tell_stops([(m.execution_id, m.attempt, m.worker_id or "") for m in (*returned, *ended)])
        await self._tell_ends(ended)
        await self._hand_over.offer(grants)

    async def _tell_overdue(self, asked: Sequence[Move], ended: Sequence[Move]) -> None:
        await self._hand_over.tell([stop_message(move) for move in (*asked, *ended)])
        await self._tell_ends(ended)

    async def _tell_stops(self, stops: Sequence[tuple[int, int, str]]) -> None:
        await self._hand_over.tell([stop_of(i, attempt, worker_id=worker) for i, attempt, worker in stops])
        await self._database.fetch(
            "SELECT turnstile.stops_told($1, $2)", [stop[0] for stop in stops], [stop[1] for stop in stops]
        )

    async def _tell_ends(self, ended: Sequence[Move]) -> None:
        if ended:
            ids = [move.execution_id for move in ended]
            await self._hand_over.tell(
                await read_ends(self._database, ids, result_bytes_max=self._event_result_max_bytes)
            )
