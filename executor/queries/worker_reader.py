"""Reads workers: those that live, and for a while those that are gone; of one also its runs and failures.

In: ids and names, and where a page starts. Out: schemas, and where the next page starts. The rows say which
workers there are; the leader says whom it hears, and what runs. Without its answer the rows are all. That an
operator acknowledged a loss is written here: the leader changes no row of a worker that is gone.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import asyncpg

from turnstile.common.database import Database
from turnstile.common.json_limits import readable
from turnstile.executor.asking.asker import Asker
from turnstile.executor.callers import Caller
from turnstile.executor.queries.read_limiter import LimitedReader, ReadLimiter
from turnstile.executor.queries.rows import error_of, page_of, row_fields
from turnstile.executor.queries.schemas import (
    FAILURES_MAX,
    FAILURES_READ,
    NAMED_MAX,
    RUNS_MAX,
    SERVED_MAX,
    FailedAttempt,
    HeldExecution,
    PoolCapacity,
    ServedAction,
    WorkerDetail,
    WorkerPage,
    WorkerRun,
    WorkerState,
)
from turnstile.executor.queries.stopping import Run
from turnstile.executor.questions import protocol
from turnstile.executor.questions.protocol import PAGE_MAX, Gates, Unanswered, WorkerOf, Workers
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

_STATEMENTS: Final = statements("queries/workers.sql")
_GONE_SEARCHED: Final = 2000
"""Workers that have stopped or were lost, among which a name is searched."""
_POOLS_MAX: Final = 100
_NOTES_MAX: Final = 50
_NOTE_CHARS_MAX: Final = 500


class WorkerStart(NamedTuple):
    """A page of workers begins behind this one."""

    started_at: datetime
    id: str


class WorkerReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    def __init__(
        self, database: Database, limiter: ReadLimiter, asker: Asker, *, stop_timeout_seconds: float
    ) -> None:
        """`stop_timeout_seconds`: of `TURNSTILE_STOP_TIMEOUT`, for `Run.stopping`."""
        super().__init__(database, limiter)
        self._asker, self._stop_timeout_seconds = asker, stop_timeout_seconds

    async def workers(
        self,
        *,
        states: Sequence[WorkerState] | None,
        start: WorkerStart | None,
        limit: int,
        action_ref: str | None = None,
    ) -> tuple[list[WorkerDetail], WorkerStart | None]:
        """Return workers, the newest first, and where the next page starts.

        With `action_ref`: those that serve the action, which only the leader knows.
        """
        after = (None, None) if start is None else start
        known = _columns(await self._living(action_ref))
        async with self.snapshot() as connection:
            found = await connection.fetch(
                _STATEMENTS["workers"], states, *after, limit + 1, None, *known, action_ref, NAMED_MAX
            )
        return page_of(
            found, limit, lambda row: WorkerDetail(**row), lambda last: WorkerStart(last.started_at, last.id)
        )

    async def worker(self, worker_id: str) -> WorkerDetail | None:
        """Return one worker."""
        answer = await self._asker.ask(WorkerOf(worker_id=worker_id))
        row = await self._one(worker_id, answer)
        return None if row is None else WorkerDetail(**row)

    async def acknowledge(self, worker_id: str, by: Caller) -> None:
        """Note that the loss of a worker needs no more attention; nothing if it is not lost."""
        await self._database.fetch(_STATEMENTS["acknowledge"], *by, worker_id)

    async def worker_page(self, name: str) -> WorkerPage | None:
        """Return the worker with this id, or else of this name; None: there is none.

        Of several workers of one name: one that is there before one that has gone, then the newest.
        """
        found = await self._row(_STATEMENTS["worker_id"], name, _GONE_SEARCHED)
        if found is None:
            return None
        worker_id = str(found["worker_id"])
        answer = await self._asker.ask(WorkerOf(worker_id=worker_id))
        row = await self._one(worker_id, answer)
        facts = await self._row(_STATEMENTS["worker_facts"], worker_id)
        if row is None or facts is None:
            return None
        held = await self._rows(_STATEMENTS["worker_held"], worker_id, facts["held_ids"], RUNS_MAX)
        served = await self._rows(_STATEMENTS["worker_actions"], worker_id, SERVED_MAX)
        failures = await self._rows(
            _STATEMENTS["worker_failures"], worker_id, facts["held_ids"], FAILURES_READ, FAILURES_MAX
        )
        return WorkerPage(
            **row_fields(WorkerDetail, row, but=set()),
            runs=await self._runs(worker_id, answer, facts["stop_grace_seconds"]),
            held=[HeldExecution(**each) for each in held],
            pool_capacities=await self._pools(row["pools"][:_POOLS_MAX]),
            actions=[ServedAction(**each) for each in served] if facts["names_actions"] else None,
            failures=[_failure(each) for each in failures],
            start_notes=_notes(facts["start_notes"]),
        )

    async def _one(self, worker_id: str, answer: "_WorkerAnswer") -> "Row | None":
        living = None
        if not isinstance(answer, Unanswered):
            living = [] if answer.body is None else [answer.body.worker]
        async with self.snapshot() as connection:
            return await connection.fetchrow(
                _STATEMENTS["workers"], None, None, None, 1, worker_id, *_columns(living), None, NAMED_MAX
            )

    async def _living(self, action_ref: str | None) -> list[protocol.WorkerState] | None:
        """Return what the leader knows of all workers, or of an action's; None: no leader answers."""
        found: list[protocol.WorkerState] = []
        after_id: str | None = ""
        while after_id is not None:
            answer = await self._asker.ask(Workers(after_id=after_id, limit=PAGE_MAX, action_ref=action_ref))
            if isinstance(answer, Unanswered):
                return None
            found += answer.body.items
            after_id = answer.body.next_id
        return found

    async def _runs(
        self, worker_id: str, answer: "_WorkerAnswer", grace_seconds: float | None
    ) -> list[WorkerRun]:
        if isinstance(answer, Unanswered):
            rows = await self._rows(_STATEMENTS["running_by_rows"], worker_id, RUNS_MAX)
            ids = [row["id"] for row in rows]
        else:
            held = () if answer.body is None else answer.body.held
            ids = [each.id for each in held if each.started_at is not None]
        found = await self._rows(_STATEMENTS["worker_runs"], ids, RUNS_MAX)
        return [_run(row, grace_seconds, self._stop_timeout_seconds) for row in found]

    async def _pools(self, names: Sequence[str]) -> list[PoolCapacity]:
        answer = await self._asker.ask(Gates())
        if isinstance(answer, Unanswered):
            return []
        gauges = {each.name: each for each in answer.body.pools}
        return [_capacity(name, gauges) for name in names]


