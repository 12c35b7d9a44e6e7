"""The states of an execution and every legal transition between them (P3).

The table `TRANSITIONS` is the only source. Tests check every move of the queue manager against it, and the
enum in PostgreSQL against `Status`; the 409 of the API follows from `is_terminal`. A short execution may end
before its start was reported, so whatever ends what runs also ends what is scheduled.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The status of an execution."""

    DELAYED = "delayed"
    """Not due yet (`run_at`, or the delay before a retry): no position, no slot."""
    QUEUED = "queued"
    """Waits in its queue, in order of its id."""
    SCHEDULED = "scheduled"
    """Holds a slot; at a worker, about to start, or running without a report of its start."""
    RUNNING = "running"
    """Holds a slot; its worker has reported the start."""
    COMPLETED = "completed"
    """The action returned."""
    FAILED = "failed"
    """The action raised, and no retry is left."""
    TIMEOUT = "timeout"
    """It ran longer than its timeout and was stopped."""
    CANCELLED = "cancelled"
    """A cancel request stopped it."""
    EXPIRED = "expired"
    """Its time to live ran out before it started."""
    ABANDONED = "abandoned"
    """Its worker was lost, and it may not be run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A named transition: the only way from one of `sources` to `target`."""

    name: str
    sources: frozenset[Status]
    target: Status


TERMINAL: Final = frozenset(
    {
        Status.COMPLETED,
        Status.FAILED,
        Status.TIMEOUT,
        Status.CANCELLED,
        Status.EXPIRED,
        Status.ABANDONED,
    }
)
"""States that never change again."""


def _transition(name: str, sources: set[Status], target: Status) -> Transition:
    return Transition(name=name, sources=frozenset(sources), target=target)


_AT_A_WORKER: Final = {Status.SCHEDULED, Status.RUNNING}

TRANSITIONS: Final = (
    _transition("wake", {Status.DELAYED}, Status.QUEUED),
    _transition("grant", {Status.QUEUED}, Status.SCHEDULED),
    _transition("start", {Status.SCHEDULED}, Status.RUNNING),
    _transition("complete", _AT_A_WORKER, Status.COMPLETED),
    _transition("fail", _AT_A_WORKER, Status.FAILED),
    _transition("time_out", _AT_A_WORKER, Status.TIMEOUT),
    _transition("retry", _AT_A_WORKER, Status.DELAYED),
    _transition("reclaim", _AT_A_WORKER, Status.QUEUED),
    _transition("abandon", _AT_A_WORKER, Status.ABANDONED),
    _transition(
        "cancel", {Status.DELAYED, Status.QUEUED, Status.SCHEDULED, Status.RUNNING}, Status.CANCELLED
    ),
    _transition("expire", {Status.DELAYED, Status.QUEUED, Status.SCHEDULED}, Status.EXPIRED),
)


def is_terminal(status: Status) -> bool:
    """Return whether `status` can never change again."""
    return status in TERMINAL
