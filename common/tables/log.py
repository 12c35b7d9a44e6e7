"""What attempts have logged while they ran, piece by piece; `attempt.log` holds what was left at the end."""

from datetime import datetime

from sqlalchemy import BigInteger, Column, Integer, Text
from sqlmodel import Field, SQLModel

from turnstile.common.tables.columns import instant

_EARLY_VACUUM = {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_insert_scale_factor": "0.05"}


class AttemptLogPiece(SQLModel, table=True):
    """Some of an attempt's log, read in the order of its primary key; of a long log the oldest go."""

    __tablename__ = "attempt_log"
    __table_args__ = ({"postgresql_with": _EARLY_VACUUM},)

    execution_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    start: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """How many characters of the log came before it."""
    at: datetime = instant(nullable=False)
    """When it came to the record."""
    text: str = Field(sa_column=Column(Text, nullable=False))
