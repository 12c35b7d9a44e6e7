-- advance: moves the instants of what is delayed or may expire by $1 seconds. Sweeps read from a bound on
-- (due_bound).
WITH moved_delays AS (
    UPDATE delayed d SET due_at = greatest(d.due_at - make_interval(secs => $1), b.next_at)
    FROM turnstile.due_bound b RETURNING d.execution_id
),
moved_deadlines AS (
    UPDATE expiring x SET expires_at = greatest(x.expires_at - make_interval(secs => $1), b.next_at)
    FROM turnstile.due_bound b RETURNING x.execution_id
)
UPDATE execution e
SET run_at = CASE WHEN e.id IN (SELECT m.execution_id FROM moved_delays m)
                  THEN e.run_at - make_interval(secs => $1) ELSE e.run_at END,
    expires_at = CASE WHEN e.id IN (SELECT m.execution_id FROM moved_deadlines m)
                      THEN e.expires_at - make_interval(secs => $1) ELSE e.expires_at END
WHERE e.id IN (SELECT m.execution_id FROM moved_delays m UNION SELECT m.execution_id FROM moved_deadlines m)
