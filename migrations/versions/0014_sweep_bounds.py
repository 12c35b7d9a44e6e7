"""Sweeps over unpublished messages, early cancels, delays and deadlines start at moving bounds (P15).

Unpublished completions, unpublished cancels and early cancels get tickets like slots. `due_window` has the
bound of delays and deadlines.

The three tables are nearly empty, and are written once; no other table is read. Running executors and
workers go on as before: only executors of this version raise the new bound.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TICKETED = ("unpublished_completion", "unpublished_cancel", "early_cancel")


def upgrade() -> None:
    for table in _TICKETED:
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN ticket bigint NOT NULL DEFAULT nextval('slot_ticket_seq')"
        )
        op.execute(f"CREATE INDEX ix_{table}_ticket ON {table} (ticket)")
    op.execute("DROP INDEX ix_early_cancel_kept_until")
    op.execute(
        "ALTER TABLE slot_window ADD COLUMN foreign_xid bigint NOT NULL DEFAULT '0',"
        " ADD COLUMN deferrals integer NOT NULL DEFAULT '0'"
    )
    op.execute(
        """
        CREATE TABLE due_window (
            version bigint NOT NULL,
            first_at timestamptz NOT NULL,
            closing_at timestamptz NOT NULL,
            closing_xid bigint NOT NULL,
            next_at timestamptz NOT NULL,
            foreign_xid bigint NOT NULL DEFAULT '0',
            deferrals integer NOT NULL DEFAULT '0',
            moved_at timestamptz NOT NULL,
            CONSTRAINT pk_due_window PRIMARY KEY (version)
        )
        WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
              autovacuum_vacuum_cost_delay = 0)
        """
    )
    op.execute(
        "INSERT INTO due_window (version, first_at, closing_at, closing_xid, next_at, moved_at)"
        " VALUES (1, '-infinity', '-infinity', 0, '-infinity', now())"
    )
