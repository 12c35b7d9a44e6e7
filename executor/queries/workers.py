"""Reads one worker for its page: what it runs, where, what failed, and what it said at its start.

In: an id or a name, and rows of the statements in `executor/sql/workers.sql`. Out: a `WorkerPage`.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from turnstile.executor.queries.action_rows import parsed, row_fields
from turnstile.executor.queries.reader import Reader
from turnstile.executor.queries.schemas import (
    FAILURES_MAX,
    FAILURES_READ,
    RUNS_MAX,
    SERVED_MAX,
    ErrorDetail,
    FailedAttempt,
    PoolCapacity,
    ServedAction,
    WorkerDetail,
    WorkerPage,
    WorkerRun,
)
from turnstile.executor.queries.waiting_reason import stopping_of
from turnstile.executor.sql import query

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

_GONE_SEARCHED: Final = 2000
"""Workers that have stopped or were lost, among which a name is searched."""


async def read_worker(reader: Reader, name: str) -> WorkerPage | None:
    """Return the worker with this id, or else of this name; None: there is none.

    Of several workers of one name: one that is there before one that has gone, then the newest.
    """
    async with reader.snapshot() as connection:
        worker_id = await connection.fetchval(query("worker_id"), name, _GONE_SEARCHED)
        if worker_id is None:
            return None
        row = await connection.fetchrow(query("workers"), None, None, None, 1, worker_id)
        facts = await connection.fetchrow(query("worker_facts"), worker_id)
        served = await connection.fetch(query("worker_actions"), worker_id, SERVED_MAX)
        runs = await connection.fetch(query("worker_runs"), worker_id, RUNS_MAX)
        failures = await connection.fetch(query("worker_failures"), worker_id, FAILURES_READ, FAILURES_MAX)
    assert row is not None
    assert facts is not None
    return WorkerPage(
        **row_fields(WorkerDetail, row, but=set()),
        runs=[_run(each, reader.stop_enforced_seconds) for each in runs],
        pool_capacities=parsed(PoolCapacity, facts["pools"]),
        actions=[ServedAction(**each) for each in served] if facts["names_actions"] else None,
        failures=[_failure(each) for each in failures],
        start_notes=facts["start_notes"],
    )


def _run(row: "Row", enforced_seconds: float) -> WorkerRun:
    stopping = stopping_of(row, enforced_seconds)
    return WorkerRun(**row_fields(WorkerRun, row, but={"stopping"}), stopping=stopping)


def _failure(row: "Row") -> FailedAttempt:
    error = None
    if row["error_type"] is not None:
        error = ErrorDetail(type=row["error_type"], message=row["error_message"] or "")
    return FailedAttempt(**row_fields(FailedAttempt, row, but={"error"}), error=error)
