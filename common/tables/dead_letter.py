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
    """One message, as it came, and why it died. What AMQP does not bound is cut before it is stored."""

    __tablename__ = "dead_letter"
    __table_args__ = (
        # A letter that is delivered again after it was stored is no second row.
        UniqueConstraint("fingerprint"),
        CheckConstraint("octet_length(body) <= body_bytes", name="body_within_its_size"),
        CheckConstraint("octet_length(body) <= stored_bytes", name="body_within_what_is_stored"),
        CheckConstraint("tries >= 0", name="tries_not_negative"),
        # Lists and replays go in the order of the deaths, of one code or of all.
        Index("ix_dead_letter_died_at", "died_at", "id"),
        Index("ix_dead_letter_code", "code", "died_at", "id"),
        Index("ix_dead_letter_message_id", "message_id"),
        # Retention adds up the sizes of all rows without reading them.
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
    """A hash of the message and of its death: the same for each delivery and each copy of one letter."""
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
    """The key that a replay publishes it with."""
    tries: int = Field(sa_column=Column(Integer, nullable=False))
    published_at: datetime | None = instant()
    died_at: datetime = instant(nullable=False)
    """When it was stored, where the message does not say."""
    stored_at: datetime = instant(nullable=False)
    headers: Any = json_column(nullable=False)
    body: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """The whole body, or its beginning where the body is larger than any message that can be taken."""
    body_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Size of the whole body."""
    stored_bytes: int = Field(sa_column=Column(Integer, nullable=False))
    """Size of this row, uncompressed: what the bound on all letters counts."""
