-- dashboard_queues: the queues that changed since an instant, or all of them, the busy ones first.
--
-- Every change of a queue's state sets its `updated_at`, so the changes of a second are found by it, and only for
-- those the head is read. What passes a later gate changes only the gate: then the queues with held slots are read whose
-- executions pass it. An unused action has no queue yet and has a row of its own.
--
-- $1 changed since (null: all), $2 rows
WITH passed AS MATERIALIZED (
    SELECT array_agg(g.id) AS gate_ids FROM turnstile.current_gate g WHERE g.updated_at > $1::timestamptz
),
moved AS MATERIALIZED (
    SELECT q.id AS queue_id, a.id AS action_id, a.ref AS action_ref, q.concurrency_key, a.pool, q.head_id, q.heads,
           coalesce(q.depth, 0) AS depth, coalesce(q.held, 0) AS held, coalesce(q.total_enqueued, 0) AS total_enqueued,
           coalesce(q.total_completed, 0) AS total_completed, a.max_concurrent, a.paused,
           coalesce(q.held, 0) > 0 AND a.route IS NOT NULL AS may_wait_later
    FROM action a
    LEFT JOIN turnstile.current_queue q ON q.action_id = a.id
    WHERE a.deleted_at IS NULL
      AND ($1::timestamptz IS NULL OR greatest(q.updated_at, a.updated_at) > $1::timestamptz
           OR q.held > 0 AND a.route && (SELECT p.gate_ids FROM passed p))
    ORDER BY coalesce(q.depth, 0) > 0 DESC, q.updated_at DESC NULLS LAST, a.id LIMIT $2::integer
)
SELECT m.queue_id, m.action_ref, nullif(m.concurrency_key, '') AS concurrency_key, m.pool,
       m.depth + coalesce(l.executions, 0) AS depth, m.held - coalesce(l.executions, 0) AS active_count, m.total_enqueued, m.total_completed, m.max_concurrent, m.paused,
       -- One by one, so that no plan reads the whole history.
       CASE WHEN m.depth > 0 OR l.executions > 0 THEN (
           SELECT e.queued_at FROM execution e
           WHERE e.id = least(l.first_id, (
               SELECT turnstile.id_of_place(w.place) FROM turnstile.first_waiting(m.queue_id, m.head_id, m.heads, 1) w
           ))
       ) END AS oldest_enqueued_at
FROM moved m
LEFT JOIN LATERAL (
    SELECT count(*) AS executions, min(turnstile.id_of_place(w.place)) AS first_id
    FROM waiting w WHERE w.queue_id = m.queue_id
) l ON m.may_wait_later

-- dashboard_workers: counts of the registered workers, and the pools that they serve. One row.
SELECT now() AS read_at,
       count(*) FILTER (WHERE w.lease_expires_at > now() AND w.draining_at IS NULL) AS live,
       count(*) FILTER (WHERE w.lease_expires_at > now() AND w.draining_at IS NOT NULL) AS draining,
       count(*) FILTER (WHERE w.lease_expires_at <= now()) AS overdue,
       coalesce(sum(w.concurrency) FILTER (WHERE w.lease_expires_at > now() AND w.draining_at IS NULL), 0) AS places,
       coalesce((
           SELECT array_agg(DISTINCT p.pool)
           FROM turnstile.current_worker l CROSS JOIN LATERAL unnest(l.pools) p(pool)
           WHERE l.lost_at IS NULL AND l.stopped_at IS NULL AND l.draining_at IS NULL AND l.lease_expires_at > now()
       ), '{}') AS pools
FROM turnstile.current_worker w
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL

-- dashboard_deleted: how many executions the deleted queues of idle keys counted, over all actions.
SELECT coalesce(sum(t.executions), 0)::bigint AS executions
FROM deleted_queue_total t JOIN action a ON a.id = t.action_id WHERE a.deleted_at IS NULL

-- dashboard_executions: the status of these executions; by primary key.
-- $1 ids
SELECT e.id, e.status::text AS status, e.attempt FROM turnstile.current_execution e WHERE e.id = ANY ($1::bigint[])
