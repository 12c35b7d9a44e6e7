"""What the queue manager takes and returns, as values: requests, verdicts, grants, moves.

Next: `queue_manager` produces them, `hand_over` tells the workers and the world.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Self
from uuid import UUID

from pydantic_core import to_json

from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.domain.states import Status
from turnstile.common.messages import ExecutionRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One checked request, on its way into the record: packed, since many of them wait at once."""

    action_ref: str
    parameters_json: bytes
    metadata_json: bytes
    concurrency_key: str | None
    idempotency_key: str | None
    run_at: datetime | None
    timeout: float | None
    ttl: float | None
    callback_url: str | None
    request_hash: UUID
    delivery_key: UUID | None = None
    traceparent: str | None = None

    @classmethod
    def of(
        cls,
        request: ExecutionRequested,
        request_hash: UUID,
        *,
        delivery_key: UUID | None = None,
        traceparent: str | None = None,
    ) -> Self:
        """Pack a checked request."""
        return cls(
            action_ref=request.action_ref,
            parameters_json=to_json(request.parameters),
            metadata_json=to_json(request.metadata),
            concurrency_key=request.concurrency_key,
            idempotency_key=request.idempotency_key,
            run_at=request.run_at,
            timeout=request.timeout,
            ttl=request.ttl,
            callback_url=request.callback_url,
            request_hash=request_hash,
            delivery_key=delivery_key,
            traceparent=traceparent,
        )

    @property
    def size_bytes(self) -> int:
        """What it holds that can be large."""
        return len(self.parameters_json) + len(self.metadata_json)


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

    def __add__(self, other: "Grants") -> "Grants":
        """Return both halves of a batch that was divided."""
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

    decided: int = 0
    """How many of them it says something about, from the first on; the others are to be settled again."""
    count: int = 0
    early: frozenset[ExecutionId] = frozenset()
    """Its finish is not committed yet: to be tried again later."""
    unknown: frozenset[ExecutionId] = frozenset()
    """No such execution: to be tried again a few times, then to the dead letters."""
    refused: dict[tuple[ExecutionId, Attempt], str] = field(default_factory=dict)
    """What the database would not settle, and why: to the dead letters."""
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))
    ids: frozenset[ExecutionId] = frozenset()
    """Those that this very batch settled."""
    callbacks: int = 0
    """Webhooks that became due with it."""
    held: frozenset[ExecutionId] = frozenset()
    """Another database session holds what they need: to be tried again later."""

    def __add__(self, other: "Settled") -> "Settled":
        """Return both halves of a batch that was divided."""
        return Settled(
            decided=self.decided + other.decided,
            count=self.count + other.count,
            early=self.early | other.early,
            unknown=self.unknown | other.unknown,
            grants=self.grants + other.grants,
            ids=self.ids | other.ids,
            callbacks=self.callbacks + other.callbacks,
            refused=self.refused | other.refused,
            held=self.held | other.held,
        )
