"""Webhooks: one delivery per terminal execution with a `callback_url`, and their receivers.

Inserted in the transaction that settles the execution: none is lost and none is written twice (P4).
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Text, Uuid, text
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import BRISK_VACUUM, instant


class WebhookDelivery(SQLModel, table=True):
    """The delivery of one terminal execution to one URL."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state_known"),
        CheckConstraint("(settled_at IS NOT NULL) = (state <> 'pending')", name="settled_iff_not_pending"),
        CheckConstraint("claimed_until IS NULL OR state = 'pending'", name="claimed_while_pending"),
        CheckConstraint("attempts >= 0", name="attempts_not_negative"),
        # One queue per receiver, read from the receiver's bound on.
        Index("ix_webhook_delivery_due", "origin", "due_at", postgresql_where=text("state = 'pending'")),
        # Lists in the API.
        Index("ix_webhook_delivery_state", "state", "execution_id"),
        # Clean-up, the oldest first.
        Index(
            "ix_webhook_delivery_settled_at", "settled_at", postgresql_where=text("settled_at IS NOT NULL")
        ),
        {
            "postgresql_with": {
                "fillfactor": "70",
                "autovacuum_vacuum_scale_factor": "0",
                "autovacuum_vacuum_threshold": "2000",
            }
        },
    )

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    event_id: UUID = Field(sa_column=Column(Uuid, nullable=False, server_default=text("gen_random_uuid()")))
    """The same in every attempt: receivers recognise copies by it."""
    url: str = Field(sa_column=Column(Text, nullable=False))
    origin: str = Field(sa_column=Column(Text, nullable=False))
    """Scheme, host and port of the URL: a receiver that is slow or down delays no other receiver (P9)."""
    state: str = Field(sa_column=Column(Text, nullable=False, server_default="pending"))
    attempts: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Number of claims since the execution ended or the delivery was replayed."""
    due_at: datetime = instant(nullable=False)
    """The earliest instant of the next attempt, and not below `DueWindow.next_at` when it was written."""
    claimed_until: datetime | None = instant()
    """The end of the current claim's lease, which also identifies the claim."""
    last_status: int | None = Field(default=None, sa_column=Column(Integer))
    """The HTTP status of the last response; None without a response."""
    last_error: str | None = Field(default=None, sa_column=Column(Text))
    created_at: datetime = instant(nullable=False)
    """When the execution ended or the delivery was last replayed. Its age counts from here."""
    settled_at: datetime | None = instant()
    """When it was delivered or given up."""


class WebhookReceiver(SQLModel, table=True):
    """A receiver, with the instant below which no delivery to it is pending (P15). Deleted when idle.

    A change writes a new row and deletes the old one.
    """

    __tablename__ = "webhook_receiver"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    origin: str = Field(sa_column=Column(Text, primary_key=True))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """Decreases, so that the newest row is the first in the index."""
    first_at: datetime = instant(nullable=False)
    moved_at: datetime = instant(nullable=False)
    """When this row was written."""
