"""Encodes the stream as server-sent events (WHATWG HTML, 9.2), several in one batch under one id.

In: what a poll changed. Out: bytes that every stream sends unchanged. `overview` has the totals, `queues` the
changed queues (at most `QUEUES_MAX`; with `more` the client reloads its page), `executions` the status of
watched ones, at first the present one; `opening` starts a stream that cannot continue an earlier one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import AwareDatetime, Field
from pydantic_core import to_json

from turnstile.common.schemas import Schema
from turnstile.executor.dashboard.failures import Failures
from turnstile.executor.dashboard.state import DashboardState, Queue, Rates

QUEUES_MAX: Final = 100
HEARTBEAT: Final = b": heartbeat\n\n"
_RETRY_MILLISECONDS: Final = 2000


class QueueSummary(Schema):
    """One queue, as the dashboard shows it."""

    action_ref: str
    concurrency_key: str | None
    pool: str
    max_concurrent: int | None = Field(
        description="Limit of this queue: that of its key, or of the action; null: none."
    )
    active_count: int = Field(description="Slots of granted executions.")
    held_waiting: int = Field(
        description="Slots that are held by executions which wait at later gates. In use: both."
    )
    queue_length: int = Field(description="Executions that are queued.")
    oldest_enqueued_at: AwareDatetime | None = Field(description="When the head of the queue was enqueued.")
    paused: bool
    served: bool = Field(description="A live worker serves the pool.")
    enqueued_per_second: float | None = Field(description="Over the last minute; null: not known yet.")
    completed_per_second: float | None
    failures: Failures | None = Field(
        description="Of its action, over all keys. null: nothing has ended, it was not read yet, or this is "
        "the queue of a key: the queue without one has it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedExecution:
    """The status of a watched execution, and the progress of its attempt as the API shows it."""

    id: int
    status: str
    attempt: int
    progress: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one poll changed."""

    overview: Mapping[str, object] | None = None
    queues: Sequence[QueueSummary] = ()
    more: bool = False
    """More queues changed than are listed."""
    executions: Sequence[WatchedExecution] = ()

    @property
    def is_empty(self) -> bool:
        """There is nothing to send."""
        return self.overview is None and not (self.queues or self.more or self.executions)


def queue_summary(state: DashboardState, queue: Queue) -> QueueSummary:
    """Return a queue with its rates."""
    return QueueSummary(
        action_ref=queue.name.action_ref,
        concurrency_key=queue.name.concurrency_key,
        pool=queue.pool,
        max_concurrent=queue.max_concurrent,
        active_count=queue.active_count,
        held_waiting=queue.held_waiting,
        queue_length=queue.depth,
        oldest_enqueued_at=queue.oldest_enqueued_at,
        paused=queue.paused,
        served=queue.pool in state.workers.pools,
        **_rates(state.rates(queue)),
        failures=state.failures_of(queue),
    )


def overview(
    state: DashboardState, trouble: Mapping[str, str | None], degraded: Mapping[str, str]
) -> dict[str, object]:
    """Return the totals over all queues; it does not change while nothing happens."""
    sums, rates = state.total()
    workers = state.workers
    return {
        "queues": len(state.queues),
        "truncated": state.truncated,
        "queue_length": sums.depth,
        "active_count": sums.active_count,
        "held_waiting": sums.held_waiting,
        "total_enqueued": sums.total_enqueued,
        "total_completed": sums.total_completed,
        **_rates(rates),
        "failures": {
            "failed": state.failures.sums.failed,
            "ended": state.failures.sums.ended,
            "actions": state.failures.sums.actions,
        },
        "dead_letters": state.attention.dead_letters,
        "workers": {
            "lost": state.attention.lost_workers,
            "live": workers.live,
            "draining": workers.draining,
            "overdue": workers.overdue,
            "capacity": workers.capacity,
        },
        "trouble": {part: reason for part, reason in trouble.items() if reason is not None},
        "degraded": dict(degraded),
    }


def opening(event_id: str, known: Mapping[str, object]) -> bytes:
    """Return the first events of a stream that does not continue an earlier one."""
    events: list[tuple[str, object]] = [("opening", {"retry_milliseconds": _RETRY_MILLISECONDS})]
    if known:
        events.append(("overview", dict(known)))
    return b"retry: %d\n\n" % _RETRY_MILLISECONDS + _batch(event_id, events)


def encoded(event_id: str, changes: Changes) -> bytes:
    """Return one batch of events."""
    events: list[tuple[str, object]] = []
    if changes.overview is not None:
        events.append(("overview", changes.overview))
    if changes.queues or changes.more:
        events.append(("queues", {"items": changes.queues, "more": changes.more}))
    if changes.executions:
        events.append(("executions", {"items": changes.executions}))
    return _batch(event_id, events)


def _batch(event_id: str, events: Sequence[tuple[str, object]]) -> bytes:
    """Put the id on the last event, so that a client that received half a batch receives all of it again."""
    # The JSON text has no line breaks: one data line.
    texts = [b"event: " + name.encode() + b"\ndata: " + to_json(body) + b"\n" for name, body in events]
    return b"\n".join(texts) + b"id: " + event_id.encode() + b"\n\n"


def _rates(rates: Rates | None) -> dict[str, float | None]:
    return {
        "enqueued_per_second": None if rates is None else round(rates.enqueued, 2),
        "completed_per_second": None if rates is None else round(rates.completed, 2),
    }
