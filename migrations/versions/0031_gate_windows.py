"""Bounds for the sweep over turns of idle flows; flows of deleted queues go.

Running executors of the previous version go on as before. What may arrive at a total arrives in a queue that
exists, so nothing can use the flows that are deleted here.
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE gate_window (
            gate_id bigint NOT NULL,
            version bigint NOT NULL,
            first_tags bigint[] NOT NULL,
            CONSTRAINT pk_gate_window PRIMARY KEY (gate_id, version)
        ) WITH (
            autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
            autovacuum_vacuum_cost_delay = 0
        )
        """
    )
    op.execute(
        """
        WITH unused AS (
            DELETE FROM gate_flow f USING gate g
            WHERE g.id = f.gate_id AND g.kind = 'action'
              AND NOT EXISTS (SELECT FROM action_queue q WHERE q.id = f.flow_id)
              AND NOT EXISTS (SELECT FROM waiting w WHERE w.line_id = f.id)
            RETURNING f.id
        )
        DELETE FROM flow_turn t USING unused u WHERE t.line_id = u.id
        """
    )
