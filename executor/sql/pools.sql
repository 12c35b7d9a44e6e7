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

-- pool_position: where an execution is among those that wait only for a worker slot of its pool, and who
-- holds these.
--
-- $1 execution id, $2 most positions, $3 most holders
SELECT (SELECT l.rank FROM turnstile.pool_line(a.pool_id, $2) l WHERE l.execution_id = e.id) AS position,
       (SELECT coalesce(sum(c.startable), 0)::bigint FROM turnstile.pool_sources(a.pool_id) c) AS waiting,
       ARRAY(SELECT s.execution_id FROM turnstile.live_slot s WHERE s.pool_id = a.pool_id
             ORDER BY s.execution_id LIMIT $3) AS holders
FROM execution e JOIN action a ON a.id = e.action_id WHERE e.id = $1

-- pool_grants: how long the executions of a pool hold its worker slots, and who holds them now, as
-- `queue_grants` for a queue.
--
-- The cost is bounded: of each of the first actions the latest executions are read.
--
-- $1 execution id, $2 executions looked at of each action, $3 holders
WITH one AS MATERIALIZED (
    SELECT e.action_id, a.pool_id FROM execution e JOIN action a ON a.id = e.action_id WHERE e.id = $1
),
granted AS MATERIALIZED (
    SELECT x.own, extract(epoch FROM now() - x.queued_at)::float8 AS queued_ago,
           extract(epoch FROM now() - x.scheduled_at)::float8 AS granted_ago,
           CASE WHEN x.started_at >= x.scheduled_at
                    THEN extract(epoch FROM x.started_at - x.scheduled_at)::float8 END
               AS claimed_after,
           extract(epoch FROM x.completed_at - x.scheduled_at)::float8 AS lasted
    FROM one o
    CROSS JOIN LATERAL (
        SELECT a.id FROM action a WHERE a.pool_id = o.pool_id ORDER BY a.id = o.action_id DESC, a.id LIMIT 10
    ) u
    CROSS JOIN LATERAL (
        SELECT e.action_id = o.action_id AS own, e.status, e.queued_at, e.scheduled_at, e.started_at,
               e.completed_at
        FROM turnstile.current_execution e
        WHERE e.action_id = u.id AND e.id <= coalesce((
            SELECT max(s.execution_id) FROM turnstile.live_slot s WHERE s.pool_id = o.pool_id),
                                                      9223372036854775807)
        ORDER BY e.id DESC LIMIT $2::integer
    ) x
    WHERE x.scheduled_at IS NOT NULL
      AND x.status IN ('scheduled', 'running', 'completed', 'failed', 'timeout')
)
SELECT now() AS read_at,
       (SELECT json_agg(json_build_array(g.own, g.queued_ago, g.granted_ago, g.claimed_after, g.lasted))
        FROM granted g) AS grants,
       (SELECT array_agg(h.age) FROM (
            SELECT CASE WHEN s.finished_at IS NULL THEN
                       greatest(extract(epoch FROM now() - s.granted_at), 0)::float8 END AS age
            FROM turnstile.live_slot s WHERE s.pool_id = o.pool_id
            ORDER BY hashint8(s.execution_id), s.execution_id LIMIT $3::integer
        ) h) AS ages,
       NULL::bigint AS ahead
FROM one o
