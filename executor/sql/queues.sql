-- queue_stats: the state of the queues of one action, in one snapshot.
--
-- Depths, held slots and totals change only in the transaction that changes the rows, so they equal a
-- recount. The totals include deleted queues of idle keys. Of the list only the heads are read: the cost does
-- not depend on its length. What waits at later gates holds a slot of its queue, and is counted one by one.
--
-- What queued executions wait for, the nearest reason first: the queue is paused; a gate of their route is
-- closed (total or resource); all slots are held, or will be by executions ahead (limit); no worker of the
-- pool serves the action; the later gate where they wait (total, resource, or a rate that is used up);
-- capacity of the pool, or only the next dispatch (pool). A granted execution is not counted, even if no
-- worker has claimed it.
--
-- $1 action ref, $2 keys listed
WITH queues AS MATERIALIZED (
    SELECT q.id, q.concurrency_key, q.head_id, q.heads, q.depth, q.paused, q.total_enqueued,
           q.total_completed, q.updated_at,
           q.held AS slots, coalesce(q.max_concurrent = 0, false) AS starts_nothing,
           CASE WHEN q.paused THEN 0
                ELSE least(q.depth,
                           greatest(coalesce(q.max_concurrent - q.held, q.depth), 0)) END AS startable
    FROM turnstile.current_queue q
    WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
),
-- The first gate of the route that no release of units opens.
closed AS MATERIALIZED (
    SELECT g.kind
    FROM action a
    CROSS JOIN unnest(a.route, a.route_units) WITH ORDINALITY r(gate_id, units, rank)
    JOIN gate g ON g.id = r.gate_id
    -- What a paused pool has sent back to its queue waits there for the pool.
    WHERE a.ref = $1 AND g.kind <> 'pool' AND (g.paused OR g.capacity < r.units)
    ORDER BY r.rank LIMIT 1
),
-- While every rate has a start, what waits for one lacks only capacity of the pool.
rates AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT FROM turnstile.starts_left(a.route, clock_timestamp()) l
                       WHERE l.starts <= 0) AS has_starts
    FROM action a WHERE a.ref = $1
),
worked AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM action a WHERE a.ref = $1 AND turnstile.is_served(a)) AS served
),
-- Without a worker no gate lets them pass.
later AS MATERIALIZED (
    SELECT n.queue_id, min(n.id) AS first_id, count(*) AS executions,
           count(*) FILTER (WHERE n.kind = 'action') AS on_total,
           count(*) FILTER (WHERE n.kind = 'resource') AS on_resource,
           count(*) FILTER (WHERE n.kind = 'pool' AND NOT n.has_starts) AS on_rate,
           count(*) FILTER (WHERE n.kind IS NULL OR n.kind = 'pool' AND n.has_starts) AS startable
    FROM (
        SELECT w.queue_id, turnstile.id_of_place(w.place) AS id,
               CASE WHEN (SELECT k.served FROM worked k) THEN g.kind END AS kind,
               (SELECT r.has_starts FROM rates r) AS has_starts
        FROM queues l
        JOIN waiting w ON w.queue_id = ANY (ARRAY[l.id])
        LEFT JOIN gate_flow f ON f.id = ANY (ARRAY[w.line_id])
        JOIN gate g ON g.id = coalesce(f.gate_id, w.line_id)
        WHERE EXISTS (SELECT FROM gate)
    ) n GROUP BY n.queue_id
),
total AS (
    SELECT coalesce(sum(l.depth + coalesce(n.executions, 0)), 0)::bigint AS depth,
           coalesce(sum(l.slots - coalesce(n.executions, 0)), 0)::bigint AS slots,
           coalesce(sum(n.executions), 0)::bigint AS held_waiting,
           coalesce(sum(l.depth + coalesce(n.executions, 0)) FILTER (WHERE l.paused), 0)::bigint AS on_pause,
           coalesce(sum(l.depth + coalesce(n.executions, 0)) FILTER (WHERE c.is_closed AND NOT l.paused),
                    0)::bigint
               AS on_closed,
           coalesce(sum(l.depth - l.startable + CASE WHEN l.starts_nothing THEN coalesce(n.executions, 0)
                                                     ELSE 0 END)
                    FILTER (WHERE c.is_open AND NOT l.paused), 0)::bigint AS on_limit,
           coalesce(sum(n.on_total) FILTER (WHERE c.is_open AND NOT l.paused AND NOT l.starts_nothing),
                    0)::bigint
               AS on_total,
           coalesce(sum(n.on_resource) FILTER (WHERE c.is_open AND NOT l.paused AND NOT l.starts_nothing),
                    0)::bigint
               AS on_resource,
           coalesce(sum(n.on_rate) FILTER (WHERE c.is_open AND NOT l.paused AND NOT l.starts_nothing),
                    0)::bigint
               AS on_rate,
           coalesce(sum(l.startable + CASE WHEN l.paused OR l.starts_nothing THEN 0
                                           ELSE coalesce(n.startable, 0) END)
                    FILTER (WHERE c.is_open), 0)::bigint AS startable,
           coalesce(sum(l.total_enqueued), 0)::bigint AS enqueued,
           coalesce(sum(l.total_completed), 0)::bigint AS completed,
           max(l.updated_at) AS updated_at
    FROM queues l
    LEFT JOIN later n ON n.queue_id = l.id
    CROSS JOIN (SELECT EXISTS (SELECT FROM closed) AS is_closed, NOT EXISTS (SELECT FROM closed) AS is_open) c
),
deleted AS (
    SELECT t.executions, t.updated_at FROM deleted_queue_total t
    WHERE t.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
),
head AS (
    SELECT e.queued_at FROM execution e
    WHERE e.id = (
        SELECT least(min(first.execution_id), (SELECT min(n.first_id) FROM later n))
        FROM queues l
        CROSS JOIN LATERAL (
            SELECT turnstile.id_of_place(w.place) AS execution_id
            FROM turnstile.first_waiting(l.id, l.head_id, l.heads, 1) w
        ) first
        WHERE l.depth > 0
    )
)
SELECT a.id AS action_id, a.ref AS action_ref, a.max_concurrent, a.paused,
       t.depth AS queue_length, t.slots AS active_count, t.held_waiting,
       (SELECT h.queued_at FROM head h) AS oldest_enqueued_at,
       t.enqueued + coalesce(d.executions, 0) AS total_enqueued,
       t.completed + coalesce(d.executions, 0) AS total_completed,
       greatest(a.updated_at, t.updated_at, d.updated_at) AS last_updated,
       t.on_pause, t.on_limit, t.on_rate,
       t.on_total + CASE WHEN (SELECT c.kind FROM closed c) = 'action' THEN t.on_closed
                         ELSE 0 END AS on_total,
       t.on_resource + CASE WHEN (SELECT c.kind FROM closed c) = 'resource' THEN t.on_closed
                            ELSE 0 END AS on_resource,
       CASE WHEN w.served THEN 0 ELSE t.startable END AS on_worker,
       CASE WHEN w.served THEN t.startable ELSE 0 END AS on_pool,
       (
           SELECT json_agg(json_build_object(
                      'concurrency_key', k.concurrency_key, 'queue_length', k.depth, 'active_count', k.slots,
                      'held_waiting', k.held_waiting
                  ) ORDER BY k.depth DESC, k.slots DESC, k.concurrency_key)
           FROM (
               SELECT l.concurrency_key, l.depth + coalesce(n.executions, 0) AS depth,
                      l.slots - coalesce(n.executions, 0) AS slots, coalesce(n.executions, 0) AS held_waiting
               FROM queues l LEFT JOIN later n ON n.queue_id = l.id WHERE l.concurrency_key <> ''
               ORDER BY 2 DESC, 3 DESC, 1 LIMIT $2
           ) k
       ) AS by_key
