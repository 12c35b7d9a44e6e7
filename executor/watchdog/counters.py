"""Counters that are off: found in one snapshot, put right under the queue's lock (P7, P10).

They change only in the transaction that changes the rows they count, so drift means a fault: each case is
logged as an error and counted in `drift_found`.
"""

import logging
from typing import Final

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import QueueId
from turnstile.executor.hand_over import HandOver
from turnstile.executor.metrics import DRIFT_FOUND, DRIFT_REPAIRED
from turnstile.executor.queue_manager import grants_of

logger = logging.getLogger(__name__)

_QUEUES_MAX: Final = 1000
"""Queues recounted per tick: with a tick of a second, 60,000 within a minute."""


class Counters:
    """The sweep over the queues' counters."""

    def __init__(self, database: Database, hand_over: HandOver) -> None:
        self._database = database
        self._hand_over = hand_over
        self._looked_up_to = QueueId(0)
        self.drift_found = 0

    async def repair_counters(self) -> int:
        """Recount the next queues and put right what is off."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.drifted_queues($1, $2)", self._looked_up_to, _QUEUES_MAX
        )
        assert row is not None
        self._looked_up_to = row["next_id"]
        if not row["queue_ids"]:
            return 0
        DRIFT_FOUND.add(count=len(row["queue_ids"]))
        row = await self._database.fetchrow("SELECT * FROM turnstile.repair_queues($1)", row["queue_ids"])
        assert row is not None
        repaired = row["repaired"] or ()
        reached(CrashPoint.SWEPT)
        for queue in repaired:
            self.drift_found += 1
            DRIFT_REPAIRED.add()
            logger.error("counters_repaired", extra=dict(queue.items()))
        grants = grants_of(row)
        if grants.granted:
            self._hand_over.tell_later(self._hand_over.offer(grants), count=len(grants.granted))
        return len(repaired)
