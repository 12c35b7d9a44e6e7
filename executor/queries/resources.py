"""Reads resources, who waits for and holds them, and the settings of single keys; never writes.

In: names, and where a page starts. Out: schemas, and where the next page starts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from turnstile.executor.queries.action_rows import order_of, parsed, rate_of, row_fields
from turnstile.executor.queries.read_limiter import LimitedReader
from turnstile.executor.queries.schemas import (
    HOLDERS_MAX,
    USERS_MAX,
    ResourceHolder,
    ResourceQueuePage,
    ResourceUser,
    StoredKey,
    StoredResource,
    WaitingForUnits,
)
from turnstile.executor.sql import query

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record


class ResourceReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    async def keys(
        self, ref: str, *, after_key: str | None, limit: int
    ) -> tuple[list[StoredKey], str | None]:
        """Return the keys of an action that have settings, in order, and after which the next page starts."""
        found = await self._rows(query("action_keys"), ref, after_key or "", limit + 1)
        shown = [StoredKey(**row) for row in found[:limit]]
        return shown, shown[-1].concurrency_key if len(found) > limit else None

    async def key(self, ref: str, key: str) -> StoredKey | None:
        """Return the settings of one key of an action, if it has any."""
        row = await self._row(query("action_key"), ref, key)
        return None if row is None else StoredKey(**row)

    async def resource(self, name: str) -> StoredResource | None:
        """Return one resource."""
        row = await self._row(query("resource"), name, USERS_MAX)
        return None if row is None else _resource(row)

    async def resources(
        self, *, after_name: str | None, limit: int
    ) -> tuple[list[StoredResource], str | None]:
        """Return resources in the order of their names, and the name after which the next page starts."""
        found = await self._rows(query("resources"), after_name or "", limit + 1, USERS_MAX)
        shown = [_resource(row) for row in found[:limit]]
        return shown, shown[-1].name if len(found) > limit else None

    async def queue(self, name: str, *, offset: int, limit: int) -> ResourceQueuePage | None:
        """Return a resource with its holders and what waits for it, behind `offset` positions.

        None: there is no such resource. `next_cursor` is left to the caller.
        """
        async with self.snapshot() as connection:
            state = await connection.fetchrow(query("resource_queue"), name, HOLDERS_MAX)
            if state is None:
                return None
            waiting = await connection.fetch(query("resource_waiting"), name, offset, limit)
        return _queue_page(state, waiting)


def _resource(row: "Row") -> StoredResource:
    used_by = parsed(ResourceUser, row["used_by"])
    capacity = row["capacity"]
    return StoredResource(
        **row_fields(StoredResource, row, but={"order", "rate", "used_by", "warnings"}),
        order=order_of(row),
        rate=rate_of(row),
        used_by=used_by,
        warnings=[
            f"{user.action_ref} takes {user.units} units, the capacity is {capacity}: its executions wait"
            for user in used_by
            if capacity is not None and user.units > capacity
        ],
    )


def _queue_page(state: "Row", waiting: "Sequence[Row]") -> ResourceQueuePage:
    capacity = state["capacity"]
    return ResourceQueuePage(
        resource=state["name"],
        capacity=capacity,
        paused=state["paused"],
        order=order_of(state),
        held=state["held"],
        held_waiting=state["held_waiting"],
        free=None if capacity is None else max(capacity - state["held"], 0),
        waiting=state["depth"],
        items=[WaitingForUnits(**row) for row in waiting],
        holders=parsed(ResourceHolder, state["holders"]),
        next_cursor=None,
    )
