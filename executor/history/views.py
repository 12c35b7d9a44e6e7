"""Executions as the reading side sees them: tables and views of the ledger, one class each.

Nothing is created from here: the tables are those of `tables.sql`, and a test compares both.
"""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Column, DateTime, Float, Integer, SmallInteger, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel


def _instant() -> Any:
    return Field(default=None, sa_column=Column(DateTime(timezone=True)))


def _text() -> Any:
    return Field(default=None, sa_column=Column(Text))


def _document(name: str) -> Any:
    return Field(default=None, sa_column=Column(name, JSONB))


def _id() -> Any:
    return Field(sa_column=Column(BigInteger, primary_key=True))


class _Row(SQLModel):
    """One row of the schema `ledger`."""

    __table_args__: ClassVar[Any] = {"schema": "ledger"}


class CurrentExecution(_Row, table=True):
    """An execution as it is now: its record, and until it has ended what other tables know of it."""

    __tablename__ = "current_execution"

    id: int = _id()
    action_ref: str = _text()
    concurrency_key: str | None = _text()
    idempotency_key: str | None = _text()
    priority: int = Field(sa_column=Column(SmallInteger))
    status: str = _text()
    attempt: int = Field(sa_column=Column(Integer))
    parameters: dict[str, Any] = _document("parameters")
    result: Any = _document("result")
    error_type: str | None = _text()
    error_message: str | None = _text()
    details: dict[str, Any] | None = _document("metadata")
    """The metadata; that name is taken in a class of a table."""
    worker_id: str | None = _text()
    created_at: datetime = _instant()
    queued_at: datetime | None = _instant()
    scheduled_at: datetime | None = _instant()
    started_at: datetime | None = _instant()
    completed_at: datetime | None = _instant()
    run_at: datetime | None = _instant()
    expires_at: datetime | None = _instant()
    retry_of: int | None = Field(default=None, sa_column=Column(BigInteger))
    timeout_seconds: float | None = Field(default=None, sa_column=Column(Float))
    cancel_reason: str | None = _text()
    cancel_requested_at: datetime | None = _instant()
    passages: list[Any] | None = _document("passages")


class Execution(_Row, table=True):
    """What the record of an execution has from its admission on, and indexes find."""

    __tablename__ = "execution"

    id: int = _id()
    action_ref: str = _text()
    idempotency_key: str | None = _text()
    created_at: datetime = _instant()


class Live(_Row, table=True):
    """What has a row of its own because more is to be known than that it waits."""

    __tablename__ = "live"

    id: int = _id()


class FirstGrant(_Row, table=True):
    """What was granted once and has no row in `live`."""

    __tablename__ = "first_grant"

    id: int = _id()


class Unfinished(_Row, table=True):
    """What has not ended."""

    __tablename__ = "unfinished"

    id: int = _id()
    action_ref: str = _text()


VIEWS: tuple[type[SQLModel], ...] = (CurrentExecution, Execution, Live, FirstGrant, Unfinished)
"""All classes of this module that describe a table or a view."""
