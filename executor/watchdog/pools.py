"""The pools: their queues are there before anybody waits for them (P7); what nobody could run is known (P9).

A worker whose user of the broker may create nothing waits for the queue of its pool; the first offer would
create it, and a worker that is not ready may hold up everything before that. In: the live workers' pools and
the actions that they have code for.
"""

from typing import Final

from turnstile.common.action_definition import is_pool
from turnstile.common.database import Database
from turnstile.executor.hand_over import HandOver
from turnstile.executor.sql import query

_ACTIONS_ANEW_TICKS: Final = 10
"""Actions that came or changed, while the workers are the same, are seen after so many ticks."""


class Pools:
    """The sweep over the pools of live workers."""

    def __init__(self, database: Database, hand_over: HandOver) -> None:
        self._database = database
        self._hand_over = hand_over
        self._workers: list[str] | None = None
        self._ticks = 0

    async def prepare_pools(self) -> int:
        """Create the queues that this executor has not created yet; nothing is healed by that."""
        rows = await self._database.fetch(query("pools"))
        await self._find_unserved()
        # A worker's account writes its pools itself: whatever it wrote, the others get theirs.
        await self._hand_over.prepare(row["pool"] for row in rows if is_pool(row["pool"]))
        return 0

    async def _find_unserved(self) -> None:
        """Note which actions nobody could run; a note that is out of date costs a look, and no offer."""
        workers = await self._database.fetchval(query("live_workers"))
        self._ticks += 1
        if workers != self._workers or self._ticks >= _ACTIONS_ANEW_TICKS:
            rows = await self._database.fetch(query("unserved"))
            self._hand_over.unserved_refs = frozenset(row["ref"] for row in rows)
            self._workers, self._ticks = workers, 0
