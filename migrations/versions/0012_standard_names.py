"""Standard names: published instead of told, completion and cancel instead of end and stop.

Every statement changes the catalogue only, whatever the number of rows. The old names stay readable for one
version, because the audit of the previous version's executors reads them. Views stand for the renamed
tables, and a function for the renamed column: PostgreSQL reads `slot.told_at` as `told_at(slot)`. The next
version drops the views and the function.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in (
        "ALTER TABLE slot RENAME COLUMN told_at TO published_at",
        "ALTER TABLE slot RENAME COLUMN stops_asked TO cancels_sent",
        "ALTER TABLE untold_end RENAME TO unpublished_completion",
        "ALTER TABLE unpublished_completion RENAME COLUMN told_at TO published_at",
        "ALTER TABLE unpublished_completion RENAME CONSTRAINT pk_untold_end TO pk_unpublished_completion",
        "ALTER TABLE untold_stop RENAME TO unpublished_cancel",
        "ALTER TABLE unpublished_cancel RENAME COLUMN noted_at TO recorded_at",
        "ALTER TABLE unpublished_cancel RENAME CONSTRAINT pk_untold_stop TO pk_unpublished_cancel",
        "CREATE VIEW untold_end AS"
        " SELECT execution_id, queue_id, published_at AS told_at FROM unpublished_completion",
        "CREATE VIEW untold_stop AS"
        " SELECT execution_id, attempt, worker_id, recorded_at AS noted_at FROM unpublished_cancel",
        "CREATE FUNCTION told_at(slot) RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT ($1).published_at'",
    ):
        op.execute(statement)
