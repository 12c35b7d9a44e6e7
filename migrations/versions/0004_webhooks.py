"""Calls back: deliveries on their way, and an action's own URL."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("action", sa.Column("callback_url", sa.Text(), nullable=True))
    op.create_table(
        "webhook_delivery",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("event_id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'failed')", name=op.f("ck_webhook_delivery_state_known")
        ),
        sa.CheckConstraint(
            "(settled_at IS NOT NULL) = (state <> 'pending')",
            name=op.f("ck_webhook_delivery_settled_iff_not_pending"),
        ),
        sa.CheckConstraint(
            "claimed_until IS NULL OR state = 'pending'",
            name=op.f("ck_webhook_delivery_claimed_while_pending"),
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_webhook_delivery_attempts_not_negative")),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("pk_webhook_delivery")),
        postgresql_with={
            "fillfactor": "70",
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
        },
    )
    op.create_index(
        "ix_webhook_delivery_due",
        "webhook_delivery",
        ["origin", "due_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("ix_webhook_delivery_state", "webhook_delivery", ["state", "execution_id"], unique=False)
    op.create_index(
        "ix_webhook_delivery_settled_at",
        "webhook_delivery",
        ["settled_at"],
        unique=False,
        postgresql_where=sa.text("settled_at IS NOT NULL"),
    )
