"""What the queues of idle concurrency keys counted before they were deleted, per action."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deleted_queue_total",
        sa.Column("action_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("pruned", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "pruned >= 0 AND pruned <= executions", name=op.f("ck_deleted_queue_total_pruned_were_counted")
        ),
        sa.PrimaryKeyConstraint("action_id", name=op.f("pk_deleted_queue_total")),
    )
