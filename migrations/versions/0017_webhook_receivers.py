"""Sweeps over due webhooks read each receiver's deliveries from a bound on (P15).

Reads the deliveries that are pending, and writes a row per receiver. Running executors go on as before.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE webhook_receiver (
            origin text NOT NULL,
            version bigint NOT NULL,
            first_at timestamptz NOT NULL,
            moved_at timestamptz NOT NULL,
            CONSTRAINT pk_webhook_receiver PRIMARY KEY (origin, version)
        )
        WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
              autovacuum_vacuum_cost_delay = 0)
        """
    )
    op.execute(
        """
        INSERT INTO webhook_receiver (origin, version, first_at, moved_at)
        SELECT DISTINCT d.origin, -1, timestamptz '-infinity', now()
        FROM webhook_delivery d WHERE d.state = 'pending'
        """
    )