FROM action a CROSS JOIN total t CROSS JOIN worked w LEFT JOIN deleted d ON true
WHERE a.ref = $1 AND a.deleted_at IS NULL

-- queue_waiting: queued executions of an action, by priority and id, with exact positions. Each key has its
-- own queue, so positions count within one key; the page covers all queues, or the one that $2 names.
--
-- $1 action ref, $2 concurrency key, $3 and $4 after this priority and id, $5 rows
WITH queues AS MATERIALIZED (
    SELECT q.id, q.concurrency_key, q.head_id, q.heads
    FROM turnstile.current_queue q
    WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
      AND ($2::text IS NULL OR q.concurrency_key = $2) AND q.depth > 0
),
page AS MATERIALIZED (
    SELECT l.id AS queue_id, l.concurrency_key, l.head_id, l.heads, w.place,
           turnstile.id_of_place(w.place) AS execution_id
    FROM queues l
    CROSS JOIN turnstile.line_ranges(l.head_id, l.heads) r
    CROSS JOIN LATERAL (
        SELECT w.place FROM waiting w
        WHERE w.line_id = l.id
          AND w.place BETWEEN greatest(r.first_place, turnstile.place_of($3, $4) + 1) AND r.last_place
        ORDER BY w.place LIMIT $5::integer
    ) w
    ORDER BY w.place LIMIT $5::integer
),
-- One count for each queue on the page; the positions within the page follow from it.
ahead AS MATERIALIZED (
    SELECT f.queue_id, (
        SELECT turnstile.waiting_up_to(f.queue_id, f.head_id, f.heads, f.first_place - 1)
    ) AS places
    FROM (
        SELECT p.queue_id, p.head_id, p.heads, min(p.place) AS first_place
        FROM page p GROUP BY p.queue_id, p.head_id, p.heads
    ) f
)
SELECT p.execution_id AS id, nullif(p.concurrency_key, '') AS concurrency_key, e.priority, e.created_at,
       e.queued_at,
       b.places + row_number() OVER (PARTITION BY p.queue_id ORDER BY p.place) AS position
FROM page p
JOIN ahead b ON b.queue_id = p.queue_id
JOIN execution e ON e.id = p.execution_id
ORDER BY p.place

-- queue_holders: the slot holders of an action's queues, or of the queue that $2 names, oldest execution
-- first. A slot whose execution has ended is held until its completion is settled. One that waits at a later
-- gate has a slot of its queue too, since it passed the queue.
--
-- $1 action ref, $2 concurrency key, $3 rows
SELECT s.execution_id AS id, nullif(q.concurrency_key, '') AS concurrency_key,
       coalesce(s.attempt, e.attempt + 1) AS attempt, e.status::text AS status,
       coalesce(e.started_at IS NOT NULL AND e.completed_at IS NULL
                AND (e.cancel_requested_at IS NOT NULL
                     OR e.started_at + e.timeout_seconds * interval '1 second' <= now()), false) AS stopping,
       s.worker_id, s.granted_at, s.claimed_at, s.finished_at
FROM action_queue q
JOIN (
    SELECT h.execution_id, h.queue_id, h.attempt, h.worker_id, h.granted_at, h.claimed_at, h.finished_at
    FROM turnstile.live_slot h
    UNION ALL
    SELECT turnstile.id_of_place(w.place), w.queue_id, NULL, NULL, w.passed_ats[1], NULL, NULL
    FROM waiting w WHERE w.queue_id IS NOT NULL
) s ON s.queue_id = q.id
JOIN turnstile.current_execution e ON e.id = s.execution_id
WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
  AND ($2::text IS NULL OR q.concurrency_key = $2)
ORDER BY s.execution_id LIMIT $3
