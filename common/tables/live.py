"""Live state: queues, held slots, unpublished messages, delays, deadlines and early cancels.

Slim tables, whose size follows the load and not the history.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    Sequence,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import BRISK_VACUUM, identity, instant


class QueueState(SQLModel, table=True):
    """One version of a queue's state. The newest counts; the one before it is deleted with its insert.

    Readers take the newest version from the end of the primary key, so their cost does not grow with the
    deleted versions that an old snapshot keeps (P15). Two sessions that wrongly decide from the same version
    collide in the primary key instead of exceeding the limit (P1).
    """

    __tablename__ = "queue_state"
    __table_args__ = (
        CheckConstraint("depth >= 0", name="depth_not_negative"),
        CheckConstraint("held >= 0", name="held_not_negative"),
        CheckConstraint("held <= granted_limit", name="grant_within_limit"),
        CheckConstraint("total_completed >= 0 AND total_completed <= total_enqueued", name="totals_ordered"),
        {"postgresql_with": BRISK_VACUUM},
    )

    queue_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    depth: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of rows in `waiting`."""
    held: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of rows in `slot`, and of executions that hold a slot here and wait, or ended, at a gate."""
    head_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    """A lower bound of the waiting ids of priority 3: grants read from here, past dead index entries."""
    heads: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """Such bounds of `place` for each other priority, with gaps. None: no other has waited here."""
    total_enqueued: int = Field(sa_column=Column(BigInteger, nullable=False))
    total_completed: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Number of terminal executions that are settled."""
    granted_limit: int | None = Field(default=None, sa_column=Column(Integer))
    """The limit of the grant that wrote this version. None: without limit, or nothing was granted."""
    updated_at: datetime = instant(nullable=False)
    ready_place: int | None = Field(default=None, sa_column=Column(BigInteger))
    """Where it is in `ready_queue`. None: it waits for no capacity of its pool."""


_TICKETS = Sequence("slot_ticket_seq", metadata=SQLModel.metadata)


def _ticket() -> Any:
    """Return a field that increases with every row. Sweeps read from `SlotWindow.first_ticket` on."""
    return Field(sa_column=Column(BigInteger, nullable=False, server_default=_TICKETS.next_value()))


def _foreign_xid() -> Any:
    """Return a field: open transactions before this one are foreign, and the bound moves without them."""
    return Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))


def _deferrals() -> Any:
    """Return a field: how often the bound stayed because of open transactions."""
    return Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))


class Waiting(SQLModel, table=True):
    """A waiting execution in a list, which is read in the order of the primary key.

    A list (`line_id`) belongs to a queue, to a gate, or to a flow of a fair gate; their ids are numbers of
    one sequence. `place` is the order key in a list, here and in all other tables and functions.
    """

    __tablename__ = "waiting"
    __table_args__ = (
        Index("ix_waiting_later", "queue_id", "place", postgresql_where=text("queue_id IS NOT NULL")),
        {"postgresql_with": BRISK_VACUUM},
    )

    line_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    place: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """The priority, then the id (`turnstile.place_of`). For priority 3 it is the id."""
    queue_id: int | None = Field(default=None, sa_column=Column(BigInteger))
    """The queue that it has passed. None: it waits there."""
    gate_ids: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """The gates that it has passed after its queue, and holds."""
    gate_units: list[int] | None = Field(default=None, sa_column=Column(ARRAY(Integer)))
    passed_ats: list[datetime] | None = Field(default=None, sa_column=Column(ARRAY(DateTime(timezone=True))))
    """When it passed its queue and each of these gates."""


class Slot(SQLModel, table=True):
    """One held slot (P1): from the grant until the settle of the finished attempt.

    Until the attempt ends, this row says which attempt of the execution is scheduled or running, and where.
    It is found by the execution; `QueueState.held` counts the slots of a queue.
    """

    __tablename__ = "slot"
    __table_args__ = (
        Index("uq_slot_ticket", "ticket", unique=True),
        CheckConstraint("attempt >= 1", name="attempt_positive"),
        CheckConstraint("(worker_id IS NULL) = (claimed_at IS NULL)", name="claimed_by_a_worker"),
        {"postgresql_with": {"fillfactor": "50", **BRISK_VACUUM}},
    )

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    ticket: int = _ticket()
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    worker_id: str | None = Field(default=None, sa_column=Column(Text))
    granted_at: datetime = instant(nullable=False)
    offered_at: datetime | None = instant()
    """When `execution.scheduled` was last to be published. None: withheld until a worker serves it."""
    claimed_at: datetime | None = instant()
    finished_at: datetime | None = instant()
    """When the attempt ended. From then on the slot waits only for its settle."""
    published_at: datetime | None = instant()
    """When `execution.completed` was last to be published."""
    overdue_at: datetime | None = instant()
    """The end of the attempt's timeout, or the instant of its cancel request."""
    cancels_sent: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """Number of cancel messages that the watchdog has sent to the worker."""
    gate_ids: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """The gates after the queue of which it holds units. None: it has passed only its queue."""
    gate_units: list[int] | None = Field(default=None, sa_column=Column(ARRAY(Integer)))
    passed_ats: list[datetime] | None = Field(default=None, sa_column=Column(ARRAY(DateTime(timezone=True))))
    """When it passed its queue and each of these gates."""
    pool_id: int | None = Field(default=None, sa_column=Column(BigInteger))
    """The pool of which it takes a worker slot until its settle."""


