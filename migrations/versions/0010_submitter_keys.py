"""Whether requests may name concurrency keys of their own; how far a change of a limit has come."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "action", sa.Column("submitter_keys", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column("action", sa.Column("rollout_from_key", sa.Text(), nullable=True))
    op.add_column("action", sa.Column("rollout_held_ids", postgresql.ARRAY(sa.BigInteger()), nullable=True))
    op.create_index(
        "ix_action_rollout",
        "action",
        ["id"],
        unique=False,
        postgresql_where=sa.text("rollout_from_key IS NOT NULL OR rollout_held_ids IS NOT NULL"),
    )
