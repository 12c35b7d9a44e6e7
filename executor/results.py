"""Values that the SQL functions of the executor take and return, and the decoding of their rows. Pure.

In: rows of `executor.protocol`. Out: verdicts, grants, moves and counts. `queue_manager`, `dispatcher` and
the listeners work on these values only. Those that exist once per execution are named tuples, which take a
fifth of the time of a frozen dataclass to create.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Self
from uuid import UUID

import asyncpg
from pydantic_core import to_json

from turnstile.common.broker.delivery import Delivery
from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.domain.states import Status
from turnstile.common.messages import ExecutionRequested


class Admission(NamedTuple):
    """One validated request to be admitted. Its JSON is packed, because many of them wait at once."""

    action_ref: str
    parameters_json: bytes
    metadata_json: bytes
    concurrency_key: str | None
    idempotency_key: str | None
    priority: int | None
    """None: not given, so that the action decides."""
    run_at: datetime | None
    timeout: float | None
    ttl: float | None
    callback_url: str | None
    request_hash: UUID
    delivery_key: UUID | None = None
    traceparent: str | None = None
    may_be_urgent: bool = False
    """The `priority_min` of the action does not bind the submitter."""

    @classmethod
    def of(
        cls,
        request: ExecutionRequested,
        request_hash: UUID,
        *,
        delivery_key: UUID | None = None,
        traceparent: str | None = None,
        may_be_urgent: bool = False,
    ) -> Self:
        """Pack a validated request."""
        return cls(
            action_ref=request.action_ref,
            parameters_json=to_json(request.parameters),
            metadata_json=to_json(request.metadata),
            concurrency_key=request.concurrency_key,
            idempotency_key=request.idempotency_key,
            priority=request.priority if "priority" in request.model_fields_set else None,
            run_at=request.run_at,
            timeout=request.timeout,
            ttl=request.ttl,
            callback_url=request.callback_url,
            request_hash=request_hash,
            delivery_key=delivery_key,
            traceparent=traceparent,
            may_be_urgent=may_be_urgent,
        )

    @property
    def size_bytes(self) -> int:
        """Size of the fields that can be large."""
        return len(self.parameters_json) + len(self.metadata_json)


class Accepted(NamedTuple):
    """The execution is stored."""

    execution_id: ExecutionId
    status: Status
    position: int | None
    """Position in its queue, from 1; None when the execution is not queued."""
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The request was not stored."""

    code: Code
    message: str


Verdict = Accepted | Rejected


class Grant(NamedTuple):
    """A slot granted to one attempt."""

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    pool: str
    traceparent: str | None = None
    waited_seconds: float | None = None
    """Time in the queue, on the database's clock; None where the offer is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """The grants of one statement, and the queues that have more free slots and waiting executions."""

    granted: list[Grant]
    more_queue_ids: list[QueueId] = field(default_factory=list)

    def __add__(self, other: "Grants") -> "Grants":
        """Join the grants of two statements."""
        return Grants(
            granted=self.granted + other.granted, more_queue_ids=self.more_queue_ids + other.more_queue_ids
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A status change that the executor made."""

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
    """Result of one retry request."""

    retry_of: ExecutionId
    previous_status: Status | None
    """Status of the execution to retry; None where there is no such execution."""
    action_ref: str | None
    verdict: Verdict | None
    """Verdict on the new request; None where the execution is unknown or has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """Result of a request to delete an action."""

    deleted: bool
    waiting: int
    """Executions that were waiting at that moment."""
    running: int
    ended: list[Move]
    """Waiting executions that were cancelled together with the action."""


class KeyChange(NamedTuple):
    """Result of storing or deleting the settings of a concurrency key."""

    action_found: bool
    key_found: bool
    """Whether the key had settings before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceDeletion:
    """Result of a request to delete a resource."""

    deleted: bool
    users: int
    """Actions that use it."""
    used_by: list[str]
    """The first of them."""
    held: int
    """Units that executions hold."""
    waiting: int
    """Executions that wait for it."""


