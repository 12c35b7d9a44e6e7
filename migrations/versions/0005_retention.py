"""How long executions of an action are kept; how many were pruned; workers that are gone, by age."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("action", sa.Column("keep_for_seconds", sa.Float(), nullable=True))
    op.add_column("action", sa.Column("keep_count", sa.Integer(), nullable=True))
    op.create_check_constraint(
        op.f("ck_action_keeps_not_negative"), "action", "keep_for_seconds >= 0 AND keep_count >= 0"
    )
    op.create_table(
        "pruned_count",
        sa.Column("queue_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("executions >= 0", name=op.f("ck_pruned_count_executions_not_negative")),
        sa.PrimaryKeyConstraint("queue_id", name=op.f("pk_pruned_count")),
    )
    op.create_index(
        "ix_worker_gone",
        "worker",
        ["started_at"],
        unique=False,
        postgresql_where=sa.text("lost_at IS NOT NULL OR stopped_at IS NOT NULL"),
    )
