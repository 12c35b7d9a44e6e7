"""The settings of pools: a pause, the order, and the weights of actions.

The tags of turns are multiples of 720,720 now, which all weights divide, as at the other gates.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")


def upgrade() -> None:
    for column in (
        sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("fair", sa.Boolean(), nullable=False, server_default=sa.text("true")),
        sa.Column("weights", JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb")),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
    ):
        op.add_column("worker_pool", column)
    op.create_check_constraint(
        op.f("ck_worker_pool_weights_known"),
        "worker_pool",
        "jsonb_typeof(weights) = 'object' AND NOT jsonb_path_exists(weights, '$.* ?"
        ' (@.type() != "number" || @ < 1 || @ > 16 || @.floor() != @)\')',
    )
    # Turns of idle actions are spent: those of others are their only ones.
    op.execute("DELETE FROM pool_turn WHERE place IS NULL")
    op.execute("UPDATE pool_turn SET start_tag = start_tag * 720720")
    op.execute(
        "UPDATE pool_state SET virtual_times = ARRAY(SELECT v.tag * 720720"
        " FROM unnest(virtual_times) WITH ORDINALITY v(tag, priority) ORDER BY v.priority)"
    )
