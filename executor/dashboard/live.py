"""Reads once a second for all who look, and not at all while nobody does (P9).

In: looks (a page of queues asked for, a stream open) and the executions that streams watch. Out: a board
that is at most an interval old, and one batch of events a reading, encoded once and handed to every stream.
A stream that does not keep up is dropped, never buffered for; the intervals grow where a reading is dear,
so that it takes a twentieth of the time. Next: `reading` asks, `board` keeps, `events` words.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.dashboard import events
from turnstile.executor.dashboard.board import Board
from turnstile.executor.dashboard.reading import Standing, read

logger = logging.getLogger(__name__)

STREAMS_MAX: Final = 64
_BATCHES_MAX: Final = 8
"""Batches that wait for one stream; one more, and it is dropped."""
_KEPT_MAX: Final = 30
"""Batches that a stream which comes back may still be given."""
_WHOLE_EVERY: Final = timedelta(seconds=60)
"""How often everything is read: what was deleted moves nothing."""
_SHARE: Final = 20.0
_LONGEST: Final = 5.0
"""Intervals: so far they grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTimes:
    """In seconds."""

    interval: float = 1.0
    linger: float = 5.0
    """Readings go on so long after the last look: a page that is loaded anew finds its history."""
    first: float = 10.0
    """Longest wait for the first reading."""


class Stream:
    """One who listens."""

    def __init__(self, execution_ids: Collection[int]) -> None:
        self.execution_ids = frozenset(execution_ids)
        self.batches: asyncio.Queue[bytes] = asyncio.Queue(_BATCHES_MAX)
        self.dropped = asyncio.Event()

    def hand(self, batch: bytes) -> None:
        """Have a batch sent; drops the stream when it does not keep up."""
        try:
            self.batches.put_nowait(batch)
        except asyncio.QueueFull:
            self.dropped.set()


class Live:
    """One for each executor process. Its task runs while somebody looks."""

    def __init__(
        self,
        database: Database,
        trouble: Callable[[], dict[str, str | None]],
        times: LiveTimes | None = None,
    ) -> None:
        self._database = database
        self._trouble = trouble
        self._times = times or LiveTimes()
        self._board = Board()
        self._whole_at: datetime | None = None
        self._standings: dict[int, Standing] = {}
        self._overview: dict[str, object] = {}
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_MAX)
        self._streams: set[Stream] = set()
        self._looked_at = 0.0
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.readings = 0
        """How often it has read."""

    @property
    def is_reading(self) -> bool:
        """Somebody looks, or did just now."""
        return self._task is not None and not self._task.done()

    async def board(self) -> Board:
        """Return the board, at most an interval old; raises Unavailable where nothing can be read."""
        self._look()
        try:
            async with asyncio.timeout(self._times.first):
                await self._fresh.wait()
        except TimeoutError:
            raise Unavailable("the queues cannot be read at the moment; /readyz says why") from None
        return self._board

    @contextmanager
    def stream(self, execution_ids: Collection[int], *, last_event_id: str | None) -> Iterator[Stream]:
        """Listen; a known `last_event_id` is gone on from. Raises Unavailable when too many listen."""
        if len(self._streams) >= STREAMS_MAX:
            raise Unavailable(
                f"{STREAMS_MAX} streams of events are open; try again later, or ask GET /queues"
            )
        stream = Stream(execution_ids)
        for batch in self._missed(last_event_id):
            stream.batches.put_nowait(batch)
        self._streams.add(stream)
        self._look()
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._look()

    def _missed(self, last_event_id: str | None) -> list[bytes]:
        epoch, _, number = (last_event_id or "").partition("-")
        seen = int(number) if number.isascii() and number.isdigit() else -1
        oldest = self._kept[0][0] if self._kept else self._number + 1
        if epoch == self._epoch and oldest - 1 <= seen <= self._number:
            missed = [batch for kept, batch in self._kept if kept > seen]
            if len(missed) < _BATCHES_MAX:
                return missed
        # A newcomer, or one who was away too long: it is to load what it shows.
        return [events.opening(self._id(), self._overview)]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._looked_at = loop.time()
        if self._task is None or self._task.done():
            self._fresh.clear()
            self._task = loop.create_task(self._run(), name="dashboard reading")
            self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._streams or loop.time() - self._looked_at < self._times.linger:
                began_at = loop.time()
                await self._read()
                took_seconds = loop.time() - began_at
                rest_seconds = min(took_seconds * _SHARE, self._times.interval * _LONGEST)
                await asyncio.sleep(max(self._times.interval - took_seconds, rest_seconds))
        finally:
            # Whoever looks next begins anew: what happens until then is not seen.
            self._fresh.clear()
            self._board.forget()
            self._kept.clear()
            self._overview, self._standings = {}, {}
            self._epoch, self._number = secrets.token_hex(4), 0

    async def _read(self) -> None:
        board = self._board
        whole = (
            self._whole_at is None or board.read_at is None or board.read_at >= self._whole_at + _WHOLE_EVERY
        )
        watched = frozenset[int]().union(*(stream.execution_ids for stream in self._streams))
        self.readings += 1
        try:
            reading, standings = await read(
                self._database, since=None if whole else board.read_at, execution_ids=watched
            )
        except Unavailable:
            # Whoever asks for the board waits for the next reading: what is old must not pass for new.
            self._fresh.clear()
            self._tell(events.Changes(overview=self._described()))
            return
        first = board.read_at is None
        changed = board.take(reading)
        if whole:
            self._whole_at = reading.read_at
        self._tell(
            events.Changes(
                overview=self._described(),
                lines=[]
                if first
                else [events.line_shape(board, line) for line in changed[: events.LINES_MAX]],
                more=not first and len(changed) > events.LINES_MAX,
                standings=self._moved(standings),
            )
        )
        self._fresh.set()

    def _moved(self, standings: Collection[Standing]) -> list[Standing]:
        before, self._standings = self._standings, {standing.id: standing for standing in standings}
        return [standing for standing in standings if before.get(standing.id) not in (None, standing)]

    def _described(self) -> dict[str, object] | None:
        """Return the overview where it differs from the last one that was told."""
        overview = events.overview(self._board, self._trouble())
        if overview == self._overview:
            return None
        self._overview = overview
        return overview

    def _tell(self, changes: events.Changes) -> None:
        if changes.is_empty:
            return
        self._number += 1
        batch = events.worded(self._id(), changes)
        self._kept.append((self._number, batch))
        for stream in self._streams:
            stream.hand(batch)

    def _id(self) -> str:
        return f"{self._epoch}-{self._number}"

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("dashboard_reading_failed", exc_info=error)
            for stream in self._streams:
                stream.dropped.set()
