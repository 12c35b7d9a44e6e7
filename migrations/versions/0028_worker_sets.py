"""Sets of workers of one pool that serve different actions. The executor fills the table."""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE worker_set_state (
            pool_id bigint NOT NULL,
            version bigint NOT NULL,
            action_ids bigint[] NOT NULL,
            set_numbers integer[] NOT NULL,
            are_own boolean[] NOT NULL,
            places integer[] NOT NULL,
            rooms bigint[] NOT NULL,
            is_scarce boolean NOT NULL,
            CONSTRAINT pk_worker_set_state PRIMARY KEY (pool_id, version)
        ) WITH (
            autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
            autovacuum_vacuum_cost_delay = 0
        )
        """
    )
