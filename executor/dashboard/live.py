"""Asks the leader once a second for all clients what changed, and not at all without clients (P9).

In: requests for a page of queues, open streams, and the executions that streams watch. Out: a state that is
at most one interval old, and one batch of events a poll, encoded once for all streams. While no leader
answers, the state is what the rows show, and says so. A stream that does not keep up is dropped, never
buffered. The interval grows with the duration of a poll, so that polling takes at most a twentieth of the
time.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.asking.asker import Asker
from turnstile.executor.dashboard import events
from turnstile.executor.dashboard.cards import Card, Facts, cards
from turnstile.executor.dashboard.events import WatchedExecution
from turnstile.executor.dashboard.failures import ActionFailures
from turnstile.executor.dashboard.reading import (
    LeaderReader,
    read_attention,
    read_errors,
    read_failures,
    read_queues,
    read_watched,
)
from turnstile.executor.dashboard.state import DashboardState, Snapshot
from turnstile.executor.health import Health
from turnstile.executor.questions.protocol import StopsOfActions

logger = logging.getLogger(__name__)
_READING_FAILED: Final = Episodes(logger, "dashboard_reading_failed", level=logging.ERROR)

STREAMS_MAX: Final = 64
_BATCHES_MAX: Final = 8
"""Batches buffered for one stream; with one more it is dropped."""
_KEPT_MAX: Final = 30
"""Batches kept for streams that reconnect."""
_SHARE: Final = 20.0
_INTERVALS_MAX: Final = 5.0
"""Longest pause, in intervals."""
_ATTENTION_EVERY: Final = timedelta(seconds=5)


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

    def __init__(
        self, database: Database, asker: Asker, health: Health, times: LiveTimes | None = None
    ) -> None:
        self._database = database
        self._leader = LeaderReader(asker)
        self._health = health
        self._times = times or LiveTimes()
        self._state = DashboardState()
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
        return {**unusable, **self._without_leader(), **self._health.degraded()}

    def _without_leader(self) -> dict[str, str]:
        why = self._leader.trouble
        return {} if why is None else {"leader": f"{why}; these are the numbers of the database"}

    async def cards(self, waited: timedelta) -> list[Card]:
        """Return what needs attention; raises Unavailable if the state cannot be read."""
        state = await self.state()
        assert state.read_at is not None, "it was read"
        stops, failing = await self._leader.stops(), state.failures.failing()
        queues = (name for name in state.queues if name.action_ref in failing)
        return cards(
            Facts(
                now=state.read_at,
                waited=waited,
                troubles=self.degraded(),
                stops=stops or StopsOfActions(actions=(), idle=()),
                workers=state.workers.known,
                failures=failing,
                pools={name.action_ref: state.queues[name].pool for name in queues},
                attention=state.attention,
            )
        )

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

    async def errors(self, ref: str) -> ActionFailures:
        """Return the latest failures of an action, grouped by error. Raises Unavailable."""
        state = await self.state()
        return await read_errors(self._database, ref, state.failures.starts_of(ref))

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
                busy_seconds = await self._poll()
                rest_seconds = min(busy_seconds * _SHARE, self._times.interval * _INTERVALS_MAX)
                await asyncio.sleep(max(self._times.interval + began_at - loop.time(), rest_seconds))
        finally:
            # The next client starts with an empty state, because changes until then are not read.
            self._fresh.clear()
            self._state.forget()
            self._leader.forget()
            self._attention_at = None
            self._kept.clear()
            self._overview, self._watched, self._subscribed = {}, {}, set()
            self._epoch, self._number = secrets.token_hex(4), 0

    async def _poll(self) -> float:
        """Read what changed and send it; return how many seconds the servers worked for it."""
        state, loop = self._state, asyncio.get_running_loop()
        watched = frozenset[int]().union(*(stream.execution_ids for stream in self._streams))
        subscribed, self._subscribed = self._subscribed, set()
        self.polls += 1
        began_at = loop.time()
        snapshot = await self._leader.snapshot()
        if snapshot is None:
            # Without an answer there was no work.
            began_at = loop.time()
        try:
            if snapshot is None:
                snapshot = await read_queues(self._database)
        except Unavailable:
            # Requests wait for the next poll, so that they do not return outdated values.
            self._fresh.clear()
            self._subscribed |= subscribed
            self._send(events.Changes(overview=self._changed_overview()))
            return loop.time() - began_at
        found = await self._read_beside(snapshot, watched)
        if found is None:
            self._subscribed |= subscribed
        first = state.read_at is None
        changed = state.apply(snapshot)
        await self._read_failures(snapshot.read_at)
        self._send(
            events.Changes(
                overview=self._changed_overview(),
                queues=[]
                if first
                else [events.queue_summary(state, queue) for queue in changed[: events.QUEUES_MAX]],
                more=not first and len(changed) > events.QUEUES_MAX,
                executions=[] if found is None else self._changed(found, subscribed),
            )
        )
        self._fresh.set()
        _READING_FAILED.all_work()
        return loop.time() - began_at

    async def _read_beside(
        self, snapshot: Snapshot, watched: Collection[int]
    ) -> list[WatchedExecution] | None:
        """Read what only the rows have; None: the database does not answer, and the rest is shown."""
        try:
            if self._attention_at is None or snapshot.read_at >= self._attention_at + _ATTENTION_EVERY:
                self._state.attention = await read_attention(self._database)
                self._attention_at = snapshot.read_at
            return await read_watched(self._database, watched)
        except Unavailable:
            return None

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
        trouble = {**self._health.readiness(), **self._without_leader()}
        overview = events.overview(self._state, trouble, self._health.degraded())
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
