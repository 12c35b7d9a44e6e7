"""Worker processes and their leases (P6)."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import BRISK_VACUUM, instant


class Worker(SQLModel, table=True):
    """One worker process. A restart is a new worker."""

    __tablename__ = "worker"
    __table_args__ = (
        CheckConstraint("concurrency >= 1", name="concurrency_positive"),
        CheckConstraint("offers_per_message >= 1", name="offers_per_message_positive"),
        # Workers that may still renew.
        Index("ix_worker_live", "id", postgresql_where=text("lost_at IS NULL AND stopped_at IS NULL")),
        # Workers that stopped or were lost, the oldest first, for pruning.
        Index(
            "ix_worker_gone",
            "started_at",
            postgresql_where=text("lost_at IS NOT NULL OR stopped_at IS NOT NULL"),
        ),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    id: str = Field(sa_column=Column(Text, primary_key=True))
    name: str = Field(sa_column=Column(Text, nullable=False))
    host: str = Field(sa_column=Column(Text, nullable=False))
    pid: int = Field(sa_column=Column(Integer, nullable=False))
    pools: list[str] = Field(sa_column=Column(ARRAY(Text), nullable=False))
    concurrency: int = Field(sa_column=Column(Integer, nullable=False))
    served_refs: list[str] | None = Field(default=None, sa_column=Column(ARRAY(Text)))
    """The actions whose code it has. None: unknown, it counts for all actions of its pools."""
    offers_per_message: int = Field(
        default=1, sa_column=Column(Integer, nullable=False, server_default=text("1"))
    )
    """The largest number of offers that it takes in one message."""
    version: str | None = Field(default=None, sa_column=Column(Text))
    """The version of Turnstile that it runs. None, as in the next fields: it did not say so."""
    drain_seconds: float | None = None
    """After a request to drain, it hands back after this time what still runs."""
    stop_grace_seconds: float | None = None
    """After a request to stop an attempt, it kills the attempt after this time."""
    start_notes: list[str] | None = Field(default=None, sa_column=Column(ARRAY(Text)))
    """The warnings and errors that it logged before it registered."""
    schema_ids: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """Rows of `action_schema`, one for each action of its code. An action without one takes everything."""
    started_at: datetime = instant(nullable=False, default_now=True)
    renewed_at: datetime = instant(nullable=False, default_now=True)
    """When it registered; once it has stopped or was lost: when it last renewed its lease."""
    lease_expires_at: datetime = instant(nullable=False)
    """The end of its first lease; once it has stopped or was lost: of its last one."""
    draining_at: datetime | None = instant()
    """When draining was requested."""
    draining_count: int | None = Field(default=None, sa_column=Column(Integer))
    """Number of attempts that it held then."""
    stopped_at: datetime | None = instant()
    """When it stopped in good order."""
    lost_at: datetime | None = instant()
    """When its lease was found to be over and its attempts were reclaimed. A lost worker cannot renew."""


class WorkerLease(SQLModel, table=True):
    """One version of the lease of a worker that has not stopped. The newest version counts.

    A renewal writes a new version and leaves the worker's row unchanged, so that a claim, which locks that
    row, does not read all earlier renewals under an old snapshot (P15).
    """

    __tablename__ = "worker_lease"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    worker_id: str = Field(sa_column=Column(Text, primary_key=True))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    renewed_at: datetime = instant(nullable=False)
    expires_at: datetime = instant(nullable=False)
    not_ready: str | None = Field(default=None, sa_column=Column(Text))
    """Why the worker could run nothing when it renewed. None: it could."""
