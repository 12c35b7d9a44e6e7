"""Reads what the dashboard shows: live numbers from the leader, outcomes and dead letters from the rows.

In: questions to the leader, which names the queues that changed, and statements on the history. Out: values
of `state` and `failures`. Without a leader the rows say how long the queues are; whether workers live, and
what was enqueued or ended since, nothing says then. Raises Unavailable where the database does not answer.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import asyncpg
from pydantic_core import from_json

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.asking.asker import Asker
from turnstile.executor.dashboard.events import WatchedExecution
from turnstile.executor.dashboard.failures import (
    EXAMINED_MAX,
    GROUPS_MAX,
    WINDOW,
    ActionFailures,
    FailureGroup,
    Failures,
    LastFailure,
    Start,
)
from turnstile.executor.dashboard.state import (
    DEAD_LETTERS_MAX,
    LOST_SECONDS,
    QUEUES_MAX,
    WEBHOOKS_MAX,
    ActionTotals,
    Attention,
    Queue,
    QueueName,
    Snapshot,
    Workers,
)
from turnstile.executor.questions.protocol import (
    PAGE_MAX,
    ActionRow,
    Answered,
    Changes,
    ChangesPage,
    QueueRow,
    Stops,
    StopsOfActions,
    WorkerState,
)
from turnstile.executor.questions.protocol import Workers as AskWorkers
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    from turnstile.common.database import Connection

_STATEMENTS: Final = statements("dashboard/dashboard.sql")
_WORKER_PAGES_MAX: Final = 10
_GONE_WORKERS_MAX: Final = 2000
_FRESH_SECONDS: Final = 1.0
_UNKNOWN: Final = ActionTotals(None, None)
_PREPARE: Final = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL enable_seqscan = off;
SET LOCAL statement_timeout = '10s';
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off
"""