_WorkerAnswer: TypeAlias = "protocol.Answered[protocol.WorkerDetail | None] | Unanswered"


def _columns(living: Sequence[protocol.WorkerState] | None) -> tuple[Any, ...]:
    """Return what the leader knows as parameters of the statement `workers`."""
    known = living or ()
    return (
        [each.worker_id for each in known],
        [each.is_lost for each in known],
        [each.lease_left_seconds for each in known],
        [each.heard_seconds_ago for each in known],
        [each.running for each in known],
        living is not None,
    )


def _capacity(name: str, gauges: Mapping[str, protocol.PoolGauge]) -> PoolCapacity:
    gauge = gauges.get(name)
    if gauge is None:
        return PoolCapacity(pool=name, capacity=0, held=0, waiting_queues=0)
    return PoolCapacity(
        pool=name, capacity=gauge.capacity, held=gauge.held, waiting_queues=gauge.waiting_queues
    )


def _notes(text: str | None) -> list[str] | None:
    """Return what a worker logged before it registered: its account may have sent anything."""
    found = readable(text)
    if not isinstance(found, list):
        return None
    return [str(each)[:_NOTE_CHARS_MAX] for each in found[:_NOTES_MAX]]


def _run(row: "Row", grace_seconds: float | None, stop_timeout_seconds: float) -> WorkerRun:
    run = Run(
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        timeout_seconds=row["timeout_seconds"],
        cancel_requested_at=row["cancel_requested_at"],
        cancel_reason=row["cancel_reason"],
        stop_grace_seconds=grace_seconds,
        read_at=row["read_at"],
    )
    return WorkerRun(
        **row_fields(WorkerRun, row, but={"stopping"}), stopping=run.stopping(stop_timeout_seconds)
    )


def _failure(row: "Row") -> FailedAttempt:
    return FailedAttempt(**row_fields(FailedAttempt, row, but={"error"}), error=error_of(row))
