"""Reads resources: their definitions, who uses, waits for and holds them; never writes.

In: names, and where a page starts. Out: schemas, and where the next page starts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from turnstile.executor.queries.action_rows import order_of, page_of, parsed, rate_of, row_fields
from turnstile.executor.queries.read_limiter import LimitedReader
from turnstile.executor.queries.schemas import (
    HOLDERS_MAX,
    USERS_MAX,
    ResourceHolder,
    ResourceQueuePage,
    ResourceUser,
    StoredResource,
    WaitingForUnits,
)
from turnstile.executor.sql import query

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record


class ResourceReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    async def resource(self, name: str) -> StoredResource | None:
        """Return one resource."""
        row = await self._row(query("resource"), name, USERS_MAX)
        return None if row is None else _resource(row)

    async def resources(
        self, *, after_name: str | None, limit: int
    ) -> tuple[list[StoredResource], str | None]:
        """Return resources in the order of their names, and the name after which the next page starts."""
        found = await self._rows(query("resources"), after_name or "", limit + 1, USERS_MAX)
        return page_of(found, limit, _resource, lambda resource: resource.name)

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
