"""The pools: their queues are there before anybody waits for them (P7).

A worker whose user of the broker may create nothing waits for the queue of its pool; the first offer would
create it, and a worker that is not ready may hold up everything before that. In: the live workers' pools.
"""

from common.action_definition import is_pool
from common.database import Database
from executor.hand_over import HandOver
from executor.sql import query


class Pools:
    """The sweep over the pools of live workers."""

    def __init__(self, database: Database, hand_over: HandOver) -> None:
        self._database = database
        self._hand_over = hand_over

    async def prepare_pools(self) -> int:
        """Create the queues that this executor has not created yet; nothing is healed by that."""
        rows = await self._database.fetch(query("pools"))
        # A worker's account writes its pools itself: whatever it wrote, the others get theirs.
        await self._hand_over.prepare(row["pool"] for row in rows if is_pool(row["pool"]))
        return 0
