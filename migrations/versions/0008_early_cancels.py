"""Cancels of executions that are not stored yet."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "early_cancel",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("execution_id", sa.BigInteger(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message_key", sa.Uuid(), nullable=True),
        sa.Column("messages", sa.LargeBinary(), nullable=False),
        sa.Column("kept_until", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(execution_id IS NULL) <> (idempotency_key IS NULL)",
            name=op.f("ck_early_cancel_names_one_execution"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_early_cancel")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index("ix_early_cancel_kept_until", "early_cancel", ["kept_until"], unique=False)
    op.create_index("uq_early_cancel_message_key", "early_cancel", ["message_key"], unique=True)
