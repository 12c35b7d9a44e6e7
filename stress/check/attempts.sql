-- Every grant, including attempts that have not ended, and since when the execution waited for it.
WITH granted AS (
    SELECT t.execution_id, t.attempt, t.granted_at, t.started_at, t.ended_at
    FROM turnstile.ended_attempt t
    UNION ALL
    SELECT s.execution_id, s.attempt, s.granted_at, s.claimed_at, NULL FROM slot s WHERE s.finished_at IS NULL
)
SELECT a.ref AS action_ref, q.id AS queue_id, q.max_concurrent, g.execution_id, g.granted_at, g.started_at, g.ended_at,
       -- A later attempt waits from the end of the previous one.
       coalesce(lag(g.ended_at) OVER (PARTITION BY g.execution_id ORDER BY g.attempt), e.created_at) AS waiting_since
FROM granted g
JOIN execution e ON e.id = g.execution_id
JOIN action_queue q ON q.id = e.queue_id
JOIN action a ON a.id = e.action_id
ORDER BY q.id, g.granted_at, g.execution_id