class LeaderReader:
    """Asks the leader for what changed. For one task."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._cursor = ""
        self._stops: StopsOfActions | None = None
        self._stops_at = -_FRESH_SECONDS
        self._stops_lock = asyncio.Lock()
        self.trouble: str | None = None
        """Why the last question had no answer."""

    def forget(self) -> None:
        """Begin anew: the next snapshot is a whole one."""
        self._cursor = ""

    async def snapshot(self) -> Snapshot | None:
        """Return what changed since the last one, or everything; None: no leader answers."""
        queues: dict[QueueName, Queue] = {}
        totals: dict[str, ActionTotals] = {}
        deleted: set[str] = set()
        is_whole = False
        while True:
            answer = await self._asker.ask(Changes(cursor=self._cursor, limit=PAGE_MAX))
            if not isinstance(answer, Answered):
                self.trouble = answer.message
                self.forget()
                return None
            page = answer.body
            if page.is_new:
                is_whole = True
                queues, totals, deleted = {}, {}, set()
            queues |= _queues_in(page)
            totals |= {each.action_ref: ActionTotals(each.enqueued, each.completed) for each in page.actions}
            deleted = (deleted | {*page.deleted}) - totals.keys()
            self._cursor = page.cursor
            if not page.has_more or len(queues) >= QUEUES_MAX:
                break
        workers = await self._workers()
        if workers is None:
            self.forget()
            return None
        self.trouble = None
        return Snapshot(
            read_at=datetime.fromtimestamp(answer.at, UTC), whole=is_whole, truncated=page.has_more,
            queues=list(queues.values()), totals=totals, deleted=deleted, workers=workers,
        )  # fmt: skip

    async def stops(self) -> StopsOfActions | None:
        """Return what stops actions with waiting work; asked at most once a second for all; None: unknown."""
        async with self._stops_lock:
            if time.monotonic() - self._stops_at >= _FRESH_SECONDS:
                answer = await self._asker.ask(Stops())
                self._stops = answer.body if isinstance(answer, Answered) else None
                self._stops_at = time.monotonic()
            return self._stops

    async def _workers(self) -> Workers | None:
        found: list[WorkerState] = []
        after_id: str | None = ""
        for _ in range(_WORKER_PAGES_MAX):
            if after_id is None:
                break
            answer = await self._asker.ask(AskWorkers(after_id=after_id, limit=PAGE_MAX))
            if not isinstance(answer, Answered):
                self.trouble = answer.message
                return None
            found += answer.body.items
            after_id = answer.body.next_id
        known = [each for each in found if not each.is_lost]
        healthy = [each for each in known if each.lease_left_seconds >= 0]
        live = [each for each in healthy if not each.is_draining]
        return Workers(
            live=len(live), draining=len(healthy) - len(live), overdue=len(known) - len(healthy),
            capacity=sum(each.concurrency for each in live),
            pools=frozenset(pool for each in live for pool in each.pools), known=tuple(found),
        )  # fmt: skip


def _queues_in(page: ChangesPage) -> dict[QueueName, Queue]:
    actions = {each.action_ref: each for each in page.actions}
    queues = (_queue(each, actions[each.action_ref]) for each in page.queues)
    return {queue.name: queue for queue in queues}


def _queue(row: QueueRow, action: ActionRow) -> Queue:
    oldest = row.oldest_enqueued_at
    return Queue(
        name=QueueName(row.action_ref, row.key or None), pool=action.pool, max_concurrent=row.max_concurrent,
        paused=action.paused, depth=row.length, active_count=row.active, held_waiting=row.held_waiting,
        oldest_enqueued_at=None if oldest is None else datetime.fromtimestamp(oldest, UTC),
        head_id=row.head_id, startable=row.startable, limited=row.limited,
        enqueued=row.enqueued, completed=row.completed,
    )  # fmt: skip


async def read_queues(database: Database) -> Snapshot:
    """Return all queues and workers as the rows show them, for the time without a leader."""
    async with _snapshot(database, "reading all queues") as connection:
        workers = await connection.fetchrow(_STATEMENTS["workers"])
        rows = await connection.fetch(_STATEMENTS["queues"], QUEUES_MAX + 1)
    assert workers is not None
    fields = dict(workers.items())
    read_at, pools = fields.pop("read_at"), frozenset(fields.pop("pools"))
    return Snapshot(
        read_at=read_at, whole=True, truncated=len(rows) > QUEUES_MAX,
        queues=[_stored_queue(row) for row in rows[:QUEUES_MAX]],
        totals={row["action_ref"]: _UNKNOWN for row in rows}, workers=Workers(**fields, pools=pools),
    )  # fmt: skip


def _stored_queue(row: asyncpg.Record) -> Queue:
    fields = dict(row.items())
    name = QueueName(fields.pop("action_ref"), fields.pop("concurrency_key"))
    return Queue(name=name, **fields)


async def read_watched(database: Database, execution_ids: Collection[int]) -> list[WatchedExecution]:
    """Return the status and the progress of these executions."""
    if not execution_ids:
        return []
    async with _snapshot(database, "reading executions") as connection:
        found = await connection.fetch(_STATEMENTS["executions"], list(execution_ids))
    return [
        WatchedExecution(
            id=row["id"], status=row["status"], attempt=row["attempt"],
            progress=None if row["progress"] is None else from_json(row["progress"]),
        )
        for row in found
    ]  # fmt: skip


async def read_attention(database: Database) -> Attention:
    """Return the counts of dead letters, lost workers and undelivered webhooks."""
    async with _snapshot(database, "counting dead letters") as connection:
        row = await connection.fetchrow(
            _STATEMENTS["attention"], DEAD_LETTERS_MAX, _GONE_WORKERS_MAX, LOST_SECONDS, WEBHOOKS_MAX
        )
    assert row is not None
    return Attention(**row)


async def read_failures(database: Database, starts: Sequence[Start], rows: int) -> list[tuple[str, Failures]]:
    """Return how the latest executions of the actions ended, `rows` from each start."""
    refs, before_ids = [start.action_ref for start in starts], [start.before_id for start in starts]
    async with _snapshot(database, "reading the failures") as connection:
        found = await connection.fetch(
            _STATEMENTS["failures"], refs, before_ids, rows, WINDOW.total_seconds()
        )
    return [(row["action_ref"], _failures(row)) for row in found]


async def read_errors(database: Database, ref: str, starts: Sequence[Start]) -> ActionFailures:
    """Return the failures among the newest executions of an action, grouped by error."""
    before_ids = [start.before_id for start in starts]
    async with _snapshot(database, "reading the errors") as connection:
        rows = await connection.fetch(_STATEMENTS["errors"], ref, before_ids, EXAMINED_MAX, GROUPS_MAX)
    items = [
        FailureGroup(**{name: row[name] for name in FailureGroup.model_fields})
        for row in rows
        if row["count"]
    ]
    return ActionFailures(action_ref=ref, examined=rows[0]["examined"], failed=rows[0]["failed"], items=items)


def _failures(row: asyncpg.Record) -> Failures:
    last = None
    if row["last_id"] is not None:
        last = LastFailure(
            execution_id=row["last_id"], status=row["last_status"], at=row["last_at"], type=row["last_type"],
            message=row["last_message"],
        )  # fmt: skip
    return Failures(
        read_at=row["read_at"], since=row["since"], ended=row["ended"], failed=row["failed"], last=last
    )


@asynccontextmanager
async def _snapshot(database: Database, doing: str) -> "AsyncIterator[Connection]":
    """Lend a connection whose statements see the same rows; raises Unavailable, also after a timeout."""
    try:
        async with database.transaction() as connection:
            await connection.execute(_PREPARE)
            yield connection
    except asyncpg.QueryCanceledError:
        raise Unavailable(f"database: {doing} took too long") from None
