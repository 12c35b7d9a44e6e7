"""Why a worker is not ready, as it says with each renewal of its lease."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("worker_lease", sa.Column("not_ready", sa.Text(), nullable=True))
