"""The states of an execution and every legal move between them (P3).

One table, `TRANSITIONS`, is the source of everything: the source states in the guarded UPDATEs are
filled in from it when the statements are installed (`common.statements`), a test holds PostgreSQL's
enum against `Status`, and the API's 409 follows from `is_terminal`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """Where an execution stands."""

    DELAYED = "delayed"
    """Not due yet (`run_at`, or the wait before a retry): no position, no slot."""
    QUEUED = "queued"
    """In line, at the place that its id gives it."""
    SCHEDULED = "scheduled"
    """Holds a slot; offered to the workers of its pool."""
    RUNNING = "running"
    """Holds a slot; claimed by one worker under one attempt."""
    COMPLETED = "completed"
    """The action returned."""
    FAILED = "failed"
    """The action raised, and no retry is left."""
    TIMEOUT = "timeout"
    """It ran longer than its timeout and was stopped."""
    CANCELLED = "cancelled"
    """Somebody asked for it to stop, and it did."""
    EXPIRED = "expired"
    """Its time to live ran out before it started."""
    ABANDONED = "abandoned"
    """Its worker was lost, and it may not, or may no longer, be run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A named move: the only way from one of `sources` to `target`."""

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

HOLDS_SLOT: Final = frozenset({Status.SCHEDULED, Status.RUNNING})
"""States that imply a slot. A terminal execution may still hold one, until it is settled (P1)."""

INITIAL: Final = frozenset({Status.QUEUED, Status.DELAYED})
"""States in which an execution can be born."""


def _move(name: str, sources: set[Status], target: Status) -> Transition:
    return Transition(name=name, sources=frozenset(sources), target=target)


TRANSITIONS: Final = (
    _move("wake", {Status.DELAYED}, Status.QUEUED),
    _move("grant", {Status.QUEUED}, Status.SCHEDULED),
    _move("claim", {Status.SCHEDULED}, Status.RUNNING),
    _move("complete", {Status.RUNNING}, Status.COMPLETED),
    _move("fail", {Status.RUNNING}, Status.FAILED),
    _move("time_out", {Status.RUNNING}, Status.TIMEOUT),
    _move("retry", {Status.RUNNING}, Status.DELAYED),
    _move("reclaim", {Status.SCHEDULED, Status.RUNNING}, Status.QUEUED),
    _move("abandon", {Status.RUNNING}, Status.ABANDONED),
    _move("cancel", {Status.DELAYED, Status.QUEUED, Status.SCHEDULED, Status.RUNNING}, Status.CANCELLED),
    _move("expire", {Status.DELAYED, Status.QUEUED, Status.SCHEDULED}, Status.EXPIRED),
)


def is_terminal(status: Status) -> bool:
    """Tell whether `status` can never change again."""
    return status in TERMINAL


def sources_of(name: str) -> frozenset[Status]:
    """Return the states from which the transition `name` may start. Unknown names are a bug."""
    (transition,) = (t for t in TRANSITIONS if t.name == name)
    return transition.sources


def may_move(source: Status, target: Status) -> bool:
    """Tell whether any transition leads from `source` to `target`."""
    return any(source in t.sources and target is t.target for t in TRANSITIONS)
