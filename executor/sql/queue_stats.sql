-- queue_stats: how the queues of one action stand, in one snapshot.
--
-- Depths and totals change only in the transaction that changes the rows, so they equal a recount; slots
-- are counted from their rows. What idle keys counted before their queues were deleted is part of the totals. Nothing here reads the line but its heads: 1,000,000 waiting do not show.
--
-- What the waiting ones wait for, the nearest reason first: their queue is paused; all its slots are held, or
-- will be by those before them (limit); no worker of its pool serves the action; nothing but the next hand-over (rate).
-- A granted execution holds a slot and waits no more, even where no worker has claimed it.
--
-- $1 action ref, $2 keys listed
WITH line AS MATERIALIZED (
    SELECT q.id, q.concurrency_key, q.head_id, q.depth, q.paused, q.total_enqueued, q.total_completed, q.updated_at,
           held.slots,
           CASE WHEN q.paused THEN 0
                ELSE least(q.depth, greatest(coalesce(q.max_concurrent - held.slots, q.depth), 0)) END AS startable
    FROM action_queue q
    CROSS JOIN LATERAL (SELECT count(*) AS slots FROM slot s WHERE s.queue_id = q.id) held
    WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
),
total AS (
    SELECT coalesce(sum(l.depth), 0)::bigint AS depth, coalesce(sum(l.slots), 0)::bigint AS slots,
           coalesce(sum(l.depth) FILTER (WHERE l.paused), 0)::bigint AS on_pause,
           coalesce(sum(l.depth - l.startable) FILTER (WHERE NOT l.paused), 0)::bigint AS on_limit,
           coalesce(sum(l.startable), 0)::bigint AS startable,
           coalesce(sum(l.total_enqueued), 0)::bigint AS enqueued,
           coalesce(sum(l.total_completed), 0)::bigint AS completed,
           max(l.updated_at) AS updated_at
    FROM line l
),
deleted AS (
    SELECT t.executions, t.updated_at FROM deleted_queue_total t
    WHERE t.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
),
head AS (
    SELECT e.queued_at FROM execution e
    WHERE e.id = (
        SELECT min(first.execution_id)
        FROM line l
        CROSS JOIN LATERAL (
            SELECT w.execution_id FROM waiting w
            WHERE w.queue_id = l.id AND w.execution_id >= l.head_id
            ORDER BY w.execution_id LIMIT 1
        ) first
        WHERE l.depth > 0
    )
),
worked AS (
    SELECT EXISTS (
        SELECT FROM worker w, action a
        WHERE a.ref = $1 AND a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
          AND w.draining_at IS NULL AND w.lease_expires_at > now()
          AND (a.runner <> 'python' OR a.entrypoint IS NOT NULL OR w.served_refs IS NULL
               OR a.ref = ANY (w.served_refs))
    ) AS served
)
SELECT a.id AS action_id, a.ref AS action_ref, a.max_concurrent, a.paused,
       t.depth AS queue_length, t.slots AS active_count, (SELECT h.queued_at FROM head h) AS oldest_enqueued_at,
       t.enqueued + coalesce(d.executions, 0) AS total_enqueued,
       t.completed + coalesce(d.executions, 0) AS total_completed,
       greatest(a.updated_at, t.updated_at, d.updated_at) AS last_updated,
       t.on_pause, t.on_limit,
       CASE WHEN w.served THEN 0 ELSE t.startable END AS on_worker,
       CASE WHEN w.served THEN t.startable ELSE 0 END AS on_rate,
       (
           SELECT json_agg(json_build_object(
                      'concurrency_key', k.concurrency_key, 'queue_length', k.depth, 'active_count', k.slots
                  ) ORDER BY k.depth DESC, k.slots DESC, k.concurrency_key)
           FROM (
               SELECT l.concurrency_key, l.depth, l.slots FROM line l WHERE l.concurrency_key <> ''
               ORDER BY l.depth DESC, l.slots DESC, l.concurrency_key LIMIT $2
           ) k
       ) AS by_key
FROM action a CROSS JOIN total t CROSS JOIN worked w LEFT JOIN deleted d ON true
WHERE a.ref = $1 AND a.deleted_at IS NULL
