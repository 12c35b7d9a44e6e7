"""What is left of executions that were pruned: their number."""

from sqlalchemy import BigInteger, CheckConstraint, Column
from sqlmodel import Field, SQLModel


class PrunedCount(SQLModel, table=True):
    """How many ended executions of a queue are no longer in the record.

    A row of its own, and not a column of `action_queue`: pruning takes no lock that a grant waits for.
    """

    __tablename__ = "pruned_count"
    __table_args__ = (CheckConstraint("executions >= 0", name="executions_not_negative"),)

    queue_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    executions: int = Field(sa_column=Column(BigInteger, nullable=False))
