"""Executions and their history: attempts, logs, and the counts of what was pruned or deleted.

Wide rows, kept until retention prunes them. `execution` has indexes only on columns that never change, so
that every update of its status is a HOT update.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, SmallInteger, Text, Uuid, text
from sqlmodel import Field, SQLModel

from turnstile.common.domain.states import Status
from turnstile.common.tables.columns import STATUS_TYPE, identity, instant, json_column

_EARLY_VACUUM = {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_insert_scale_factor": "0.05"}


class Execution(SQLModel, table=True):
    """One requested run of an action. The order of `id` is the order of its queue (P2).

    Written at its admission, and when one of its attempts ends. From a grant until then `slot` has its state.
    The view `turnstile.current_execution` joins both.
    """

    __tablename__ = "execution"
    __table_args__ = (
        Index("ix_execution_action_id", "action_id", "id"),
        Index(
            "uq_execution_idempotency_key",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        # A message that is delivered twice is one execution. The key is a hash of message id and body.
        Index(
            "uq_execution_delivery_key",
            "delivery_key",
            unique=True,
            postgresql_where=text("delivery_key IS NOT NULL"),
        ),
        CheckConstraint("attempt >= 0", name="attempt_not_negative"),
        CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN "
            "('completed', 'failed', 'timeout', 'cancelled', 'expired', 'abandoned'))",
            name="completed_at_iff_terminal",
        ),
        CheckConstraint("status NOT IN ('scheduled', 'running')", name="granted_in_slot"),
        CheckConstraint("result IS NULL OR status = 'completed'", name="result_only_when_completed"),
        CheckConstraint("jsonb_typeof(parameters) = 'object'", name="parameters_are_an_object"),
        CheckConstraint("jsonb_typeof(metadata) = 'object'", name="metadata_is_an_object"),
        CheckConstraint("priority BETWEEN 1 AND 5", name="priority_known"),
        {"postgresql_with": {"fillfactor": "60"}},
    )

    id: int = identity()
    action_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    status: Status = Field(sa_column=Column(STATUS_TYPE, nullable=False))
    """Also `queued` while a slot is held for its current attempt."""
    attempt: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Number of the last attempt that has ended; 0 before. The slot has the number of the current one."""
    failures: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Number of failed attempts, which count against `retry.max_attempts`."""
    reclaims: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Number of attempts whose worker was lost."""
    parameters: Any = json_column(nullable=False, default="'{}'::jsonb")
    metadata_: Any = json_column(nullable=False, default="'{}'::jsonb", name="metadata")
    concurrency_key: str | None = Field(default=None, sa_column=Column(Text))
    idempotency_key: str | None = Field(default=None, sa_column=Column(Text))
    delivery_key: UUID | None = Field(default=None, sa_column=Column(Uuid))
    request_hash: UUID = Field(sa_column=Column(Uuid, nullable=False))
    """Hash of the request: distinguishes a repeated request from a different one with the same key."""
    result: Any = json_column(nullable=True)
    error_type: str | None = Field(default=None, sa_column=Column(Text))
    error_message: str | None = Field(default=None, sa_column=Column(Text))
    worker_id: str | None = Field(default=None, sa_column=Column(Text))
    timeout_seconds: float | None = None
    callback_url: str | None = Field(default=None, sa_column=Column(Text))
    traceparent: str | None = Field(default=None, sa_column=Column(Text))
    cancel_reason: str | None = Field(default=None, sa_column=Column(Text))
    created_at: datetime = instant(nullable=False, default_now=True)
    queued_at: datetime | None = instant()
    """When it last entered its queue."""
    scheduled_at: datetime | None = instant()
    started_at: datetime | None = instant()
    completed_at: datetime | None = instant()
    cancel_requested_at: datetime | None = instant()
    run_at: datetime | None = instant()
    expires_at: datetime | None = instant()
    retry_of: int | None = Field(default=None, sa_column=Column(BigInteger))
    """The terminal execution that this one retries."""
    priority: int = Field(default=3, sa_column=Column(SmallInteger, nullable=False, server_default=text("3")))
    """1 is first, 5 is last."""
    gates: Any = json_column(nullable=True)
    """The gates that its last attempt passed: objects with `gate`, `units`, `arrived_at`, `passed_at`."""


class AttemptRecord(SQLModel, table=True):
    """A claimed attempt that was followed by another one or left a log. `Execution` has the last one."""

    __tablename__ = "attempt"
    __table_args__ = (CheckConstraint("attempt > 0", name="attempt_positive"),)

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    worker_id: str = Field(sa_column=Column(Text, nullable=False))
    outcome: str = Field(sa_column=Column(Text, nullable=False))
    """The terminal status that the attempt reached, or `retried`, `reclaimed`, `handed_back`."""
    error_type: str | None = Field(default=None, sa_column=Column(Text))
    error_message: str | None = Field(default=None, sa_column=Column(Text))
    log: str | None = Field(default=None, sa_column=Column(Text))
    """The rest of its log after the pieces in `attempt_log`."""
    log_start: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """Number of characters of the log before `log`."""
    granted_at: datetime = instant(nullable=False)
    started_at: datetime = instant(nullable=False)
    ended_at: datetime = instant(nullable=False)


class AttemptLogPiece(SQLModel, table=True):
    """A piece of the log of a running attempt, read in the order of the primary key.

    Of a long log the oldest pieces are deleted. `attempt.log` holds what was left at the end.
    """

    __tablename__ = "attempt_log"
    __table_args__ = ({"postgresql_with": _EARLY_VACUUM},)

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    start: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """Number of characters of the log before this piece."""
    at: datetime = instant(nullable=False)
    """When it was stored."""
    text: str = Field(sa_column=Column(Text, nullable=False))


class AttemptProgress(SQLModel, table=True):
    """How far an attempt says that it has come: the row with the highest version.

    A new version deletes the one before it, so that an old snapshot makes no read slower (P15).
    """

    __tablename__ = "attempt_progress"
    __table_args__ = (
        CheckConstraint(
            "done >= 0 AND done < 'Infinity' AND (total IS NULL OR total >= 0 AND total < 'Infinity')",
            name="amounts_are_finite",
        ),
        {"postgresql_with": _EARLY_VACUUM},
    )

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    done: float
    total: float | None = None
    message: str | None = Field(default=None, sa_column=Column(Text))
    updated_at: datetime = instant(nullable=False)


class PrunedCount(SQLModel, table=True):
    """The number of pruned executions of a queue.

    A separate table, not a column of `action_queue`: pruning takes no lock that a grant waits for.
    """

    __tablename__ = "pruned_count"
    __table_args__ = (CheckConstraint("executions >= 0", name="executions_not_negative"),)

    queue_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    executions: int = Field(sa_column=Column(BigInteger, nullable=False))


class DeletedQueueTotal(SQLModel, table=True):
    """The totals of an action's deleted queues. Only idle queues of concurrency keys are deleted.

    A separate table, not columns of `action`: an admission locks that row to create a queue.
    """

    __tablename__ = "deleted_queue_total"
    __table_args__ = (CheckConstraint("pruned >= 0 AND pruned <= executions", name="pruned_were_counted"),)

    action_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    executions: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of enqueued executions. A queue is deleted only when all of them are terminal and settled."""
    pruned: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of those that were pruned."""
    updated_at: datetime = instant(nullable=False)
    """The latest `updated_at` of the deleted queues."""
