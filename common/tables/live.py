"""What is live: the lines, the held slots, the ends not told yet, the deadlines.

Slim tables, whose size follows the load and not the history.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, Text, Uuid
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import identity, instant

# These tables turn over completely all the time: vacuum by count of dead rows, not by share.
_BRISK_VACUUM = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "2000",
    "autovacuum_vacuum_cost_delay": "0",
}


class Waiting(SQLModel, table=True):
    """The line itself: read in the order of its primary key."""

    __tablename__ = "waiting"
    __table_args__ = ({"postgresql_with": _BRISK_VACUUM},)

    queue_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))


class Slot(SQLModel, table=True):
    """One held slot (P1): from the grant until the settle of the finished attempt."""

    __tablename__ = "slot"
    __table_args__ = (
        # Backs the limit: under a limit slots are numbered from 1, so two grants that wrongly saw
        # the same free slot collide here instead of overshooting. It also counts a queue's slots.
        Index("uq_slot_number", "queue_id", "slot_number", unique=True),
        CheckConstraint("slot_number >= 1", name="number_positive"),
        CheckConstraint("attempt >= 1", name="attempt_positive"),
        CheckConstraint("(worker_id IS NULL) = (claimed_at IS NULL)", name="claimed_by_a_worker"),
        {"postgresql_with": {"fillfactor": "50", **_BRISK_VACUUM}},
    )

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    slot_number: int | None = Field(default=None, sa_column=Column(Integer))
    """None where the queue has no limit."""
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    worker_id: str | None = Field(default=None, sa_column=Column(Text))
    granted_at: datetime = instant(nullable=False)
    offered_at: datetime | None = instant()
    """When `execution.scheduled` was last due for publishing; None: withheld until a worker serves it."""
    claimed_at: datetime | None = instant()
    finished_at: datetime | None = instant()
    """When the attempt ended; from then on the slot only waits to be settled."""
    told_at: datetime | None = instant()
    """When `execution.completed` was last due for publishing."""
    overdue_at: datetime | None = instant()
    """From when on the attempt should have stopped: its timeout is over, or somebody asked for its end."""
    stops_asked: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """How often the watchdog has told the worker to stop it."""


class UntoldEnd(SQLModel, table=True):
    """An execution that ended while it waited, and whose completion has not come round yet (P4).

    A slot beside it is one that the attempt before its end left unsettled.
    """

    __tablename__ = "untold_end"
    __table_args__ = ({"postgresql_with": _BRISK_VACUUM},)

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    told_at: datetime = instant(nullable=False)


class UntoldStop(SQLModel, table=True):
    """A lost worker's attempt that was taken back; the worker has not been told to stop it yet (P6)."""

    __tablename__ = "untold_stop"
    __table_args__ = ({"postgresql_with": _BRISK_VACUUM},)

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    worker_id: str = Field(sa_column=Column(Text, nullable=False))
    noted_at: datetime = instant(nullable=False)


class Delayed(SQLModel, table=True):
    """An execution that is not due yet: read in the order of `due_at`."""

    __tablename__ = "delayed"
    __table_args__ = (Index("ix_delayed_due_at", "due_at"), {"postgresql_with": _BRISK_VACUUM})

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    due_at: datetime = instant(nullable=False)


class Expiring(SQLModel, table=True):
    """A deadline for a start. Removed when it has passed, whatever became of the execution."""

    __tablename__ = "expiring"
    __table_args__ = (Index("ix_expiring_expires_at", "expires_at"), {"postgresql_with": _BRISK_VACUUM})

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    expires_at: datetime = instant(nullable=False)


class EarlyCancel(SQLModel, table=True):
    """A request to stop an execution that is not in the record, kept until it is or for about 30 s."""

    __tablename__ = "early_cancel"
    __table_args__ = (
        CheckConstraint("(execution_id IS NULL) <> (idempotency_key IS NULL)", name="names_one_execution"),
        Index("ix_early_cancel_kept_until", "kept_until"),
        # A message delivered twice is kept once.
        Index("uq_early_cancel_message_key", "message_key", unique=True),
        {"postgresql_with": _BRISK_VACUUM},
    )

    id: int = identity()
    execution_id: int | None = Field(default=None, sa_column=Column(BigInteger))
    idempotency_key: str | None = Field(default=None, sa_column=Column(Text))
    reason: str | None = Field(default=None, sa_column=Column(Text))
    message_key: UUID | None = Field(default=None, sa_column=Column(Uuid))
    """Hash of the message's id and content; None where it has no id."""
    messages: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """What is published if the execution stays unknown: the answer, and the dead letter."""
    kept_until: datetime = instant(nullable=False)
