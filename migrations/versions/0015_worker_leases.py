"""A renewal of a lease writes a row of `worker_lease` and leaves the worker's row unchanged (P15).

Reads the workers that have not stopped. Executors of the previous version read leases that are no longer
renewed: stop them first (docs/operations.md). Workers may run on.
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE worker_lease (
            worker_id text NOT NULL,
            version bigint NOT NULL,
            renewed_at timestamptz NOT NULL,
            expires_at timestamptz NOT NULL,
            CONSTRAINT pk_worker_lease PRIMARY KEY (worker_id, version)
        )
        WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
              autovacuum_vacuum_cost_delay = 0)
        """
    )
    op.execute(
        """
        INSERT INTO worker_lease (worker_id, version, renewed_at, expires_at)
        SELECT w.id, 1, w.renewed_at, w.lease_expires_at FROM worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
        """
    )
