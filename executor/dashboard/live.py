"""Polls the queues once a second for all clients, and not at all without clients (P9).

In: requests for a page of queues, open streams, and the executions that streams watch. Out: a state that is
at most one interval old, and one batch of events a poll, encoded once for all streams. A stream that does not
keep up is dropped, never buffered. The interval grows with the duration of a poll, so that polling takes at
most a twentieth of the time.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import asyncpg
from pydantic_core import from_json

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.dashboard import events
from turnstile.executor.dashboard.events import WatchedExecution
from turnstile.executor.dashboard.failures import WINDOW, Failures, LastFailure, Start
from turnstile.executor.dashboard.state import (
    DEAD_LETTERS_MAX,
    LOST_SECONDS,
    QUEUES_MAX,
    Attention,
    DashboardState,
    Queue,
    QueueName,
    Snapshot,
    Workers,
)
from turnstile.executor.queries.waiting_reason import Health
from turnstile.executor.sql import query

if TYPE_CHECKING:
    from turnstile.common.database import Connection

logger = logging.getLogger(__name__)
_READING_FAILED: Final = Episodes(logger, "dashboard_reading_failed", level=logging.ERROR)

STREAMS_MAX: Final = 64
_BATCHES_MAX: Final = 8
"""Batches buffered for one stream; with one more it is dropped."""
_KEPT_MAX: Final = 30
"""Batches kept for streams that reconnect."""
_WHOLE_EVERY: Final = timedelta(seconds=60)
"""How often everything is read: a deletion changes no row that is still there."""
_SHARE: Final = 20.0
_INTERVALS_MAX: Final = 5.0
"""Longest pause, in intervals."""
_OVERLAP: Final = timedelta(seconds=5)
"""`updated_at` is set before the commit: so far back a row may still appear."""
_ATTENTION_EVERY: Final = timedelta(seconds=5)
_GONE_WORKERS_MAX: Final = 2000
_PREPARE: Final = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL enable_seqscan = off;
SET LOCAL statement_timeout = '10s';
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTimes:
    """In seconds."""

    interval: float = 1.0
    linger: float = 5.0
    """How long polling continues after the last request, so that a reloaded page keeps its history."""
    first: float = 10.0
    """Longest wait for the first poll."""


class Stream:
    """One client of the events."""

    def __init__(self, execution_ids: Collection[int]) -> None:
        self.execution_ids = frozenset(execution_ids)
        self.batches: asyncio.Queue[bytes] = asyncio.Queue(_BATCHES_MAX)
        self.dropped = asyncio.Event()

    def send(self, batch: bytes) -> None:
        """Enqueue a batch; drops the stream if it does not keep up."""
        try:
            self.batches.put_nowait(batch)
        except asyncio.QueueFull:
            self.dropped.set()


class Live:
    """The poller of one executor process. Its task runs while there are clients."""

    def __init__(self, database: Database, health: Health, times: LiveTimes | None = None) -> None:
        self._database = database
        self._health = health
        self._times = times or LiveTimes()
        self._state = DashboardState()
        self._whole_at: datetime | None = None
        self._attention_at: datetime | None = None
        self._watched: dict[int, WatchedExecution] = {}
        self._subscribed: set[int] = set()
        """Executions of streams that were opened since the last poll."""
        self._overview: dict[str, object] = {}
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_MAX)
        self._streams: set[Stream] = set()
        self._requested_at = 0.0
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.polls = 0
        """Number of polls."""

    @property
    def is_polling(self) -> bool:
        """Whether there are clients, or were recently."""
        return self._task is not None and not self._task.done()

    def degraded(self) -> Mapping[str, str]:
        """Name what does not work though the state can be read, and why."""
        unusable = {part: why for part, why in self._health.readiness().items() if why is not None}
        return {**unusable, **self._health.degraded()}

    async def state(self) -> DashboardState:
        """Return the state, at most one interval old; raises Unavailable if it cannot be read."""
        self._request()
        try:
            async with asyncio.timeout(self._times.first):
                await self._fresh.wait()
        except TimeoutError:
            reasons = "; ".join(f"{part}: {why}" for part, why in self.degraded().items()) or "see /readyz"
            raise Unavailable(f"the queues cannot be read at the moment; {reasons}") from None
        return self._state

    @contextmanager
    def stream(self, execution_ids: Collection[int], *, last_event_id: str | None) -> Iterator[Stream]:
        """Open a stream; it continues behind a known `last_event_id`. Raises Unavailable above the limit."""
        if len(self._streams) >= STREAMS_MAX:
            raise Unavailable(
                f"{STREAMS_MAX} streams of events are open; try again later, or use GET /queues"
            )
        stream = Stream(execution_ids)
        for batch in self._missed(last_event_id):
            stream.batches.put_nowait(batch)
        self._streams.add(stream)
        self._subscribed |= stream.execution_ids
        self._request()
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._request()

    def _missed(self, last_event_id: str | None) -> list[bytes]:
        epoch, _, number = (last_event_id or "").partition("-")
        seen = int(number) if number.isascii() and number.isdigit() else -1
        oldest = self._kept[0][0] if self._kept else self._number + 1
        if epoch == self._epoch and oldest - 1 <= seen <= self._number:
            missed = [batch for kept, batch in self._kept if kept > seen]
            if len(missed) < _BATCHES_MAX:
                return missed
        # A new client, or one that was disconnected for too long, must load the current state.
        return [events.opening(self._id(), self._overview)]

    def _request(self) -> None:
        loop = asyncio.get_running_loop()
        self._requested_at = loop.time()
        if self._task is None or self._task.done():
            self._fresh.clear()
            self._task = loop.create_task(self._run(), name="dashboard poll")
            self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._streams or loop.time() - self._requested_at < self._times.linger:
                began_at = loop.time()
                await self._poll()
                poll_seconds = loop.time() - began_at
                rest_seconds = min(poll_seconds * _SHARE, self._times.interval * _INTERVALS_MAX)
                await asyncio.sleep(max(self._times.interval - poll_seconds, rest_seconds))
        finally:
            # The next client starts with an empty state, because changes until then are not read.
            self._fresh.clear()
            self._state.forget()
            self._kept.clear()
            self._overview, self._watched, self._subscribed = {}, {}, set()
            self._epoch, self._number = secrets.token_hex(4), 0

    async def _poll(self) -> None:
        state = self._state
        whole = (
            self._whole_at is None or state.read_at is None or state.read_at >= self._whole_at + _WHOLE_EVERY
        )
        watched = frozenset[int]().union(*(stream.execution_ids for stream in self._streams))
        subscribed, self._subscribed = self._subscribed, set()
        self.polls += 1
        try:
            snapshot, found = await poll(
                self._database, since=None if whole else state.read_at, execution_ids=watched
            )
        except Unavailable:
            # Requests wait for the next poll, so that they do not return outdated values.
            self._fresh.clear()
            self._subscribed |= subscribed
            self._send(events.Changes(overview=self._changed_overview()))
            return
        first = state.read_at is None
        changed = state.apply(snapshot)
        if whole:
            self._whole_at = snapshot.read_at
        await self._read_failures(snapshot.read_at)
        await self._read_attention(snapshot.read_at)
        self._send(
            events.Changes(
                overview=self._changed_overview(),
                queues=[]
                if first
                else [events.queue_summary(state, queue) for queue in changed[: events.QUEUES_MAX]],
                more=not first and len(changed) > events.QUEUES_MAX,
                executions=self._changed(found, subscribed),
            )
        )
        self._fresh.set()
        _READING_FAILED.all_work()

    async def _read_attention(self, at: datetime) -> None:
        if self._attention_at is not None and at < self._attention_at + _ATTENTION_EVERY:
            return
        # Else the counts stay as they were: the next poll finds out whether the database answers.
        with suppress(Unavailable):
            self._state.attention = await read_attention(self._database)
            self._attention_at = at

    async def _read_failures(self, at: datetime) -> None:
        starts, rows = self._state.failures.starts(at)
        if not starts:
            return
        try:
            found = await read_failures(self._database, starts, rows)
        except Unavailable:
            # They stay as they were: the next poll finds out whether the database answers.
            self._state.failures.put_back(starts)
        else:
            self._state.apply_failures(starts, found)

    def _changed(
        self, found: Collection[WatchedExecution], subscribed: Collection[int]
    ) -> list[WatchedExecution]:
        """Return those that changed, and the present state of those that a new stream watches.

        A client may have read an execution before its stream was opened, so it cannot know which it missed.
        """
        before, self._watched = self._watched, {each.id: each for each in found}
        return [each for each in found if each.id in subscribed or before.get(each.id) != each]

    def _changed_overview(self) -> dict[str, object] | None:
        """Return the overview if it differs from the last one that was sent."""
        overview = events.overview(self._state, self._health.readiness(), self._health.degraded())
        if overview == self._overview:
            return None
        self._overview = overview
        return overview

    def _send(self, changes: events.Changes) -> None:
        if changes.is_empty:
            return
        self._number += 1
        batch = events.encoded(self._id(), changes)
        self._kept.append((self._number, batch))
        for stream in self._streams:
            stream.send(batch)

    def _id(self) -> str:
        return f"{self._epoch}-{self._number}"

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _READING_FAILED.broke(type(error).__name__, error)
            for stream in self._streams:
                stream.dropped.set()


@asynccontextmanager
async def _snapshot(database: Database, doing: str) -> "AsyncIterator[Connection]":
    """Lend a connection whose statements see the same rows; raises Unavailable, also after a timeout."""
    try:
        async with database.transaction() as connection:
            await connection.execute(_PREPARE)
            yield connection
    except asyncpg.QueryCanceledError:
        raise Unavailable(f"database: {doing} took too long") from None


async def poll(
    database: Database, *, since: datetime | None, execution_ids: Collection[int]
) -> tuple[Snapshot, list[WatchedExecution]]:
    """Return what changed since an instant (None: everything) and the status of these executions.

    A few short statements in one snapshot, on one connection. Changes are found by `updated_at`, so a poll
    returns what one interval changed. Raises Unavailable.
    """
    async with _snapshot(database, "reading all queues") as connection:
        workers = await connection.fetchrow(query("dashboard_workers"))
        changed = await connection.fetch(
            query("dashboard_queues"), None if since is None else since - _OVERLAP, QUEUES_MAX + 1
        )
        deleted = 0 if since is not None else await connection.fetchval(query("dashboard_deleted"))
        executions = (
            await connection.fetch(query("dashboard_executions"), list(execution_ids))
            if execution_ids
            else []
        )
    assert workers is not None
    snapshot = Snapshot(
        read_at=workers["read_at"],
        whole=since is None,
        truncated=len(changed) > QUEUES_MAX,
        queues=[_queue(row) for row in changed[:QUEUES_MAX]],
        deleted=deleted,
        workers=Workers(
            live=workers["live"],
            draining=workers["draining"],
            overdue=workers["overdue"],
            capacity=workers["capacity"],
            pools=frozenset(workers["pools"]),
        ),
    )
    return snapshot, [
        WatchedExecution(
            id=row["id"],
            status=row["status"],
            attempt=row["attempt"],
            progress=None if row["progress"] is None else from_json(row["progress"]),
        )
        for row in executions
    ]


async def read_attention(database: Database) -> Attention:
    """Return the counts of dead letters and lost workers. Raises Unavailable."""
    async with _snapshot(database, "counting dead letters") as connection:
        row = await connection.fetchrow(
            query("dashboard_attention"), DEAD_LETTERS_MAX, _GONE_WORKERS_MAX, LOST_SECONDS
        )
    assert row is not None
    return Attention(dead_letters=row["dead_letters"], lost_workers=row["lost_workers"])


async def read_failures(database: Database, starts: Sequence[Start], rows: int) -> list[tuple[str, Failures]]:
    """Return how the latest executions of the actions ended, `rows` from each start. Raises Unavailable."""
    refs, queue_ids = [start.action_ref for start in starts], [start.queue_id for start in starts]
    async with _snapshot(database, "reading the failures") as connection:
        found = await connection.fetch(
            query("dashboard_failures"), refs, queue_ids, rows, WINDOW.total_seconds()
        )
    return [(row["action_ref"], _failures(row)) for row in found]


def _failures(row: asyncpg.Record) -> Failures:
    last = None
    if row["last_id"] is not None:
        last = LastFailure(
            execution_id=row["last_id"],
            status=row["last_status"],
            at=row["last_at"],
            type=row["last_type"],
            message=row["last_message"],
        )
    return Failures(
        read_at=row["read_at"], since=row["since"], ended=row["ended"], failed=row["failed"], last=last
    )


def _queue(row: asyncpg.Record) -> Queue:
    fields = dict(row.items())
    name = QueueName(fields.pop("action_ref"), fields.pop("concurrency_key"))
    return Queue(name=name, **fields)
