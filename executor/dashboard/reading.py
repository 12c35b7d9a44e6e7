"""Asks how all queues stand: a few short statements in one snapshot, on one connection.

In: since when. Out: a `Reading` for the board, and how the executions stand that somebody looks at. What
moved is found by `updated_at`, so a second's reading ships what a second changed. Next: `live`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.dashboard.board import QUEUES_MAX
from turnstile.executor.dashboard.lines import Line, QueueName, Reading, Workers
from turnstile.executor.sql import query

_OVERLAP: Final = timedelta(seconds=5)
"""A row is stamped before it is committed: so far back nothing is taken for seen."""
_PREPARE: Final = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL statement_timeout = '10s';
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How an execution stands."""

    id: int
    status: str
    attempt: int


async def read(
    database: Database, *, since: datetime | None, execution_ids: Collection[int]
) -> tuple[Reading, list[Standing]]:
    """Return what moved since an instant (None: everything) and how these executions stand.

    Raises Unavailable.
    """
    try:
        async with database.transaction() as connection:
            await connection.execute(_PREPARE)
            workers = await connection.fetchrow(query("dashboard_workers"))
            moved = await connection.fetch(
                query("dashboard_queues"), None if since is None else since - _OVERLAP, QUEUES_MAX + 1
            )
            slots = await connection.fetchrow(query("dashboard_slots"))
            deleted = 0 if since is not None else await connection.fetchval(query("dashboard_deleted"))
            executions = (
                await connection.fetch(query("dashboard_executions"), list(execution_ids))
                if execution_ids
                else []
            )
    except asyncpg.QueryCanceledError:
        raise Unavailable("database: the reading of all queues took too long") from None
    assert workers is not None
    assert slots is not None
    held = dict(zip(slots["queue_ids"], slots["held"], strict=True))
    reading = Reading(
        read_at=workers["read_at"],
        whole=since is None,
        truncated=len(moved) > QUEUES_MAX,
        lines=[_line(row, held) for row in moved[:QUEUES_MAX]],
        held=held,
        deleted=deleted,
        workers=Workers(
            live=workers["live"],
            draining=workers["draining"],
            overdue=workers["overdue"],
            places=workers["places"],
            pools=frozenset(workers["pools"]),
        ),
    )
    return reading, [Standing(**row) for row in executions]


def _line(row: asyncpg.Record, held: Mapping[int, int]) -> Line:
    return Line(
        name=QueueName(row["action_ref"], row["concurrency_key"]),
        queue_id=row["queue_id"],
        pool=row["pool"],
        max_concurrent=row["max_concurrent"],
        paused=row["paused"],
        depth=row["depth"],
        oldest_enqueued_at=row["oldest_enqueued_at"],
        total_enqueued=row["total_enqueued"],
        total_completed=row["total_completed"],
        active_count=held.get(row["queue_id"], 0),
    )
