"""Dead letters: messages that no service could use, drained from the broker and kept for an operator."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
)
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import identity, instant, json_column


class DeadLetter(SQLModel, table=True):
    """One dead-lettered message and the reason. Values that AMQP does not bound are truncated."""

    __tablename__ = "dead_letter"
    __table_args__ = (
        # A dead letter that is redelivered after it was stored is no second row.
        UniqueConstraint("fingerprint"),
        CheckConstraint("octet_length(body) <= body_bytes", name="body_within_its_size"),
        CheckConstraint("octet_length(body) <= stored_bytes", name="body_within_what_is_stored"),
        CheckConstraint("tries >= 0", name="tries_not_negative"),
        # Lists and replays, of one code or of all, in the order of `died_at`.
        Index("ix_dead_letter_died_at", "died_at", "id"),
        Index("ix_dead_letter_code", "code", "died_at", "id"),
        Index("ix_dead_letter_message_id", "message_id"),
        # Retention sums up the sizes from the index alone.
        Index("ix_dead_letter_size", "id", postgresql_include=["stored_bytes"]),
        {
            "postgresql_with": {
                "autovacuum_vacuum_scale_factor": "0.02",
                "autovacuum_vacuum_insert_scale_factor": "0.05",
            }
        },
    )

    id: int = identity()
    fingerprint: str = Field(sa_column=Column(Text, nullable=False))
    """Hash of the message and of its dead-lettering: equal for redeliveries and copies."""
    code: str = Field(sa_column=Column(Text, nullable=False))
    error: str = Field(sa_column=Column(Text, nullable=False))
    type: str | None = Field(default=None, sa_column=Column(Text))
    message_id: str | None = Field(default=None, sa_column=Column(Text))
    correlation_id: str | None = Field(default=None, sa_column=Column(Text))
    app_id: str | None = Field(default=None, sa_column=Column(Text))
    reply_to: str | None = Field(default=None, sa_column=Column(Text))
    content_type: str | None = Field(default=None, sa_column=Column(Text))
    exchange: str = Field(sa_column=Column(Text, nullable=False))
    routing_key: str = Field(sa_column=Column(Text, nullable=False))
    original_routing_key: str = Field(sa_column=Column(Text, nullable=False))
    """The routing key of a replay."""
    tries: int = Field(sa_column=Column(Integer, nullable=False))
    published_at: datetime | None = instant()
    died_at: datetime = instant(nullable=False)
    """When it was dead-lettered; the time of storing if the message does not have it."""
    stored_at: datetime = instant(nullable=False)
    headers: Any = json_column(nullable=False)
    body: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """The body. Truncated if it is larger than any message that can be consumed."""
    body_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Size of the complete body."""
    stored_bytes: int = Field(sa_column=Column(Integer, nullable=False))
    """Uncompressed size of this row, which counts against the bound on all dead letters."""
