"""Asks the reading queries and turns rows into shapes.

In: ids, filters, where a page starts. Out: shapes, and where the next page starts; a handful of readings at
a time.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from turnstile.common.database import Database
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.executor.reading import rows
from turnstile.executor.reading.estimate import Pace, may_be_estimated
from turnstile.executor.reading.estimate_line import SLOTS_MAX
from turnstile.executor.reading.execution_shapes import HOLDERS_MAX, ExecutionRecord, ExecutionShape
from turnstile.executor.reading.filters import ExecutionFilter
from turnstile.executor.reading.matches import Matches
from turnstile.executor.reading.shapes import (
    ActionChangeShape,
    ActionShape,
    LineShape,
    QueueStats,
    WorkerShape,
    WorkerState,
)
from turnstile.executor.reading.turns import ReadingTurns
from turnstile.executor.reading.waiting_reason import Facts, first_trouble
from turnstile.executor.sql import query

if TYPE_CHECKING:
    from turnstile.common.database import Connection

KEYS_MAX: Final = 100
"""Most concurrency keys in the figures of one action."""
_PAGE_BYTES_MAX: Final = 4_000_000
_LOOKED_AT_MAX: Final = 50_000
_GENERATIONS_MAX: Final = 100
_GRANTS_LOOKED_AT_MAX: Final = 500
_GRANTS_MIN: Final = 200
_GRANTS_PER_SLOT: Final = 3
_ID_MAX: Final = 2**63 - 1


class LineStart(NamedTuple):
    """A page of a line begins behind this ticket."""

    after_id: int = 0


class WorkerStart(NamedTuple):
    """A page of workers begins behind this one."""

    started_at: datetime
    id: str


class Reader:
    """Reads for people and programs. Safe to share between tasks."""

    def __init__(
        self,
        database: Database,
        turns: ReadingTurns,
        readiness: Callable[[], Mapping[str, str | None]] = dict,
        degraded: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`readiness` names the servers, each with None or why it cannot be reached; `degraded` the rest."""
        self._database = database
        self._readiness = readiness
        self._degraded = degraded
        self._turns = turns

    async def execution(self, execution_id: ExecutionId) -> ExecutionShape | None:
        """Return one execution with its place, its reason to wait and its attempts."""
        async with self._turns.one():
            row = await self._database.fetchrow(query("execution"), execution_id)
        if row is None:
            return None
        facts = rows.waiting_facts(row, first_trouble(self._readiness(), self._degraded(), row["pool"]))
        pace = await self._pace(execution_id, facts) if may_be_estimated(facts) else None
        return rows.execution_shape(row, facts, pace)

    async def executions(
        self, wanted: ExecutionFilter, *, before_id: int | None, limit: int
    ) -> tuple[list[ExecutionRecord], int | None]:
        """Return executions, newest first, and the id before which the next page starts.

        A page may be short, even empty, and yet not be the last: a filter is looked for, and documents are
        carried, within bounds.
        """
        async with self._snapshot() as connection:
            action_id = await _action_id(connection, wanted)
            if action_id is None and wanted.action_ref is not None:
                return [], None
            found = await connection.fetch(
                query("executions"),
                _ID_MAX if before_id is None else before_id,
                *wanted.conditions(action_id),
                limit,
                _PAGE_BYTES_MAX,
                _LOOKED_AT_MAX,
            )
        return [rows.execution_record(row) for row in found if row["id"] is not None], found[0]["next_before"]

    async def live_matches(self, wanted: ExecutionFilter, *, before_id: int | None, limit: int) -> Matches:
        """Return what has not ended and passes the filter, newest first; `next_id` leads to earlier ones."""
        async with self._snapshot() as connection:
            action_id = await _action_id(connection, wanted)
            if action_id is None and wanted.action_ref is not None:
                return Matches(action_is_known=False)
            found = await connection.fetch(
                query("live_matches"),
                _ID_MAX if before_id is None else before_id,
                *wanted.conditions(action_id),
                limit,
                _LOOKED_AT_MAX,
            )
        return rows.matches(found)

    async def ended_matches(
        self,
        wanted: ExecutionFilter,
        *,
        after_id: int,
        up_to_id: int | None,
        limit: int,
        not_made_under: str | None = None,
    ) -> Matches:
        """Return what has ended and passes the filter, oldest first; `next_id` leads to later ones.

        Without `up_to_id` the newest execution of this moment is the last one looked at. What a retry of many
        under the idempotency key `not_made_under` made is left out, and what was made of that.
        """
        async with self._snapshot() as connection:
            action_id = await _action_id(connection, wanted)
            if action_id is None and wanted.action_ref is not None:
                return Matches(action_is_known=False)
            if up_to_id is None:
                up_to_id = await connection.fetchval("SELECT coalesce(max(id), 0) FROM execution")
            found = await connection.fetch(
                query("ended_matches"),
                after_id,
                *wanted.conditions(action_id),
                limit,
                _LOOKED_AT_MAX,
                up_to_id,
                not_made_under,
                _GENERATIONS_MAX,
            )
        return replace(rows.matches(found), up_to_id=up_to_id)

    async def action(self, ref: str) -> ActionShape | None:
        """Return one action."""
        found = await self._actions(ref=ref, after_ref=None, limit=1)
        return found[0] if found else None

    async def actions(self, *, after_ref: str | None, limit: int) -> tuple[list[ActionShape], str | None]:
        """Return actions in the order of their names, and the name after which the next page starts."""
        found = await self._actions(ref=None, after_ref=after_ref, limit=limit + 1)
        return found[:limit], found[limit - 1].ref if len(found) > limit else None

    async def changes(
        self, ref: str, *, before_id: int | None, limit: int
    ) -> tuple[list[ActionChangeShape], int | None]:
        """Return what was done to an action, newest first, and the id before which the next page starts."""
        before = _ID_MAX if before_id is None else before_id
        async with self._turns.one():
            found = await self._database.fetch(query("action_changes"), ref, before, limit + 1)
        shapes = [rows.action_change(row) for row in found[:limit]]
        return shapes, shapes[-1].id if len(found) > limit else None

    async def queue_stats(self, ref: str) -> QueueStats | None:
        """Return how the queues of an action stand."""
        async with self._turns.one():
            row = await self._database.fetchrow(query("queue_stats"), ref, KEYS_MAX)
        return None if row is None else rows.queue_stats(row)

    async def line(
        self, ref: str, *, concurrency_key: str | None, start: LineStart, limit: int
    ) -> tuple[LineShape, LineStart | None]:
        """Return who waits, in order, behind whom, and where the next page starts."""
        async with self._snapshot() as connection:
            waiting = await connection.fetch(
                query("queue_line"), ref, concurrency_key, start.after_id, limit + 1
            )
            holders = await connection.fetch(query("queue_holders"), ref, concurrency_key, HOLDERS_MAX)
        shape = rows.line_shape(ref, waiting[:limit], holders)
        return shape, LineStart(shape.items[-1].id) if len(waiting) > limit else None

    async def workers(
        self, *, states: Sequence[WorkerState] | None, start: WorkerStart | None, limit: int
    ) -> tuple[list[WorkerShape], WorkerStart | None]:
        """Return workers, the newest first, and where the next page starts."""
        after = (None, None) if start is None else start
        async with self._turns.one():
            found = await self._database.fetch(query("workers"), states, *after, limit + 1, None)
        shapes = [rows.worker_shape(row) for row in found[:limit]]
        last = shapes[-1] if len(found) > limit else None
        return shapes, None if last is None else WorkerStart(last.started_at, last.id)

    async def worker(self, worker_id: str) -> WorkerShape | None:
        """Return one worker."""
        async with self._turns.one():
            row = await self._database.fetchrow(query("workers"), None, None, None, 1, worker_id)
        return None if row is None else rows.worker_shape(row)

    async def _actions(self, *, ref: str | None, after_ref: str | None, limit: int) -> list[ActionShape]:
        async with self._turns.one():
            found = await self._database.fetch(query("actions"), ref, after_ref, limit)
        return [rows.action_shape(row) for row in found]

    async def _pace(self, execution_id: ExecutionId, facts: Facts) -> Pace | None:
        # Of a wide queue most of the latest runs have not ended.
        wanted = max(_GRANTS_MIN, _GRANTS_PER_SLOT * (facts.max_concurrent or 0))
        async with self._snapshot() as connection:
            row = await connection.fetchrow(
                query("queue_pace"),
                execution_id,
                _GRANTS_LOOKED_AT_MAX,
                min(wanted, _GRANTS_LOOKED_AT_MAX),
                SLOTS_MAX,
            )
        return None if row is None else rows.pace(row)

    @asynccontextmanager
    async def _snapshot(self) -> "AsyncIterator[Connection]":
        """Lend a connection on which all statements see the same rows, each planned for its values."""
        async with self._turns.one(), self._database.transaction() as connection:
            await connection.execute(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;"
                "SET LOCAL plan_cache_mode = force_custom_plan"
            )
            yield connection


async def _action_id(connection: "Connection", wanted: ExecutionFilter) -> int | None:
    if wanted.action_ref is None:
        return None
    found: int | None = await connection.fetchval("SELECT id FROM action WHERE ref = $1", wanted.action_ref)
    return found
