"""The words of the stream: server-sent events (WHATWG HTML, 9.2), several in one batch under one id.

In: what a reading changed. Out: bytes that every stream sends as they are. `overview` carries the totals,
`queues` the queues that moved (at most `LINES_MAX`; with `more` a page is to be asked for anew),
`executions` how watched ones stand, `opening` greets whoever has nothing to go on from. Next: `live`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import AwareDatetime, Field
from pydantic_core import to_json

from turnstile.executor.dashboard.board import Board
from turnstile.executor.dashboard.history import Rates
from turnstile.executor.dashboard.lines import Line
from turnstile.executor.dashboard.reading import Standing
from turnstile.executor.reading.execution_shapes import Shape

LINES_MAX: Final = 100
HEARTBEAT: Final = b": heartbeat\n\n"
_RETRY_MILLISECONDS: Final = 2000


class QueueShape(Shape):
    """One queue, as the dashboard shows it."""

    action_ref: str
    concurrency_key: str | None
    pool: str
    max_concurrent: int | None = Field(description="null: no limit.")
    active_count: int = Field(description="Slots held.")
    queue_length: int = Field(description="Executions in line.")
    oldest_enqueued_at: AwareDatetime | None = Field(description="Since when the head of the line waits.")
    paused: bool
    served: bool = Field(description="A live worker serves the pool.")
    total_enqueued: int
    total_completed: int
    enqueued_per_second: float | None = Field(description="Over the last minute; null: not seen long enough.")
    completed_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one reading changed."""

    overview: Mapping[str, object] | None = None
    lines: Sequence[QueueShape] = ()
    more: bool = False
    """More queues moved than are listed."""
    standings: Sequence[Standing] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Nothing to tell."""
        return self.overview is None and not (self.lines or self.more or self.standings)


def line_shape(board: Board, line: Line) -> QueueShape:
    """Return how a queue of the board is shown."""
    rates = board.rates(line.name)
    return QueueShape(
        action_ref=line.name.action_ref,
        concurrency_key=line.name.concurrency_key,
        pool=line.pool,
        max_concurrent=line.max_concurrent,
        active_count=line.active_count,
        queue_length=line.depth,
        oldest_enqueued_at=line.oldest_enqueued_at,
        paused=line.paused,
        served=line.pool in board.workers.pools,
        total_enqueued=line.total_enqueued,
        total_completed=line.total_completed,
        **_rates(rates),
    )


def overview(board: Board, trouble: Mapping[str, str | None]) -> dict[str, object]:
    """Return the totals over all queues; nothing in it moves while nothing happens."""
    sums, rates = board.total()
    workers = board.workers
    return {
        "queues": len(board.lines),
        "truncated": board.truncated,
        "queue_length": sums.depth,
        "active_count": sums.active_count,
        "total_enqueued": sums.total_enqueued,
        "total_completed": sums.total_completed,
        **_rates(rates),
        "workers": {
            "live": workers.live,
            "draining": workers.draining,
            "overdue": workers.overdue,
            "places": workers.places,
        },
        "trouble": {part: reason for part, reason in trouble.items() if reason is not None},
    }


def opening(event_id: str, known: Mapping[str, object]) -> bytes:
    """Return the first events of a stream that starts from nothing."""
    said: list[tuple[str, object]] = [("opening", {"retry_milliseconds": _RETRY_MILLISECONDS})]
    if known:
        said.append(("overview", dict(known)))
    return b"retry: %d\n\n" % _RETRY_MILLISECONDS + _batch(event_id, said)


def worded(event_id: str, changes: Changes) -> bytes:
    """Return one batch of events."""
    said: list[tuple[str, object]] = []
    if changes.overview is not None:
        said.append(("overview", changes.overview))
    if changes.lines or changes.more:
        said.append(("queues", {"items": changes.lines, "more": changes.more}))
    if changes.standings:
        said.append(("executions", {"items": changes.standings}))
    return _batch(event_id, said)


def _batch(event_id: str, said: Sequence[tuple[str, object]]) -> bytes:
    """Put the id on the last event: who got half a batch is sent all of it again."""
    # JSON has no line breaks of its own: one data line.
    texts = [b"event: " + name.encode() + b"\ndata: " + to_json(body) + b"\n" for name, body in said]
    return b"\n".join(texts) + b"id: " + event_id.encode() + b"\n\n"


def _rates(rates: Rates | None) -> dict[str, float | None]:
    return {
        "enqueued_per_second": None if rates is None else round(rates.enqueued, 2),
        "completed_per_second": None if rates is None else round(rates.completed, 2),
    }
