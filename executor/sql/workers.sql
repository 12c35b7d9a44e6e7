-- workers: processes, the newest first.
--
-- $1 states, $2 started before, $3 with an id below this one where they started together, $4 rows, $5 only
-- the one with this id
SELECT w.id, w.name, w.host, w.pid, w.pools, w.concurrency, state.state, coalesce(held.running, 0) AS running,
       w.started_at, w.renewed_at, w.lease_expires_at, w.draining_at, w.stopped_at, w.lost_at, w.version,
       CASE WHEN state.state = 'draining'
                THEN greatest(w.draining_count, held.running, 0) END AS draining_count,
       CASE WHEN state.state = 'draining'
                THEN w.draining_at + make_interval(secs => w.drain_seconds) END AS draining_until,
       w.not_ready
FROM turnstile.current_worker w
CROSS JOIN LATERAL (
    SELECT CASE WHEN w.stopped_at IS NOT NULL THEN 'stopped'
                WHEN w.lost_at IS NOT NULL THEN 'lost'
                WHEN w.lease_expires_at <= now() THEN 'overdue'
                WHEN w.draining_at IS NOT NULL THEN 'draining'
                ELSE 'live' END AS state
) state
LEFT JOIN (
    SELECT s.worker_id, count(*) AS running FROM turnstile.live_slot s
    WHERE s.worker_id IS NOT NULL AND s.finished_at IS NULL GROUP BY s.worker_id
) held ON held.worker_id = w.id
WHERE ($5::text IS NULL OR w.id = $5)
  AND ($1::text[] IS NULL OR state.state = ANY ($1))
  AND ($2::timestamptz IS NULL OR (w.started_at, w.id) < ($2, $3::text))
ORDER BY w.started_at DESC, w.id DESC LIMIT $4

-- worker_id: the id of a worker, by its id or else by its name: of one that is there, else of the newest. The
-- name is searched among the $2 workers that started last.
-- $1 id or name
SELECT w.id FROM (
    SELECT n.id, n.started_at, false AS is_gone FROM worker n WHERE n.id = $1
    UNION ALL
    SELECT n.id, n.started_at, n.is_gone FROM (
        SELECT l.id, l.name, l.started_at, false AS is_gone FROM worker l
        WHERE l.lost_at IS NULL AND l.stopped_at IS NULL
        UNION ALL
        (SELECT g.id, g.name, g.started_at, true FROM worker g
         WHERE g.lost_at IS NOT NULL OR g.stopped_at IS NOT NULL ORDER BY g.started_at DESC LIMIT $2)
    ) n WHERE n.name = $1
) w ORDER BY w.id = $1 DESC, w.is_gone, w.started_at DESC LIMIT 1

-- worker_facts: what one worker said at its registration, and the pools that it serves.
-- $1 id
SELECT w.start_notes, w.served_refs IS NOT NULL AS names_actions, pools.pools
FROM turnstile.current_worker w
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_object(
               'pool', n.pool, 'capacity', coalesce(p.places, 0), 'held', coalesce(p.held, 0),
               'waiting_queues', coalesce(p.depth, 0)) ORDER BY n.ord) AS pools
    FROM unnest(w.pools[1 : 100]) WITH ORDINALITY n(pool, ord)
    LEFT JOIN turnstile.current_pool p ON p.name = n.pool
) pools
WHERE w.id = $1

-- worker_actions: the actions whose code a worker has, by name.
-- $1 id, $2 rows
SELECT n.ref AS action_ref, a.pool, a.max_concurrent, a.paused, a.updated_at
FROM worker w
CROSS JOIN LATERAL unnest(w.served_refs) n(ref)
LEFT JOIN action a ON a.ref = n.ref AND a.deleted_at IS NULL
WHERE w.id = $1
ORDER BY n.ref LIMIT $2

-- worker_runs: what a worker runs, the longest first.
-- $1 id, $2 rows
SELECT e.id, a.ref AS action_ref, e.concurrency_key, e.attempt, e.started_at, e.completed_at,
       e.timeout_seconds,
       e.cancel_requested_at, e.cancel_reason, w.stop_grace_seconds, now() AS read_at
FROM turnstile.live_slot s
JOIN turnstile.current_execution e ON e.id = ANY (ARRAY[s.execution_id])
JOIN action a ON a.id = e.action_id
JOIN worker w ON w.id = s.worker_id
WHERE s.worker_id = $1 AND s.finished_at IS NULL
ORDER BY s.claimed_at, s.execution_id LIMIT $2

-- worker_failures: the newest attempts of a worker that failed, among those of the $2 newest executions.
-- There is no index on the worker, which is written at the end of an execution.
-- $1 id, $3 rows
WITH newest AS MATERIALIZED (
    SELECT coalesce((SELECT e.id FROM execution e ORDER BY e.id DESC OFFSET $2 LIMIT 1), 0) AS before_id
)
SELECT h.execution_id, a.ref AS action_ref, h.attempt, h.outcome, left(h.error_type, 200) AS error_type,
       left(h.error_message, 1000) AS error_message, h.started_at, h.ended_at
FROM newest n
CROSS JOIN LATERAL (
    SELECT t.* FROM turnstile.ended_attempt t
    WHERE t.execution_id > n.before_id AND t.worker_id = $1
      AND t.outcome IN ('failed', 'timeout', 'abandoned', 'retried', 'reclaimed')
    ORDER BY t.ended_at DESC LIMIT $3
) h
JOIN execution e ON e.id = h.execution_id
JOIN action a ON a.id = e.action_id
ORDER BY h.ended_at DESC

-- pools: the pools of workers that may still renew their lease, the longest served first, with the number of
-- these workers and of the offers that each of them takes in one message. A worker's account writes its
-- own pools: only the first hundred of a worker count, so that no worker crowds out the others.
SELECT p.pool, count(*) AS workers, min(w.offers_per_message) AS offers_per_message
FROM worker w CROSS JOIN LATERAL unnest(w.pools[1:100]) p(pool)
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
GROUP BY p.pool ORDER BY min(w.started_at), p.pool LIMIT 1000
