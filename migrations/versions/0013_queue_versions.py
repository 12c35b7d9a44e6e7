"""The state of queues and slots no longer grows under an old snapshot (P15).

Depth, held slots, head and totals of a queue move from `action_queue`, whose row is now locked and never
updated by a batch, to rows of `queue_state`, one for each version. Slots lose their numbers, which the
version replaces, and get tickets: sweeps start at the lowest ticket in use. A row of `execution` changes when
an attempt ends, not when it is granted or claimed: until then the slot has its number and its worker.

Changes every live row and no ended one; the new constraint reads the history once. Executors of the previous
version read columns that are gone: stop them first (docs/operations.md). Workers may run on.
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_BRISK_VACUUM = (
    "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,"
    " autovacuum_vacuum_cost_delay = 0)"
)


def upgrade() -> None:
    for statement in (*_QUEUES, *_SLOTS, *_EXECUTIONS):
        op.execute(statement)


_QUEUES = (
    f"""
    CREATE TABLE queue_state (
        queue_id bigint NOT NULL,
        version bigint NOT NULL,
        depth bigint NOT NULL,
        held bigint NOT NULL,
        head_id bigint NOT NULL,
        total_enqueued bigint NOT NULL,
        total_completed bigint NOT NULL,
        granted_limit integer,
        updated_at timestamptz NOT NULL,
        CONSTRAINT pk_queue_state PRIMARY KEY (queue_id, version),
        CONSTRAINT ck_queue_state_depth_not_negative CHECK (depth >= 0),
        CONSTRAINT ck_queue_state_held_not_negative CHECK (held >= 0),
        CONSTRAINT ck_queue_state_grant_within_limit CHECK (held <= granted_limit),
        CONSTRAINT ck_queue_state_totals_ordered
            CHECK (total_completed >= 0 AND total_completed <= total_enqueued)
    ) {_BRISK_VACUUM}
    """,
    """
    INSERT INTO queue_state
        (queue_id, version, depth, held, head_id, total_enqueued, total_completed, updated_at)
    SELECT q.id, 1, q.depth, coalesce(h.slots, 0), q.head_id, q.total_enqueued, q.total_completed,
           q.updated_at
    FROM action_queue q
    LEFT JOIN (SELECT s.queue_id, count(*) AS slots FROM slot s GROUP BY s.queue_id) h ON h.queue_id = q.id
    """,
    """
    ALTER TABLE action_queue
        DROP COLUMN depth, DROP COLUMN head_id, DROP COLUMN total_enqueued, DROP COLUMN total_completed,
        DROP COLUMN updated_at
    """,
)

_SLOTS = (
    "DROP INDEX uq_slot_number",
    "CREATE SEQUENCE slot_ticket_seq",
    """
    ALTER TABLE slot
        DROP COLUMN slot_number,
        ADD COLUMN ticket bigint NOT NULL DEFAULT nextval('slot_ticket_seq')
    """,
    "CREATE UNIQUE INDEX uq_slot_ticket ON slot (ticket)",
    f"""
    CREATE TABLE slot_window (
        version bigint NOT NULL,
        first_ticket bigint NOT NULL,
        next_ticket bigint NOT NULL,
        next_xid bigint NOT NULL,
        moved_at timestamptz NOT NULL,
        CONSTRAINT pk_slot_window PRIMARY KEY (version)
    ) {_BRISK_VACUUM}
    """,
    """
    INSERT INTO slot_window (version, first_ticket, next_ticket, next_xid, moved_at)
    VALUES (1, 0, 0, 0, now())
    """,
)

_EXECUTIONS = (
    "ALTER TABLE execution DROP CONSTRAINT ck_execution_running_has_worker",
    "ALTER TABLE execution DROP CONSTRAINT ck_execution_granted_has_attempt",
    """
    UPDATE execution e
    SET status = 'queued', attempt = e.attempt - 1, worker_id = NULL, scheduled_at = NULL, started_at = NULL
    FROM slot s WHERE e.id = s.execution_id AND e.status IN ('scheduled', 'running')
    """,
    """
    UPDATE execution e SET worker_id = NULL, scheduled_at = NULL, started_at = NULL
    FROM waiting w WHERE e.id = w.execution_id AND e.attempt > 0
    """,
    """
    ALTER TABLE execution ADD CONSTRAINT ck_execution_granted_in_slot
        CHECK (status NOT IN ('scheduled', 'running'))
    """,
)
