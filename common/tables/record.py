"""The record: executions and their attempts, wide and kept.

Indexed only on what never changes, so that every move of an execution is a HOT update.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Text, Uuid, text
from sqlmodel import Field, SQLModel

from turnstile.common.domain.states import Status
from turnstile.common.tables.columns import STATUS_TYPE, identity, instant, json_column


class Execution(SQLModel, table=True):
    """One run of an action that somebody asked for. `id` is its ticket (P2)."""

    __tablename__ = "execution"
    __table_args__ = (
        Index("ix_execution_action_id", "action_id", "id"),
        Index(
            "uq_execution_idempotency_key",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        # The same message delivered twice is one execution: a hash of message id and body.
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
        CheckConstraint("status <> 'running' OR worker_id IS NOT NULL", name="running_has_worker"),
        CheckConstraint("status NOT IN ('scheduled', 'running') OR attempt > 0", name="granted_has_attempt"),
        CheckConstraint("result IS NULL OR status = 'completed'", name="result_only_when_completed"),
        CheckConstraint("jsonb_typeof(parameters) = 'object'", name="parameters_are_an_object"),
        CheckConstraint("jsonb_typeof(metadata) = 'object'", name="metadata_is_an_object"),
        {"postgresql_with": {"fillfactor": "60"}},
    )

    id: int = identity()
    action_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    status: Status = Field(sa_column=Column(STATUS_TYPE, nullable=False))
    attempt: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Number of its latest grant; 0 before the first."""
    failures: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Attempts that failed and count against `retry.max_attempts`."""
    reclaims: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Attempts whose worker was lost."""
    parameters: Any = json_column(nullable=False, default="'{}'::jsonb")
    metadata_: Any = json_column(nullable=False, default="'{}'::jsonb", name="metadata")
    concurrency_key: str | None = Field(default=None, sa_column=Column(Text))
    idempotency_key: str | None = Field(default=None, sa_column=Column(Text))
    delivery_key: UUID | None = Field(default=None, sa_column=Column(Uuid))
    request_hash: UUID = Field(sa_column=Column(Uuid, nullable=False))
    """Hash of what was asked for: tells a repeated request from a different one under the same key."""
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
    """When it last took its place in the line."""
    scheduled_at: datetime | None = instant()
    started_at: datetime | None = instant()
    completed_at: datetime | None = instant()
    cancel_requested_at: datetime | None = instant()
    run_at: datetime | None = instant()
    expires_at: datetime | None = instant()
    retry_of: int | None = Field(default=None, sa_column=Column(BigInteger))
    """The ended execution that this one was asked to do again."""


class AttemptRecord(SQLModel, table=True):
    """History: one row per claimed grant, written when the claim ends."""

    __tablename__ = "attempt"
    __table_args__ = (CheckConstraint("attempt > 0", name="attempt_positive"),)

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    worker_id: str = Field(sa_column=Column(Text, nullable=False))
    outcome: str = Field(sa_column=Column(Text, nullable=False))
    """The terminal status the attempt earned, or `retried`, `reclaimed`, `handed_back`."""
    error_type: str | None = Field(default=None, sa_column=Column(Text))
    error_message: str | None = Field(default=None, sa_column=Column(Text))
    log: str | None = Field(default=None, sa_column=Column(Text))
    """What is left of its log behind the pieces in `attempt_log`."""
    log_start: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """How many characters of the log came before `log`."""
    granted_at: datetime = instant(nullable=False)
    started_at: datetime = instant(nullable=False)
    ended_at: datetime = instant(nullable=False)
