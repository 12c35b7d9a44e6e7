-- advance: move the instants of what is delayed or may expire by $1 seconds. A statement after `depose`, in
-- its transaction: it sees what the last turn has written.
WITH moved_live AS (
    UPDATE ledger.live l
    SET due_at = l.due_at - make_interval(secs => $1), expires_at = l.expires_at - make_interval(secs => $1)
),
moved_waiting AS (
    UPDATE ledger.waiting w SET expires_at = w.expires_at - make_interval(secs => $1)
)
UPDATE ledger.execution e SET expires_at = e.expires_at - make_interval(secs => $1)
WHERE e.completed_at IS NULL AND e.expires_at IS NOT NULL
