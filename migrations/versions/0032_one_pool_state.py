"""Delete the second state that executors may have stored for the pool `default` when they started together.

Nothing reads it: the newest version counts. A running service that replaces the newest one at the same time
is not disturbed.
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "DELETE FROM pool_state v USING pool_state n WHERE n.pool_id = v.pool_id AND n.version > v.version"
    )
