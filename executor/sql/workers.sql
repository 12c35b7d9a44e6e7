-- workers: processes, the newest first.
--
-- $1 states, $2 started before, $3 with an id below this one where they started together, $4 rows, $5 only
-- the one with this id
SELECT w.id, w.name, w.host, w.pid, w.pools, w.concurrency, state.state, coalesce(held.running, 0) AS running,
       w.started_at, w.renewed_at, w.lease_expires_at, w.draining_at, w.stopped_at, w.lost_at
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

-- pools: the pools of workers that may still renew their lease, the longest served first, with the number of these
-- workers and of the offers that each of them takes in one message. A worker's account writes its own pools: only the
-- first hundred of a worker count, so that no worker crowds out the others.
SELECT p.pool, count(*) AS workers, min(w.offers_per_message) AS offers_per_message
FROM worker w CROSS JOIN LATERAL unnest(w.pools[1:100]) p(pool)
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
GROUP BY p.pool ORDER BY min(w.started_at), p.pool LIMIT 1000
