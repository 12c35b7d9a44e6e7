"""Who changed an action and how; actions that were deleted; what an execution is the retry of."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "action_change",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("action_ref", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=True),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column(
            "old",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "new",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "change IN ('created', 'changed', 'limit_changed', 'paused', 'resumed', 'deleted')",
            name=op.f("ck_action_change_change_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_action_change")),
    )
    op.create_index("ix_action_change_action_ref", "action_change", ["action_ref", "id"], unique=False)
    op.add_column("action", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("execution", sa.Column("retry_of", sa.BigInteger(), nullable=True))
