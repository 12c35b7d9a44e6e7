"""Bounds on the size of a submission from a database session.

Those that are larger and not admitted yet are rejected: no executor can read them.
"""

from alembic import op

revision = "0026"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Until the end of this migration no session submits, so that none adds a row that the constraints refuse.
    op.execute("LOCK TABLE submission IN SHARE ROW EXCLUSIVE MODE")
    op.execute(_REJECT)
    op.execute("UPDATE submission SET traceparent = NULL WHERE octet_length(traceparent) > 55")
    op.create_check_constraint(
        op.f("ck_submission_request_is_bounded"), "submission", "octet_length(request::text) <= 16842752"
    )
    op.create_check_constraint(
        op.f("ck_submission_traceparent_is_bounded"), "submission", "octet_length(traceparent) <= 55"
    )


_REJECT = """
WITH gone AS (
    DELETE FROM submission s WHERE octet_length(s.request::text) > 16842752
    RETURNING s.request_id, octet_length(s.request::text) AS request_bytes
),
out_of_line AS (
    DELETE FROM submission_line l USING gone g WHERE l.request_id = g.request_id
)
INSERT INTO submission_outcome (request_id, code, message, decided_at)
SELECT g.request_id, 'too_large',
       format('body: %s bytes, at most 16777216 are accepted; send a reference instead', g.request_bytes),
       clock_timestamp()
FROM gone g
ON CONFLICT DO NOTHING
"""
