"""Actions, and one row per queue (an action, or an action and a concurrency key).

The row of `action_queue` is the lock that serialises admission and grant of its queue (P1, P2). It holds a
copy of the action's limit and pause, so that a grant decides from the row that it has locked. What changes
with each batch is in `queue_state` (`live`).
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
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import identity, instant, json_column


class Action(SQLModel, table=True):
    """The definition of an action."""

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
        CheckConstraint("max_concurrent_total >= 0", name="total_not_negative"),
        CheckConstraint(
            "(rate_starts IS NULL) = (rate_per_seconds IS NULL)"
            " AND rate_starts >= 1 AND rate_per_seconds > 0",
            name="rate_complete",
        ),
        CheckConstraint("priority_min BETWEEN 1 AND 5", name="priority_min_known"),
        CheckConstraint(
            "cardinality(route) IS NOT DISTINCT FROM cardinality(route_units)", name="route_complete"
        ),
        # Read by the watchdog at every tick, usually empty.
        Index(
            "ix_action_rollout",
            "id",
            postgresql_where=text("rollout_from_key IS NOT NULL OR rollout_held_ids IS NOT NULL"),
        ),
        Index("ix_action_routed", "id", postgresql_where=text("route IS NOT NULL")),
    )

    id: int = identity()
    ref: str = Field(sa_column=Column(Text, nullable=False))
    runner: str = Field(sa_column=Column(Text, nullable=False, server_default="python"))
    entrypoint: Any = json_column(nullable=True)
    max_concurrent: int | None = Field(default=None, sa_column=Column(Integer))
    concurrency_key: str | None = Field(default=None, sa_column=Column(Text))
    concurrency_key_path: list[str] | None = Field(default=None, sa_column=Column(ARRAY(Text)))
    submitter_keys: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Whether requests may set the concurrency key. Each key has a queue with the action's limit."""
    timeout_seconds: float | None = None
    ttl_seconds: float | None = None
    callback_url: str | None = Field(default=None, sa_column=Column(Text))
    """Receives a POST for each terminal execution, unless the request has its own URL."""
    keep_for_seconds: float | None = None
    """How long terminal executions are kept. None: the setting applies."""
    keep_count: int | None = Field(default=None, sa_column=Column(Integer))
    """Maximum number of terminal executions that are kept. None: the setting applies."""
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
    """Where the rollout of a changed limit or pause to the queues continues, in the order of their keys.

    None: all queues have it.
    """
    rollout_held_ids: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """Queues that the rollout skipped because another database session held them."""
    deleted_at: datetime | None = instant()
    """When it was deleted. The row stays: executions refer to it, and the name may be defined again."""
    max_concurrent_total: int | None = Field(default=None, sa_column=Column(Integer))
    """Limit over all its queues."""
    fair: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Whether its queues take turns at that limit."""
    rate_starts: int | None = Field(default=None, sa_column=Column(Integer))
    rate_per_seconds: float | None = None
    """At most `rate_starts` starts in any time of this length."""
    priority_min: int = Field(
        default=1, sa_column=Column(SmallInteger, nullable=False, server_default=text("1"))
    )
    """The most urgent priority that a submitter may request."""
    uses: Any = json_column(nullable=False, default="'[]'::jsonb")
    """The resources that it uses: objects with `resource`, `units`, `weight`, by name."""
    route: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """Its gates after the queue, in the order in which executions pass them. None: it has none."""
    route_units: list[int] | None = Field(default=None, sa_column=Column(ARRAY(Integer)))
    """How many units an execution takes at each."""
    pool_id: int | None = Field(default=None, sa_column=Column(BigInteger))
    """The row of its pool. None: it was never defined by `store_actions`, and takes no capacity."""
    served: bool = Field(default=True, sa_column_kwargs={"server_default": text("true")})
    """Whether a live worker can run it, as far as the executors know. If not, nothing is granted."""
    parameters_schema: Any = json_column(nullable=True)
    """JSON Schema of the parameters, given in the definition. None: requests must fit the code's schemas."""
    result_schema: Any = json_column(nullable=True)


class ActionSchema(SQLModel, table=True):
    """The JSON Schemas that workers derived from one version of the code of an action.

    Those of an action that no live worker has are deleted at the next registration, except the newest.
    """

    __tablename__ = "action_schema"
    __table_args__ = (UniqueConstraint("action_id", "content_hash"),)

    id: int = identity()
    action_id: int = Field(sa_column=Column(BigInteger, ForeignKey("action.id"), nullable=False))
    content_hash: str = Field(sa_column=Column(Text, nullable=False))
    parameters: Any = json_column(nullable=True)
    """None: everything fits, as far as an executor can tell."""
    result: Any = json_column(nullable=True)
    registered_at: datetime = instant(nullable=False, default_now=True)
    """When a worker last registered it."""


class ActionQueue(SQLModel, table=True):
    """One queue. Locked, in ascending id, before anything is admitted to it or granted from it.

    A batch locks the row and never updates it: PostgreSQL keeps every version of an updated row while a
    snapshot anywhere might read it (P15). `QueueState` has what changes.
    """

    __tablename__ = "action_queue"
    __table_args__ = (
        UniqueConstraint("action_id", "concurrency_key"),
        CheckConstraint("max_concurrent >= 0", name="limit_not_negative"),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    id: int = identity()
    action_id: int = Field(sa_column=Column(BigInteger, ForeignKey("action.id"), nullable=False))
    concurrency_key: str = Field(sa_column=Column(Text, nullable=False, server_default=""))
    """Empty for an action without concurrency key."""
    max_concurrent: int | None = Field(default=None, sa_column=Column(Integer))
    """A copy of the action's limit, under the lock of the grant."""
    paused: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
