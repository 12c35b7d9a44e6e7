-- stored_pools: settings, states and actions of pools in the order of their names: of one, or of those after
-- a name.
--
-- $1 name or null, $2 after this name, $3 rows, $4 most actions of each
SELECT p.id, p.name, w.paused, w.fair, w.weights, p.places AS capacity, p.held, s.waiting,
       p.held + coalesce(d.executions, 0) AS wanted, n.actions, n.listed,
       ARRAY(SELECT k.ref FROM jsonb_object_keys(w.weights) k(ref)
             WHERE NOT EXISTS (SELECT FROM action a
                               WHERE a.ref = k.ref AND a.pool_id = p.id AND a.deleted_at IS NULL)
             ORDER BY k.ref COLLATE "C") AS strangers,
       w.created_at, w.updated_at
FROM (
    SELECT c.* FROM worker_pool c
    WHERE c.name = $1 OR $1::text IS NULL AND c.name COLLATE "C" > $2 ORDER BY c.name COLLATE "C" LIMIT $3
) w
JOIN turnstile.current_pool p ON p.id = w.id
CROSS JOIN LATERAL turnstile.pool_actions(p.id, w.weights, $4) n
LEFT JOIN turnstile.waiting_for_workers() d ON d.pool_id = p.id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(c.startable), 0)::bigint AS waiting FROM turnstile.pool_sources(p.id) c
) s
ORDER BY p.name COLLATE "C"

-- pool_queue: the state of one pool, and who holds its worker slots.
--
-- $1 name, $2 most holders
SELECT p.name, p.paused, p.fair, p.places AS capacity, p.held,
       (SELECT coalesce(sum(c.startable), 0)::bigint FROM turnstile.pool_sources(p.id) c) AS waiting,
       (SELECT json_agg(json_build_object(
                   'id', h.execution_id, 'action_ref', a.ref, 'concurrency_key',
                   nullif(q.concurrency_key, ''), 'status',
                   CASE WHEN h.finished_at IS NOT NULL THEN 'ended' WHEN h.claimed_at IS NULL THEN 'scheduled'
                                  ELSE 'running' END,
                   'worker_id', h.worker_id, 'granted_at', h.granted_at
               ) ORDER BY h.execution_id)
        FROM (SELECT * FROM turnstile.live_slot s WHERE s.pool_id = p.id ORDER BY s.execution_id LIMIT $2) h
        JOIN action_queue q ON q.id = h.queue_id
        JOIN action a ON a.id = q.action_id) AS holders
FROM turnstile.current_pool p WHERE p.name = $1

-- pool_waiting: the executions that wait only for a worker slot of a pool, in the order in which they will
-- start.
--
-- $1 name, $2 positions before the page, $3 rows
SELECT e.id, l.rank AS position, a.ref AS action_ref, e.concurrency_key, l.priority, e.queued_at
FROM worker_pool p
CROSS JOIN LATERAL turnstile.pool_line(p.id, $2::bigint + $3::bigint) l
JOIN execution e ON e.id = ANY (ARRAY[l.execution_id])
JOIN action a ON a.id = e.action_id
WHERE p.name = $1 AND l.rank > $2::bigint
ORDER BY l.rank
