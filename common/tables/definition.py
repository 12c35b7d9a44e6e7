"""Actions, and one row per queue (an action, or an action and a concurrency key).

The row of `action_queue` is the lock that serialises admission and grant of its line (P1, P2). It
carries the action's limit and pause, so that a grant decides from the one row it has locked.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import identity, instant, json_column


class Action(SQLModel, table=True):
    """What can be run, and under which rules."""

    __tablename__ = "action"
    __table_args__ = (
        UniqueConstraint("ref"),
        CheckConstraint("max_concurrent >= 0", name="limit_not_negative"),
        CheckConstraint("max_queued >= 0", name="max_queued_not_negative"),
        CheckConstraint("keep_for_seconds >= 0 AND keep_count >= 0", name="keeps_not_negative"),
        CheckConstraint("timeout_seconds >= 0 AND ttl_seconds >= 0", name="durations_not_negative"),
        CheckConstraint("runner IN ('python', 'command', 'http')", name="runner_known"),
        CheckConstraint("on_worker_lost IN ('requeue', 'abandon')", name="on_worker_lost_known"),
        CheckConstraint("when_full IN ('enqueue', 'reject')", name="when_full_known"),
        CheckConstraint("retry_max_attempts >= 1 AND max_reclaims >= 0", name="counts_not_negative"),
        # What the watchdog asks at every tick: mostly nothing.
        Index(
            "ix_action_rollout",
            "id",
            postgresql_where=text("rollout_from_key IS NOT NULL OR rollout_held_ids IS NOT NULL"),
        ),
    )

    id: int = identity()
    ref: str = Field(sa_column=Column(Text, nullable=False))
    runner: str = Field(sa_column=Column(Text, nullable=False, server_default="python"))
    entrypoint: Any = json_column(nullable=True)
    max_concurrent: int | None = Field(default=None, sa_column=Column(Integer))
    concurrency_key: str | None = Field(default=None, sa_column=Column(Text))
    concurrency_key_path: list[str] | None = Field(default=None, sa_column=Column(ARRAY(Text)))
    submitter_keys: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Requests may name concurrency keys of their own: each such key has a queue with the action's limit."""
    timeout_seconds: float | None = None
    ttl_seconds: float | None = None
    callback_url: str | None = Field(default=None, sa_column=Column(Text))
    """Where the ends of its executions are POSTed to, unless the request names another URL."""
    keep_for_seconds: float | None = None
    """How long its ended executions are kept; None: as long as the setting says."""
    keep_count: int | None = Field(default=None, sa_column=Column(Integer))
    """How many of them are kept at most; None: as many as the setting says."""
    retry_max_attempts: int = Field(default=1, sa_column=Column(Integer, nullable=False, server_default="1"))
    retry_delay_seconds: float = Field(default=1.0, sa_column_kwargs={"server_default": "1"})
    retry_factor: float = Field(default=2.0, sa_column_kwargs={"server_default": "2"})
    retry_max_delay_seconds: float = Field(default=300.0, sa_column_kwargs={"server_default": "300"})
    retry_jitter: float = Field(default=0.1, sa_column_kwargs={"server_default": "0.1"})
    on_worker_lost: str = Field(sa_column=Column(Text, nullable=False, server_default="requeue"))
    max_reclaims: int = Field(default=5, sa_column=Column(Integer, nullable=False, server_default="5"))
    pool: str = Field(sa_column=Column(Text, nullable=False, server_default="default"))
    when_full: str = Field(sa_column=Column(Text, nullable=False, server_default="enqueue"))
    max_queued: int | None = Field(default=None, sa_column=Column(Integer))
    paused: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    created_at: datetime = instant(nullable=False, default_now=True)
    updated_at: datetime = instant(nullable=False, default_now=True)
    rollout_from_key: str | None = Field(default=None, sa_column=Column(Text))
    """A changed limit or pause is brought to the queues in the order of their keys, some at a time.

    This key is the next; None: all have it.
    """
    rollout_held_ids: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """Queues that were passed by, since another database session held them."""
    deleted_at: datetime | None = instant()
    """When it was deleted. Its row stays: the record names it, and its name may come back."""


class ActionChange(SQLModel, table=True):
    """Who changed an action, when and how; written in the transaction of the change."""

    __tablename__ = "action_change"
    __table_args__ = (
        Index("ix_action_change_action_ref", "action_ref", "id"),
        CheckConstraint(
            "change IN ('created', 'changed', 'limit_changed', 'paused', 'resumed', 'deleted')",
            name="change_known",
        ),
    )

    id: int = identity()
    action_ref: str = Field(sa_column=Column(Text, nullable=False))
    changed_at: datetime = instant(nullable=False, default_now=True)
    changed_by: str | None = Field(default=None, sa_column=Column(Text))
    """The name of the token that asked, `local` without tokens, `worker` where one registered it."""
    change: str = Field(sa_column=Column(Text, nullable=False))
    old: Any = json_column(nullable=False, default="'{}'::jsonb")
    """The fields that differ, as they were."""
    new: Any = json_column(nullable=False, default="'{}'::jsonb")


class ActionQueue(SQLModel, table=True):
    """One line. Locked, in ascending id, before anything is admitted to it or granted from it."""

    __tablename__ = "action_queue"
    __table_args__ = (
        UniqueConstraint("action_id", "concurrency_key"),
        CheckConstraint("depth >= 0", name="depth_not_negative"),
        CheckConstraint("total_completed >= 0 AND total_completed <= total_enqueued", name="totals_ordered"),
        CheckConstraint("max_concurrent >= 0", name="limit_not_negative"),
        # Every batch updates these rows: free space keeps the updates on their page (HOT).
        {"postgresql_with": {"fillfactor": "50"}},
    )

    id: int = identity()
    action_id: int = Field(sa_column=Column(BigInteger, ForeignKey("action.id"), nullable=False))
    concurrency_key: str = Field(sa_column=Column(Text, nullable=False, server_default=""))
    """Empty for an action without a key."""
    max_concurrent: int | None = Field(default=None, sa_column=Column(Integer))
    """The action's limit, repeated where the grant's lock is."""
    paused: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    depth: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """Rows of this queue in `waiting`."""
    head_id: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """No waiting execution has a smaller id: where a grant starts to read, past the dead entries."""
    total_enqueued: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    total_completed: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """Executions that have ended and been settled."""
    updated_at: datetime = instant(nullable=False, default_now=True)
