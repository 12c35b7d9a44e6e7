"""Reads workers; of one also what it runs, what failed, and what it said at its start; never writes.

In: ids and names, and where a page starts. Out: schemas, and where the next page starts.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import asyncpg

from turnstile.common.database import Database
from turnstile.executor.queries.action_rows import error_of, page_of, parsed, row_fields
from turnstile.executor.queries.read_limiter import LimitedReader, ReadLimiter
from turnstile.executor.queries.schemas import (
    FAILURES_MAX,
    FAILURES_READ,
    RUNS_MAX,
    SERVED_MAX,
    FailedAttempt,
    PoolCapacity,
    ServedAction,
    WorkerDetail,
    WorkerPage,
    WorkerRun,
    WorkerState,
)
from turnstile.executor.queries.waiting_reason import stopping_of
from turnstile.executor.sql import query

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

_GONE_SEARCHED: Final = 2000
"""Workers that have stopped or were lost, among which a name is searched."""


class WorkerStart(NamedTuple):
    """A page of workers begins behind this one."""

    started_at: datetime
    id: str


class WorkerReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    def __init__(self, database: Database, limiter: ReadLimiter, *, stop_enforced_seconds: float) -> None:
        """`stop_enforced_seconds`: after them the executor ends an attempt that its worker did not stop."""
        super().__init__(database, limiter)
        self._stop_enforced_seconds = stop_enforced_seconds

    async def workers(
        self, *, states: Sequence[WorkerState] | None, start: WorkerStart | None, limit: int
    ) -> tuple[list[WorkerDetail], WorkerStart | None]:
        """Return workers, the newest first, and where the next page starts."""
        after = (None, None) if start is None else start
        async with self.snapshot() as connection:
            found = await connection.fetch(query("workers"), states, *after, limit + 1, None)
        return page_of(
            found, limit, lambda row: WorkerDetail(**row), lambda last: WorkerStart(last.started_at, last.id)
        )

    async def worker(self, worker_id: str) -> WorkerDetail | None:
        """Return one worker."""
        row = await self._live_row(query("workers"), None, None, None, 1, worker_id)
        return None if row is None else WorkerDetail(**row)

    async def worker_page(self, name: str) -> WorkerPage | None:
        """Return the worker with this id, or else of this name; None: there is none.

        Of several workers of one name: one that is there before one that has gone, then the newest.
        """
        async with self.snapshot() as connection:
            worker_id = await connection.fetchval(query("worker_id"), name, _GONE_SEARCHED)
            if worker_id is None:
                return None
            row = await connection.fetchrow(query("workers"), None, None, None, 1, worker_id)
            facts = await connection.fetchrow(query("worker_facts"), worker_id)
            served = await connection.fetch(query("worker_actions"), worker_id, SERVED_MAX)
            runs = await connection.fetch(query("worker_runs"), worker_id, RUNS_MAX)
            failures = await connection.fetch(
                query("worker_failures"), worker_id, FAILURES_READ, FAILURES_MAX
            )
        assert row is not None
        assert facts is not None
        return WorkerPage(
            **row_fields(WorkerDetail, row, but=set()),
            runs=[_run(each, self._stop_enforced_seconds) for each in runs],
            pool_capacities=parsed(PoolCapacity, facts["pools"]),
            actions=[ServedAction(**each) for each in served] if facts["names_actions"] else None,
            failures=[_failure(each) for each in failures],
            start_notes=facts["start_notes"],
        )


def _run(row: "Row", enforced_seconds: float) -> WorkerRun:
    stopping = stopping_of(row, enforced_seconds)
    return WorkerRun(**row_fields(WorkerRun, row, but={"stopping"}), stopping=stopping)


def _failure(row: "Row") -> FailedAttempt:
    return FailedAttempt(**row_fields(FailedAttempt, row, but={"error"}), error=error_of(row))
