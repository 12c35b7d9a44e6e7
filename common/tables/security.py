"""The audit log of operators' actions, and API tokens."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Column, Index, LargeBinary, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import identity, instant, json_column


class AuditLog(SQLModel, table=True):
    """One action of an operator, written in the transaction of its change.

    The executor's database role may read it. Rows are inserted by `log_operations` and deleted, once they are
    old, by `prune_audit_log`; both run with the rights of their owner.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        Index("ix_audit_log_subject_kind_subject", "subject_kind", "subject", "id"),
        Index("ix_audit_log_actor", "actor", "id"),
        Index("ix_audit_log_recorded_at", "recorded_at"),
        CheckConstraint("channel IN ('api', 'cli', 'dashboard', 'worker', 'database')", name="channel_known"),
    )

    id: int = identity()
    recorded_at: datetime = instant(nullable=False, default_now=True)
    actor: str | None = Field(default=None, sa_column=Column(Text))
    """The name of the API token; `local` without tokens; `worker` for a registration."""
    address: str | None = Field(default=None, sa_column=Column(Text))
    """The address of the client, as the executor saw it."""
    channel: str | None = Field(default=None, sa_column=Column(Text))
    """By which way it came. None: recorded by an earlier version."""
    verb: str = Field(sa_column=Column(Text, nullable=False))
    subject_kind: str = Field(sa_column=Column(Text, nullable=False))
    subject: str = Field(sa_column=Column(Text, nullable=False))
    """The id or name of the subject."""
    action_ref: str | None = Field(default=None, sa_column=Column(Text))
    """The action that the subject is or belongs to."""
    before: Any = json_column(nullable=False, default="'{}'::jsonb")
    """The changed fields with their old values."""
    after: Any = json_column(nullable=False, default="'{}'::jsonb")


class StoredApiToken(SQLModel, table=True):
    """One API token. Rows are never deleted: as long as there is one, the API requires a token."""

    __tablename__ = "api_token"
    __table_args__ = (
        UniqueConstraint("digest"),
        CheckConstraint("role IN ('read', 'submit', 'operate', 'admin')", name="role_known"),
        CheckConstraint("cardinality(scope) > 0", name="scope_not_empty"),
        CheckConstraint("role <> 'admin' OR scope IS NULL", name="admin_without_scope"),
    )

    id: int = identity()
    name: str = Field(sa_column=Column(Text, nullable=False))
    role: str = Field(sa_column=Column(Text, nullable=False))
    scope: list[str] | None = Field(default=None, sa_column=Column(ARRAY(Text)))
    """Prefixes of the actions that it may use. None: all."""
    digest: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """SHA-256 of the token, which is random and long: a slow hash would add nothing."""
    created_at: datetime = instant(nullable=False, default_now=True)
    created_by: str | None = Field(default=None, sa_column=Column(Text))
    expires_at: datetime | None = instant()
    last_used_at: datetime | None = instant()
    """Within a minute."""
    revoked_at: datetime | None = instant()
    revoked_by: str | None = Field(default=None, sa_column=Column(Text))
