"""Reads pools: their settings and states, who waits for and holds their worker slots; never writes.

In: names, and where a page starts. Out: schemas, and where the next page starts; facts for `waiting_reason`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from turnstile.common.json_limits import readable
from turnstile.executor.queries.action_rows import order_of, page_of, parsed, row_fields
from turnstile.executor.queries.read_limiter import LimitedReader
from turnstile.executor.queries.schemas import (
    HOLDERS_MAX,
    USERS_MAX,
    PoolAction,
    PoolHolder,
    PoolQueuePage,
    StoredPool,
    WaitingForWorker,
)
from turnstile.executor.sql import query

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record


class PoolReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    async def pool(self, name: str) -> StoredPool | None:
        """Return one pool."""
        found = await self._stored(name, "", 1)
        return _pool(found[0]) if found else None

    async def pools(self, *, after_name: str | None, limit: int) -> tuple[list[StoredPool], str | None]:
        """Return pools in the order of their names, and the name after which the next page starts."""
        found = await self._stored(None, after_name or "", limit + 1)
        return page_of(found, limit, _pool, lambda pool: pool.name)

    async def queue(self, name: str, *, offset: int, limit: int) -> PoolQueuePage | None:
        """Return a pool with its holders and what waits for it, behind `offset` positions.

        None: there is no such pool. `next_cursor` is left to the caller.
        """
        async with self.snapshot() as connection:
            state = await connection.fetchrow(query("pool_queue"), name, HOLDERS_MAX)
            if state is None:
                return None
            waiting = await connection.fetch(query("pool_waiting"), name, offset, limit)
        return _queue_page(state, waiting)

    async def _stored(self, name: str | None, after_name: str, rows: int) -> "Sequence[Row]":
        async with self.snapshot() as connection:
            return await connection.fetch(query("stored_pools"), name, after_name, rows, USERS_MAX)


def _pool(row: "Row") -> StoredPool:
    return StoredPool(
        **row_fields(StoredPool, row, but={"order", "weights", "action_weights", "warnings"}),
        order=order_of(row),
        weights=readable(row["weights"]),
        action_weights=parsed(PoolAction, row["listed"]),
        warnings=[f"{ref} has a weight, and is not in this pool" for ref in row["strangers"]],
    )


def _queue_page(state: "Row", waiting: "Sequence[Row]") -> PoolQueuePage:
    return PoolQueuePage(
        pool=state["name"],
        capacity=state["capacity"],
        paused=state["paused"],
        order=order_of(state),
        held=state["held"],
        waiting=state["waiting"],
        items=[WaitingForWorker(**row) for row in waiting],
        holders=parsed(PoolHolder, state["holders"]),
        next_cursor=None,
    )
