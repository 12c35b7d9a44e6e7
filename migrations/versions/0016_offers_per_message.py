"""How many offers a worker takes in one message; a worker of the previous version takes one."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("offers_per_message", sa.Integer(), nullable=False, server_default="1"))
    op.create_check_constraint(
        op.f("ck_worker_offers_per_message_positive"), "worker", "offers_per_message >= 1"
    )
