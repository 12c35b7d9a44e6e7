"""Whether requests to an action may name concurrency keys of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "action", sa.Column("submitter_keys", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
