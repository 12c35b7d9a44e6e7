"""When an attempt is overdue; cancel messages to publish to lost workers; the live among all workers."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slot", sa.Column("overdue_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("slot", sa.Column("stops_asked", sa.Integer(), server_default="0", nullable=False))
    op.create_table(
        "untold_stop",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "attempt", name=op.f("pk_untold_stop")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index(
        "ix_worker_live",
        "worker",
        ["id"],
        unique=False,
        postgresql_where=sa.text("lost_at IS NULL AND stopped_at IS NULL"),
    )
