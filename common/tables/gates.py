"""Gates: limits that executions of several queues share, after the limit of each queue (P11 to P14).

The row of `gate` is the lock that serialises what passes it; a batch locks it and never updates it. What
changes with each batch is in `gate_state`, `flow_turn` and `rate_start`, in rows that are read by their
newest version, by number or from a bound, so that their cost does not grow under an old snapshot (P15).
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from turnstile.common.tables.actions import ActionQueue
from turnstile.common.tables.columns import BRISK_VACUUM, instant, turn_indexes


def _line_id() -> Any:
    """Return a primary key from the sequence of the queue ids: `waiting.line_id` refers to it."""
    return Field(
        default=None,
        sa_column=Column(
            BigInteger,
            primary_key=True,
            autoincrement=False,
            server_default=text("nextval('action_queue_id_seq')"),
        ),
    )


class Gate(SQLModel, table=True):
    """One gate after the queue. Gates are locked in ascending id, after the queues.

    `action`: the total and the rate of one action. `resource`: what several actions share. `pool`: where
    executions wait for a start that a rate allows.
    """

    __tablename__ = "gate"
    __table_args__ = (
        UniqueConstraint("kind", "name"),
        CheckConstraint("kind IN ('action', 'resource', 'pool')", name="kind_known"),
        CheckConstraint("(action_id IS NOT NULL) = (kind = 'action')", name="belongs_to_an_action"),
        CheckConstraint("capacity >= 0", name="capacity_not_negative"),
        CheckConstraint(
            "(rate_starts IS NULL) = (rate_per_seconds IS NULL)"
            " AND rate_starts >= 1 AND rate_per_seconds > 0",
            name="rate_complete",
        ),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    id: int = _line_id()
    kind: str = Field(sa_column=Column(Text, nullable=False))
    name: str = Field(sa_column=Column(Text, nullable=False))
    """The resource, the pool, or the id of the action."""
    action_id: int | None = Field(default=None, sa_column=Column(BigInteger))
    capacity: int | None = Field(default=None, sa_column=Column(Integer))
    """In units. None: no limit."""
    fair: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Whether flows take turns: the queues of an action, or the actions that use a resource."""
    rank: int | None = Field(default=None, sa_column=Column(Integer))
    """The position of a resource in the order: the lowest first, those without a rank last, then by name."""
    rate_starts: int | None = Field(default=None, sa_column=Column(Integer))
    rate_per_seconds: float | None = None
    paused: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    returning_from: int | None = Field(default=None, sa_column=Column(BigInteger))
    """From which `place` or `line_id` on executions may have to return to their queues. None: none has to."""
    created_at: datetime = instant(nullable=False, default_now=True)
    updated_at: datetime = instant(nullable=False, default_now=True)


class GateState(SQLModel, table=True):
    """One version of a gate's state, as `QueueState` is of a queue."""

    __tablename__ = "gate_state"
    __table_args__ = (
        CheckConstraint("depth >= 0", name="depth_not_negative"),
        CheckConstraint("held >= 0", name="held_not_negative"),
        CheckConstraint("held <= granted_capacity", name="passed_within_capacity"),
        {"postgresql_with": BRISK_VACUUM},
    )

    gate_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    held: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Units that were acquired and not released."""
    depth: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of rows in its lists of `waiting`."""
    head_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    """By arrival: a lower bound of `Waiting.place` for priority 3."""
    heads: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """By arrival: such bounds for each priority, as in `QueueState`."""
    virtual_times: list[int] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False))
    """Fair: by priority, the start tag of the last execution that passed."""
    starts_taken: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of the newest row in `rate_start`."""
    granted_capacity: int | None = Field(default=None, sa_column=Column(Integer))
    """The capacity when something passed with this version. None: no limit, or nothing passed."""
    updated_at: datetime = instant(nullable=False)


class GateFlow(SQLModel, table=True):
    """A flow of a fair gate: a list of its own, with turns by its weight (P14)."""

    __tablename__ = "gate_flow"
    __table_args__ = (UniqueConstraint("gate_id", "flow_id"),)

    id: int = _line_id()
    gate_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    flow_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The queue at the gate of an action, the action at a resource or pool."""


class GateReturn(SQLModel, table=True):
    """When an execution last returned from a later gate to its queue. Kept as long as the execution."""

    __tablename__ = "gate_return"

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    returned_at: datetime = instant(nullable=False)


class FlowTurn(SQLModel, table=True):
    """When a flow has its next turn with one priority: at the lowest start tag. Each passage inserts a row.

    A flow without a row starts at the virtual time of its gate.
    """

    __tablename__ = "flow_turn"
    __table_args__ = (
        *turn_indexes("flow_turn", "gate_id"),
        {"postgresql_with": BRISK_VACUUM},
    )

    line_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    priority: int = Field(sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    start_tag: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """In units divided by the weight, times 720,720, which all weights divide."""
    gate_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    place: int | None = Field(default=None, sa_column=Column(BigInteger))
    """The order key of its first waiting execution; None: nothing waits."""


class GateWindow(SQLModel, table=True):
    """One version of the bounds where the sweep over the turns of idle flows begins (P15)."""

    __tablename__ = "gate_window"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    gate_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    first_tags: list[int] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False))
    """By priority: no idle flow has a turn with a lower start tag."""


class RateStart(SQLModel, table=True):
    """One grant through a rate limit (P13), found by its number.

    Numbers have no gaps, instants increase with them, and the lowest numbers are deleted first.
    """

    __tablename__ = "rate_start"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    gate_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    number: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    granted_at: datetime = instant(nullable=False)


for _name in ("gate", "gate_flow"):
    # Their numbers come from its sequence.
    SQLModel.metadata.tables[_name].add_is_dependent_on(ActionQueue.metadata.tables["action_queue"])


class KeyOverride(SQLModel, table=True):
    """The limit and the weight of one concurrency key, in place of those of its action."""

    __tablename__ = "key_override"
    __table_args__ = (
        CheckConstraint("max_concurrent >= 0", name="limit_not_negative"),
        CheckConstraint("weight BETWEEN 1 AND 16", name="weight_known"),
    )

    action_id: int = Field(
        sa_column=Column(BigInteger, ForeignKey("action.id"), primary_key=True, autoincrement=False)
    )
    concurrency_key: str = Field(sa_column=Column(Text, primary_key=True))
    has_limit: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """Whether `max_concurrent` replaces the action's limit; None is no limit then."""
    max_concurrent: int | None = Field(default=None, sa_column=Column(Integer))
    weight: int | None = Field(default=None, sa_column=Column(SmallInteger))
    """Its share at a fair total, 1 to 16. None: 1."""
