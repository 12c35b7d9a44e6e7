"""When executions returned from later gates to their queues."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gate_return",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("returned_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("pk_gate_return")),
    )
