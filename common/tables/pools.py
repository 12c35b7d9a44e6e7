"""Pools of workers as gates: an execution is granted only if the workers of its pool have capacity for it.

A plain execution passes its queue and its pool in one decision, so what waits for capacity stays in its queue
and holds nothing. These tables say which queues could start more, and in which order (P14).
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import BRISK_VACUUM, identity, instant, json_column, turn_indexes


class WorkerPool(SQLModel, table=True):
    """A pool that an action names. Its row is locked after all queues and gates, and hardly ever updated."""

    __tablename__ = "worker_pool"
    __table_args__ = (
        UniqueConstraint("name"),
        CheckConstraint(
            "jsonb_typeof(weights) = 'object' AND NOT jsonb_path_exists(weights, '$.* ?"
            ' (@.type() != "number" || @ < 1 || @ > 16 || @.floor() != @)\')',
            name="weights_known",
        ),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    id: int = identity()
    name: str = Field(sa_column=Column(Text, nullable=False))
    waits: bool = Field(
        default=False, sa_column=Column(Boolean, nullable=False, server_default=text("false"))
    )
    """Something has waited for its turn in the last minute: settles check whether it can start."""
    paused: bool = Field(
        default=False, sa_column=Column(Boolean, nullable=False, server_default=text("false"))
    )
    fair: bool = Field(default=True, sa_column=Column(Boolean, nullable=False, server_default=text("true")))
    """Whether actions take turns by weight; else executions start by arrival."""
    weights: Any = json_column(nullable=False, default="'{}'::jsonb")
    """The weights of actions, 1 to 16, by name; 1 for those that are missing."""
    created_at: datetime = instant(nullable=False, default_now=True)
    updated_at: datetime = instant(nullable=False, default_now=True)


class PoolState(SQLModel, table=True):
    """One version of a pool's state, as `QueueState` is of a queue."""

    __tablename__ = "pool_state"
    __table_args__ = (
        CheckConstraint("capacity >= 0", name="capacity_not_negative"),
        CheckConstraint("depth >= 0", name="depth_not_negative"),
        CheckConstraint("held >= 0", name="held_not_negative"),
        CheckConstraint("held <= granted_capacity", name="grant_within_capacity"),
        {"postgresql_with": BRISK_VACUUM},
    )

    pool_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    capacity: int | None = Field(default=None, sa_column=Column(Integer))
    """`places`, `lead` and `leaving`; 0 while it is paused. None: no executor has read the workers yet,
    which is no limit."""
    places: int = Field(sa_column=Column(Integer, nullable=False))
    """Concurrency of the live workers that are not draining."""
    lead: int = Field(sa_column=Column(Integer, nullable=False))
    """Executions that are granted beyond `places`, so that no worker waits for its next one."""
    leaving: int = Field(sa_column=Column(Integer, nullable=False))
    """Slots that other workers hold, or no worker: they take no capacity of the live ones."""
    held: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of rows in `slot` with this pool."""
    depth: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of rows in `ready_queue` of its actions. One more while `WorkerSetState.is_scarce`."""
    virtual_times: list[int] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False))
    """By priority, the tag of the last execution that took a worker slot when not all had one: in the fair
    order in executions divided by the weight, times 720,720; by arrival an id."""
    total_released: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Worker slots that were taken back; their pace decides about the lead."""
    granted_capacity: int | None = Field(default=None, sa_column=Column(Integer))
    """The capacity when a worker slot was taken with this version. None: no limit, or none was taken."""
    updated_at: datetime = instant(nullable=False)


class PoolTurn(SQLModel, table=True):
    """When an action has its next turn with one priority: at its highest start tag. Each turn inserts a row.

    An action without a row starts at the virtual time of its pool.
    """

    __tablename__ = "pool_turn"
    __table_args__ = (
        *turn_indexes("pool_turn", "pool_id"),
        {"postgresql_with": BRISK_VACUUM},
    )

    action_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    priority: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    start_tag: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    pool_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    place: int | None = Field(default=None, sa_column=Column(BigInteger))
    """The first place of this priority in `ready_queue`. None: the action waits for no capacity."""


class ReadyQueue(SQLModel, table=True):
    """A queue that could start its first execution if its pool had capacity.

    A row may be outdated after a cancel, an expiry, a pause or a lower limit; it is corrected at its turn.
    """

    __tablename__ = "ready_queue"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    action_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    place: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """The order key of that execution. `QueueState.ready_place` repeats it."""
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))


class WorkerSetState(SQLModel, table=True):
    """One version of the sets of workers of a pool: the workers of an action, if others do not serve it.

    `action_ids`, `set_numbers` and `are_own` have one element for each action of a set; `places` and `rooms`
    have one for each set.
    """

    __tablename__ = "worker_set_state"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    pool_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    action_ids: list[int] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False))
    set_numbers: list[int] = Field(sa_column=Column(ARRAY(Integer), nullable=False))
    are_own: list[bool] = Field(sa_column=Column(ARRAY(Boolean), nullable=False))
    """Whether exactly the workers of the set serve the action; otherwise some of them."""
    places: list[int] = Field(sa_column=Column(ARRAY(Integer), nullable=False))
    """Concurrency of its workers."""
    rooms: list[int | None] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False))
    """How many more executions may start in it; negative: too many have started. None: some of its workers
    are idle, and nothing is counted."""
    is_scarce: bool = Field(sa_column=Column(Boolean, nullable=False))
    """Whether one of `rooms` is not null; then `PoolState.depth` is one higher."""
