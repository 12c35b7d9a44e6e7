"""When an attempt should have stopped, so that the watchdog sees to it; the live among all workers."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slot", sa.Column("overdue_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("slot", sa.Column("stops_asked", sa.Integer(), server_default="0", nullable=False))
    op.create_index(
        "ix_worker_live",
        "worker",
        ["id"],
        unique=False,
        postgresql_where=sa.text("lost_at IS NULL AND stopped_at IS NULL"),
    )
