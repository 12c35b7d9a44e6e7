"""Columns and indexes that the tables share: instants, JSON, the status enum, identities, turns."""

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Identity, Index, text
from sqlalchemy.dialects.postgresql import ENUM, JSONB
from sqlmodel import Field, SQLModel

from turnstile.common.domain.states import Status

SQLModel.metadata.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

BRISK_VACUUM = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "2000",
    "autovacuum_vacuum_cost_delay": "0",
}
"""For tables of short-lived rows: vacuum by the number of dead rows, not by their share."""

STATUS_TYPE = ENUM(
    Status,
    name="execution_status",
    values_callable=lambda statuses: [status.value for status in statuses],
    metadata=SQLModel.metadata,
)
"""The enum in PostgreSQL. A test keeps its labels equal to `Status`."""


def instant(*, nullable: bool = True, default_now: bool = False) -> Any:
    """Return a field for an instant with time zone."""
    return Field(
        default=None,
        sa_column=Column(
            DateTime(timezone=True),
            nullable=nullable,
            server_default=text("now()") if default_now else None,
        ),
    )


def json_column(*, nullable: bool, default: str | None = None, name: str | None = None) -> Any:
    """Return a jsonb field, in the column `name` if it differs from the attribute."""
    server_default = text(default) if default else None
    return Field(
        default=None, sa_column=Column(name, JSONB, nullable=nullable, server_default=server_default)
    )


def turn_indexes(table: str, owner: str) -> tuple[Index, Index]:
    """Return the indexes of a table of turns: in the order of the turns, and of what waits for none."""
    columns = owner, "priority", "start_tag"
    return (
        Index(f"ix_{table}_waiting", *columns, "place", postgresql_where=text("place IS NOT NULL")),
        Index(f"ix_{table}_idle", *columns, postgresql_where=text("place IS NULL")),
    )


def identity() -> Any:
    """Return a primary key that the database numbers.

    `BY DEFAULT`, because admit draws the numbers itself, under the locks of the queues.
    """
    return Field(default=None, sa_column=Column(BigInteger, Identity(always=False), primary_key=True))
