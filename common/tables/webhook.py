"""Calls back to whoever asked for them: one delivery per ended execution with a `callback_url`.

Written in the transaction that settles the end, so that none is lost and none is written twice (P4).
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Text, Uuid, text
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import instant


class WebhookDelivery(SQLModel, table=True):
    """The end of one execution, on its way to one URL."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state_known"),
        CheckConstraint("(settled_at IS NOT NULL) = (state <> 'pending')", name="settled_iff_not_pending"),
        CheckConstraint("claimed_until IS NULL OR state = 'pending'", name="claimed_while_pending"),
        CheckConstraint("attempts >= 0", name="attempts_not_negative"),
        # Each receiver's line: a claim steps from receiver to receiver, past all that waits for each.
        Index("ix_webhook_delivery_due", "origin", "due_at", postgresql_where=text("state = 'pending'")),
        # The lists that people look at.
        Index("ix_webhook_delivery_state", "state", "execution_id"),
        # What may be cleaned up, the oldest first.
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
    """The same in every attempt: what a receiver knows a copy by."""
    url: str = Field(sa_column=Column(Text, nullable=False))
    origin: str = Field(sa_column=Column(Text, nullable=False))
    """Scheme, host and port of the URL: one receiver that is slow or gone holds up no other (P9)."""
    state: str = Field(sa_column=Column(Text, nullable=False, server_default="pending"))
    attempts: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Claims since it was last made due from outside: by the end, or by a replay."""
    due_at: datetime = instant(nullable=False)
    """Not before this instant."""
    claimed_until: datetime | None = instant()
    """The lease of whoever is just delivering it; it also tells one claim from another."""
    last_status: int | None = Field(default=None, sa_column=Column(Integer))
    """The HTTP status of the last answer; None where there was none."""
    last_error: str | None = Field(default=None, sa_column=Column(Text))
    created_at: datetime = instant(nullable=False)
    """Its end, or its last replay: from then on its age counts."""
    settled_at: datetime | None = instant()
    """When it was delivered, or given up."""
