"""What a worker says of itself at its registration, and how many attempts it held when it was drained.

All of it is unknown (null) of workers of the previous version.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("drain_seconds", sa.Float(), nullable=True),
        sa.Column("stop_grace_seconds", sa.Float(), nullable=True),
        sa.Column("start_notes", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("draining_count", sa.Integer(), nullable=True),
    ):
        op.add_column("worker", column)
