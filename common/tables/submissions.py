"""Submissions from database sessions: `turnstile.submit` inside a user's own transaction."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Column, Identity, Index, Integer, Text, Uuid
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import BRISK_VACUUM, instant, json_column


class Submission(SQLModel, table=True):
    """One request that is not admitted yet."""

    __tablename__ = "submission"
    __table_args__ = (
        # The documents of 16 MiB that `turnstile.submit` accepts, and 64 KiB for the other fields (P9).
        CheckConstraint("octet_length(request::text) <= 16842752", name="request_is_bounded"),
        CheckConstraint("octet_length(traceparent) <= 55", name="traceparent_is_bounded"),
        {"postgresql_with": BRISK_VACUUM},
    )

    request_id: UUID = Field(sa_column=Column(Uuid, primary_key=True))
    request: Any = json_column(nullable=False)
    """The body of `execution.requested`."""
    traceparent: str | None = Field(default=None, sa_column=Column(Text))
    submitted_at: datetime = instant(nullable=False)
    """When it was called for, not when it was committed."""


class SubmissionLine(SQLModel, table=True):
    """The position of a request in the order of admission, drawn while its transaction commits."""

    __tablename__ = "submission_line"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    ticket: int = Field(default=None, sa_column=Column(BigInteger, Identity(always=False), primary_key=True))
    request_id: UUID = Field(sa_column=Column(Uuid, nullable=False))
    action_ref: str = Field(sa_column=Column(Text, nullable=False))
    request_bytes: int = Field(sa_column=Column(Integer, nullable=False))


class SubmissionOutcome(SQLModel, table=True):
    """What became of a request that has no execution with its id: a rejection, or a duplicate's execution."""

    __tablename__ = "submission_outcome"
    __table_args__ = (
        CheckConstraint("(execution_id IS NULL) = (code IS NOT NULL)", name="admitted_or_rejected"),
        Index("ix_submission_outcome_decided_at", "decided_at"),
    )

    request_id: UUID = Field(sa_column=Column(Uuid, primary_key=True))
    execution_id: int | None = Field(default=None, sa_column=Column(BigInteger))
    code: str | None = Field(default=None, sa_column=Column(Text))
    message: str | None = Field(default=None, sa_column=Column(Text))
    decided_at: datetime = instant(nullable=False)
