-- dashboard_queues: the queues that moved since an instant, or all of them, the busy ones first.
--
-- Every move of a depth or a total sets the queue's `updated_at`, so a second's changes are found by it, and
-- only those are looked at closer: who stands at their heads, and since when. An action that was never used
-- has no queue yet and stands for itself. Slots are freed by retries too, which move no total: they are counted
-- apart, in `dashboard_slots`.
--
-- $1 moved since (null: all), $2 rows
WITH moved AS MATERIALIZED (
    SELECT q.id AS queue_id, a.id AS action_id, a.ref AS action_ref, q.concurrency_key, a.pool, q.head_id,
           coalesce(q.depth, 0) AS depth, coalesce(q.total_enqueued, 0) AS total_enqueued,
           coalesce(q.total_completed, 0) AS total_completed, a.max_concurrent, a.paused
    FROM action a
    LEFT JOIN action_queue q ON q.action_id = a.id
    WHERE a.deleted_at IS NULL
      AND ($1::timestamptz IS NULL OR greatest(q.updated_at, a.updated_at) > $1::timestamptz)
    ORDER BY coalesce(q.depth, 0) > 0 DESC, q.updated_at DESC NULLS LAST, a.id LIMIT $2::integer
)
SELECT m.queue_id, m.action_ref, nullif(m.concurrency_key, '') AS concurrency_key, m.pool, m.depth,
       m.total_enqueued, m.total_completed, m.max_concurrent, m.paused,
       -- Asked for one by one, so that no plan reads the history to answer it.
       CASE WHEN m.depth > 0 THEN (
           SELECT e.queued_at FROM execution e
           WHERE e.id = (
               SELECT w.execution_id FROM waiting w
               WHERE w.queue_id = m.queue_id AND w.execution_id >= m.head_id
               ORDER BY w.execution_id LIMIT 1
           )
       ) END AS oldest_enqueued_at
FROM moved m
