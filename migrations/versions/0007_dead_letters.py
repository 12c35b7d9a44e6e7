"""Dead letters as rows: drained from the broker, with a retention."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dead_letter",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=True),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("correlation_id", sa.Text(), nullable=True),
        sa.Column("app_id", sa.Text(), nullable=True),
        sa.Column("reply_to", sa.Text(), nullable=True),
        sa.Column("content_type", sa.Text(), nullable=True),
        sa.Column("exchange", sa.Text(), nullable=False),
        sa.Column("routing_key", sa.Text(), nullable=False),
        sa.Column("original_routing_key", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("died_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("headers", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("body_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "octet_length(body) <= body_bytes", name=op.f("ck_dead_letter_body_within_its_size")
        ),
        sa.CheckConstraint(
            "octet_length(body) <= stored_bytes", name=op.f("ck_dead_letter_body_within_what_is_stored")
        ),
        sa.CheckConstraint("tries >= 0", name=op.f("ck_dead_letter_tries_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letter")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_dead_letter_fingerprint")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_insert_scale_factor": "0.05",
        },
    )
    op.create_index("ix_dead_letter_died_at", "dead_letter", ["died_at", "id"], unique=False)
    op.create_index("ix_dead_letter_code", "dead_letter", ["code", "died_at", "id"], unique=False)
    op.create_index("ix_dead_letter_message_id", "dead_letter", ["message_id"], unique=False)
    op.create_index(
        "ix_dead_letter_size", "dead_letter", ["id"], unique=False, postgresql_include=["stored_bytes"]
    )
