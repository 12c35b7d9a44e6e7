"""What the queue manager takes and returns, as values: requests, verdicts, grants, moves.

Next: `queue_manager` produces them, `hand_over` tells the workers and the world.
"""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from common.domain.errors import Code
from common.domain.identifiers import Attempt, ExecutionId, QueueId
from common.domain.states import Status
from common.messages import ExecutionRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One checked request, on its way into the record."""

    request: ExecutionRequested
    request_hash: UUID
    delivery_key: UUID | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """It is in the record."""

    execution_id: ExecutionId
    status: Status
    position: int | None
    """Place in line, from 1; None when it does not wait in line."""
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """It is not in the record."""

    code: Code
    message: str


Verdict = Accepted | Rejected


def held(action_ref: str) -> Rejected:
    """Return the verdict on a request whose queue another database session holds."""
    return Rejected(
        code=Code.UNAVAILABLE,
        message=f"action_ref: another database session holds the queue of {action_ref!r}; try again later",
    )


def is_held(verdict: Verdict) -> bool:
    """Tell whether nothing was decided: another database session holds the queue, for now."""
    return isinstance(verdict, Rejected) and verdict.code is Code.UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A slot was given to this attempt."""

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    pool: str
    traceparent: str | None = None
    waited_seconds: float | None = None
    """In line, on the database's clock; None where it is offered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What one statement granted, and the queues that could take still more."""

    granted: list[Grant]
    more_queue_ids: list[QueueId] = field(default_factory=list)

    def plus(self, other: "Grants") -> "Grants":
        """Return the grants of both."""
        return Grants(
            granted=self.granted + other.granted, more_queue_ids=self.more_queue_ids + other.more_queue_ids
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An execution that moved without a worker's doing. `status` is None where there is no such execution."""

    execution_id: ExecutionId
    attempt: Attempt
    action_id: int
    action_ref: str
    previous_status: Status
    status: Status
    worker_id: str | None
    moved_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What became of one request to do an ended execution again."""

    retry_of: ExecutionId
    previous_status: Status | None
    """How that one ended, or where it stands while it has not; None where there is none."""
    action_ref: str | None
    verdict: Verdict | None
    """What became of the new request; None where none was made: it has not ended, or is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What became of a request to delete an action."""

    deleted: bool
    waiting: int
    """Executions that waited then."""
    running: int
    ended: list[Move]
    """Those that waited, ended with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of a batch of completions."""

    count: int
    early: frozenset[ExecutionId]
    """Its finish is not committed yet: to be tried again later."""
    unknown: frozenset[ExecutionId]
    """No such execution: to be tried again a few times, then to the dead letters."""
    grants: Grants
    ids: frozenset[ExecutionId]
    """Those that this very batch settled."""
    callbacks: int
    """Webhooks that became due with it."""
    held: frozenset[ExecutionId] = frozenset()
    """Another database session holds what they need: to be tried again later."""
