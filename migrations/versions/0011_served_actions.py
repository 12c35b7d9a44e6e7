"""Which actions a worker has code for; offers that are withheld until a worker has."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("served_refs", postgresql.ARRAY(sa.Text()), nullable=True))
    op.alter_column("slot", "offered_at", nullable=True)
