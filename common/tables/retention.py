"""What is left of executions that were pruned, and of queues that were deleted: their numbers."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Column
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import instant


class PrunedCount(SQLModel, table=True):
    """How many ended executions of a queue are no longer in the record.

    A row of its own, and not a column of `action_queue`: pruning takes no lock that a grant waits for.
    """

    __tablename__ = "pruned_count"
    __table_args__ = (CheckConstraint("executions >= 0", name="executions_not_negative"),)

    queue_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    executions: int = Field(sa_column=Column(BigInteger, nullable=False))


class DeletedQueueTotal(SQLModel, table=True):
    """What the deleted queues of an action counted. Only idle queues of concurrency keys are deleted.

    A row of its own, and not columns of `action`: an admission locks that row to create a queue.
    """

    __tablename__ = "deleted_queue_total"
    __table_args__ = (CheckConstraint("pruned >= 0 AND pruned <= executions", name="pruned_were_counted"),)

    action_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    executions: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Enqueued, ended and settled: a queue is deleted only when these three are one number."""
    pruned: int = Field(sa_column=Column(BigInteger, nullable=False))
    """How many of them are no longer in the record."""
    updated_at: datetime = instant(nullable=False)
    """The latest `updated_at` of a queue that was deleted."""