class SlotWindow(SQLModel, table=True):
    """One version of the bound below which no live row has its ticket. The newest version counts.

    The watchdog raises the bound, and gives older rows new tickets first. So a sweep does not read the
    deleted rows that an old snapshot keeps (P15). It bounds slots, unpublished messages and early cancels.
    """

    __tablename__ = "slot_window"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    first_ticket: int = Field(sa_column=Column(BigInteger, nullable=False))
    next_ticket: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The next bound: the lowest ticket that was not drawn when this version was written."""
    next_xid: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The next bound applies once all transactions before this one have ended, except foreign ones."""
    foreign_xid: int = _foreign_xid()
    deferrals: int = _deferrals()
    moved_at: datetime = instant(nullable=False)


class DueWindow(SQLModel, table=True):
    """One version of the bound below which no delay and no deadline lies. The newest version counts.

    `common/sql/03_windows.sql` explains how an instant becomes the bound.
    """

    __tablename__ = "due_window"
    __table_args__ = ({"postgresql_with": BRISK_VACUUM},)

    version: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    first_at: datetime = instant(nullable=False)
    """The bound: sweeps over `delayed` and `expiring` start here."""
    closing_at: datetime = instant(nullable=False)
    """The next bound: every transaction that begins now writes this instant or a later one."""
    closing_xid: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The next bound applies once all transactions before this one have ended, except foreign ones."""
    next_at: datetime = instant(nullable=False)
    """The earliest instant that is written from now on."""
    foreign_xid: int = _foreign_xid()
    deferrals: int = _deferrals()
    moved_at: datetime = instant(nullable=False)


class UnpublishedCompletion(SQLModel, table=True):
    """An execution that became terminal while it waited, and whose completion is not consumed yet (P4).

    If it also has a slot, an earlier attempt left that slot unsettled.
    """

    __tablename__ = "unpublished_completion"
    __table_args__ = (
        Index("ix_unpublished_completion_ticket", "ticket"),
        {"postgresql_with": BRISK_VACUUM},
    )

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    published_at: datetime = instant(nullable=False)
    ticket: int = _ticket()
    gate_ids: list[int] | None = Field(default=None, sa_column=Column(ARRAY(BigInteger)))
    """The gates of which it holds units, and a slot of its queue, until its settle. None: it holds none."""
    gate_units: list[int] | None = Field(default=None, sa_column=Column(ARRAY(Integer)))


class UnpublishedCancel(SQLModel, table=True):
    """An attempt reclaimed from a lost worker, whose cancel message is not published yet (P6)."""

    __tablename__ = "unpublished_cancel"
    __table_args__ = (
        Index("ix_unpublished_cancel_ticket", "ticket"),
        {"postgresql_with": BRISK_VACUUM},
    )

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    worker_id: str = Field(sa_column=Column(Text, nullable=False))
    recorded_at: datetime = instant(nullable=False)
    ticket: int = _ticket()


class Delayed(SQLModel, table=True):
    """An execution that is not due yet, read in the order of `due_at`.

    `due_at` is `Execution.run_at`, or later if that is below `DueWindow.next_at`.
    """

    __tablename__ = "delayed"
    __table_args__ = (Index("ix_delayed_due_at", "due_at"), {"postgresql_with": BRISK_VACUUM})

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    due_at: datetime = instant(nullable=False)


class Expiring(SQLModel, table=True):
    """The deadline of a start. Deleted when it has passed, whatever the state of the execution.

    `expires_at` is `Execution.expires_at`, or later if that is below `DueWindow.next_at`.
    """

    __tablename__ = "expiring"
    __table_args__ = (Index("ix_expiring_expires_at", "expires_at"), {"postgresql_with": BRISK_VACUUM})

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    queue_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    expires_at: datetime = instant(nullable=False)


class EarlyCancel(SQLModel, table=True):
    """A cancel request for an unknown execution, kept until the execution exists or for about 30 s."""

    __tablename__ = "early_cancel"
    __table_args__ = (
        CheckConstraint("(execution_id IS NULL) <> (idempotency_key IS NULL)", name="names_one_execution"),
        Index("ix_early_cancel_ticket", "ticket"),
        # A message that is delivered twice is stored once.
        Index("uq_early_cancel_message_key", "message_key", unique=True),
        {"postgresql_with": BRISK_VACUUM},
    )

    id: int = identity()
    execution_id: int | None = Field(default=None, sa_column=Column(BigInteger))
    idempotency_key: str | None = Field(default=None, sa_column=Column(Text))
    reason: str | None = Field(default=None, sa_column=Column(Text))
    message_key: UUID | None = Field(default=None, sa_column=Column(Uuid))
    """Hash of the message's id and content; None without an id."""
    messages: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """Published if the execution stays unknown: the reply and the dead letter."""
    kept_until: datetime = instant(nullable=False)
    ticket: int = _ticket()
