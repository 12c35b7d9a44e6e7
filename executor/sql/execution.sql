-- execution: one execution, and the facts from which follows what it waits for (P10).
-- $1 id
SELECT e.id, a.ref AS action_ref, e.concurrency_key, e.idempotency_key, e.status::text AS status, e.attempt,
       e.parameters, e.result, e.metadata, e.error_type, e.error_message, e.worker_id,
       e.created_at, e.queued_at, e.scheduled_at, e.started_at, e.completed_at, e.run_at, e.expires_at, e.retry_of,
       a.pool, coalesce(q.paused, a.paused) AS paused, q.max_concurrent, q.depth,
       EXISTS (
           SELECT FROM worker w
           WHERE a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
             AND w.draining_at IS NULL AND w.lease_expires_at > now()
             AND (a.runner <> 'python' OR a.entrypoint IS NOT NULL OR w.served_refs IS NULL
                  OR a.ref = ANY (w.served_refs))
       ) AS served,
       place.position, held.active_count, held.holder_ids, history.attempts
FROM execution e
JOIN action a ON a.id = e.action_id
-- What has ended may be of a queue that was deleted as idle.
LEFT JOIN action_queue q ON q.id = e.queue_id
-- `head_id` lets the count start behind the entries that earlier grants left dead in the index.
CROSS JOIN LATERAL (
    SELECT CASE WHEN e.status = 'queued' THEN (
        SELECT count(*) FROM waiting w
        WHERE w.queue_id = e.queue_id AND w.execution_id >= q.head_id AND w.execution_id <= e.id
    ) END AS position
) place
CROSS JOIN LATERAL (
    SELECT count(*) AS active_count, (array_agg(s.execution_id ORDER BY s.execution_id))[1:100] AS holder_ids
    FROM slot s WHERE e.status = 'queued' AND s.queue_id = e.queue_id
) held
-- The claim that runs has no row in the history yet: its slot stands for it.
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_object(
               'attempt', t.attempt, 'worker_id', t.worker_id, 'outcome', t.outcome,
               'error', CASE WHEN t.error_type IS NOT NULL THEN json_build_object(
                   'type', t.error_type, 'message', coalesce(t.error_message, '')) END,
               'granted_at', t.granted_at, 'started_at', t.started_at, 'ended_at', t.ended_at
           ) ORDER BY t.attempt) AS attempts
    FROM (
        SELECT h.attempt, h.worker_id, h.outcome, h.error_type, h.error_message,
               h.granted_at, h.started_at, h.ended_at
        FROM attempt h WHERE h.execution_id = e.id
        UNION ALL
        SELECT s.attempt, s.worker_id, NULL, NULL, NULL, s.granted_at, s.claimed_at, NULL
        FROM slot s WHERE s.execution_id = e.id AND s.claimed_at IS NOT NULL AND s.finished_at IS NULL
    ) t
) history
WHERE e.id = $1