class Completion(NamedTuple):
    """One `execution.completed` or status event that frees the slot of an attempt."""

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    status: Status
    is_end: bool
    """True for `execution.completed`; False where the attempt only gave up its slot."""
    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Result of settling a batch of completions."""

    decided: int = 0
    """How many completions this result covers, from the first on; the others have to be settled again."""
    count: int = 0
    early: frozenset[ExecutionId] = frozenset()
    """The finish is not committed yet: try again later."""
    unknown: frozenset[ExecutionId] = frozenset()
    """No such execution: try again a bounded number of times, then dead-letter."""
    refused: dict[tuple[ExecutionId, Attempt], str] = field(default_factory=dict)
    """Refused by the database, with the reason: dead-letter."""
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))
    ids: frozenset[ExecutionId] = frozenset()
    """Executions that this batch settled."""
    callbacks: int = 0
    """Webhooks that became due."""
    blocked: frozenset[ExecutionId] = frozenset()
    """Another database session holds a row that is needed: try again later."""

    def __add__(self, other: "Settled") -> "Settled":
        """Join the results of two halves of a batch."""
        return Settled(
            decided=self.decided + other.decided,
            count=self.count + other.count,
            early=self.early | other.early,
            unknown=self.unknown | other.unknown,
            grants=self.grants + other.grants,
            ids=self.ids | other.ids,
            callbacks=self.callbacks + other.callbacks,
            refused=self.refused | other.refused,
            blocked=self.blocked | other.blocked,
        )


def blocked_verdict(action_ref: str) -> Rejected:
    """Return the verdict on a request whose queue another database session holds."""
    return Rejected(
        code=Code.UNAVAILABLE,
        message=f"action_ref: another database session holds the queue of {action_ref!r}; try again later",
    )


def is_blocked(verdict: Verdict) -> bool:
    """Return whether nothing was decided yet because another database session holds the queue."""
    return isinstance(verdict, Rejected) and verdict.code is Code.UNAVAILABLE


def read_move(row: asyncpg.Record) -> Move:
    """Decode a row of type `turnstile.moved`."""
    return Move(
        execution_id=row["execution_id"],
        attempt=row["attempt"],
        action_id=row["action_id"],
        action_ref=row["action_ref"],
        previous_status=Status(row["previous_status"]),
        status=Status(row["status"]),
        worker_id=row["worker_id"],
        moved_at=row["moved_at"],
    )


def read_moves(rows: Iterable[asyncpg.Record] | None) -> list[Move]:
    """Decode an array of `turnstile.moved`, or a null in its place."""
    return [read_move(row) for row in rows or ()]


def read_grant(row: asyncpg.Record) -> Grant:
    """Decode a row of type `turnstile.granted`."""
    return Grant(
        execution_id=row["execution_id"],
        attempt=row["attempt"],
        action_ref=row["action_ref"],
        pool=row["pool"],
        traceparent=row["traceparent"],
        waited_seconds=row["waited_seconds"],
    )


def read_grants(row: asyncpg.Record) -> Grants:
    """Decode the columns `granted` and `more_queue_ids` of a statement's row."""
    return Grants(
        granted=[read_grant(item) for item in row["granted"] or ()],
        more_queue_ids=list(row["more_queue_ids"] or ()),
    )


def read_verdicts(items: Iterable[asyncpg.Record], admissions: Sequence[Admission]) -> list[Verdict]:
    """Decode the verdicts of `turnstile.admit`, one for each admission."""
    return [
        _read_verdict(item, admission.action_ref, admission.idempotency_key)
        for item, admission in zip(items, admissions, strict=True)
    ]


def read_retried(item: asyncpg.Record, idempotency_key: str | None) -> Retried:
    """Decode one result of `turnstile.retry`."""
    previous = item["previous_status"]
    has_verdict = previous is not None and (item["code"] is not None or item["execution_id"] is not None)
    return Retried(
        retry_of=item["retry_of"],
        previous_status=None if previous is None else Status(previous),
        action_ref=item["action_ref"],
        verdict=_read_verdict(item, item["action_ref"], idempotency_key) if has_verdict else None,
    )


def read_deletion(row: asyncpg.Record) -> Deletion | None:
    """Decode the result of `turnstile.delete_action`; None: there is no such action."""
    if row["running"] is None:
        return None
    return Deletion(
        deleted=row["deleted"],
        waiting=int(row["waiting"]),
        running=row["running"],
        ended=read_moves(row["ended"]),
    )


def read_settled(row: asyncpg.Record, decided: int, grants: Grants) -> Settled:
    """Decode the result of `turnstile.settle` over so many completions."""
    return Settled(
        decided=decided,
        count=row["settled_count"],
        early=frozenset(row["early_ids"] or ()),
        unknown=frozenset(row["unknown_ids"] or ()),
        grants=grants,
        ids=frozenset(row["settled_ids"] or ()),
        callbacks=row["callback_count"],
        blocked=frozenset(row["blocked_ids"] or ()),
    )


def _read_verdict(item: asyncpg.Record, action_ref: str, idempotency_key: str | None) -> Verdict:
    if item["code"] is None:
        return Accepted(
            execution_id=item["execution_id"],
            status=Status(item["status"]),
            position=item["queue_position"],
            duplicate=item["duplicate"],
        )
    match code := Code(item["code"]):
        case Code.UNKNOWN_ACTION:
            message = (
                f"action_ref: no action {action_ref!r}; start a worker that has it, or define it: "
                "executor actions apply FILE"
            )
        case Code.IDEMPOTENCY_CONFLICT:
            message = (
                f"idempotency_key: {idempotency_key!r} already names execution {item['execution_id']}, "
                "which is a different request; use another key, or repeat the same request"
            )
        case Code.QUEUE_FULL:
            message = f"action_ref: the queue of {action_ref!r} is full: {item['detail']}; try again later"
        case Code.UNAVAILABLE:
            return blocked_verdict(action_ref)
        case _:
            message = str(item["detail"])
    return Rejected(code=code, message=message)
