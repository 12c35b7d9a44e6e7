-- queue_stats: the state of the queues of one action, in one snapshot.
--
-- Depths, held slots and totals change only in the transaction that changes the rows, so they equal a recount.
-- The totals include deleted queues of idle keys. Of the line only the heads are read: the cost does not depend
-- on its length.
--
-- What queued executions wait for, the nearest reason first: the queue is paused; all its slots are held, or will be
-- by executions ahead (limit); no worker of its pool serves the action; only the next dispatch (rate). A granted
-- execution holds a slot and is not counted, even if no worker has claimed it.
--
-- $1 action ref, $2 keys listed
WITH line AS MATERIALIZED (
    SELECT q.id, q.concurrency_key, q.head_id, q.heads, q.depth, q.paused, q.total_enqueued, q.total_completed, q.updated_at,
           q.held AS slots,
           CASE WHEN q.paused THEN 0
                ELSE least(q.depth, greatest(coalesce(q.max_concurrent - q.held, q.depth), 0)) END AS startable
    FROM turnstile.current_queue q
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
            SELECT turnstile.id_of_place(w.place) AS execution_id
            FROM turnstile.first_waiting(l.id, l.head_id, l.heads, 1) w
        ) first
        WHERE l.depth > 0
    )
),
worked AS (
    SELECT EXISTS (
        SELECT FROM turnstile.current_worker w, action a
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

-- queue_line: queued executions of an action, by priority and id, with exact positions. Each key has its own queue, so positions
-- count within one key; the page covers all queues, or the one that $2 names.
--
-- $1 action ref, $2 concurrency key, $3 and $4 after this priority and id, $5 rows
WITH line AS MATERIALIZED (
    SELECT q.id, q.concurrency_key, q.head_id, q.heads
    FROM turnstile.current_queue q
    WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
      AND ($2::text IS NULL OR q.concurrency_key = $2) AND q.depth > 0
),
page AS MATERIALIZED (
    SELECT l.id AS queue_id, l.concurrency_key, l.head_id, l.heads, w.place, turnstile.id_of_place(w.place) AS execution_id
    FROM line l
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
SELECT p.execution_id AS id, nullif(p.concurrency_key, '') AS concurrency_key, e.priority, e.created_at, e.queued_at,
       b.places + row_number() OVER (PARTITION BY p.queue_id ORDER BY p.place) AS position
FROM page p
JOIN ahead b ON b.queue_id = p.queue_id
JOIN execution e ON e.id = p.execution_id
ORDER BY p.place

-- queue_holders: the slot holders of an action's queues, or of the queue that $2 names, oldest execution first.
-- A slot whose execution has ended is held until its completion is settled.
--
-- $1 action ref, $2 concurrency key, $3 rows
SELECT s.execution_id AS id, nullif(q.concurrency_key, '') AS concurrency_key, s.attempt, e.status::text AS status,
       s.worker_id, s.granted_at, s.claimed_at, s.finished_at
FROM action_queue q
JOIN turnstile.live_slot s ON s.queue_id = q.id
JOIN turnstile.current_execution e ON e.id = s.execution_id
WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1) AND ($2::text IS NULL OR q.concurrency_key = $2)
ORDER BY s.execution_id LIMIT $3

-- queue_pace: the recent grants of the queue of one execution, and the ages of its slots.
--
-- Reads the latest executions of the action that were granted before the head of that queue: those of the key itself
-- first, then those of other keys. Bounded: the cost depends neither on the queue nor on the history. Executions with
-- a retry behind them are left out, as their first grant is not stored. Seconds are counted back from now. Of the
-- line only the head is read, except for a delayed execution.
--
-- To be planned for its values (`plan_cache_mode`): by the index on the action and the ticket.
--
-- $1 execution id, $2 executions looked at, $3 grants taken, $4 holders
WITH line AS MATERIALIZED (
    SELECT e.id, e.action_id, e.queue_id, e.concurrency_key, e.status, e.priority, q.head_id, q.heads,
           coalesce((
               SELECT turnstile.id_of_place(w.place) FROM turnstile.first_waiting(q.id, q.head_id, q.heads, 1) w
           ), 9223372036854775807) AS first_id
    FROM turnstile.current_execution e JOIN turnstile.current_queue q ON q.id = ANY (ARRAY[e.queue_id]) WHERE e.id = $1
),
latest AS MATERIALIZED (
    SELECT x.* FROM line l
    CROSS JOIN LATERAL (
        -- By its key: its idle queue may have been deleted, and be a new one now.
        SELECT e.id, e.concurrency_key IS NOT DISTINCT FROM l.concurrency_key AS own, e.status,
               e.queued_at, e.scheduled_at, e.started_at, e.completed_at
        FROM turnstile.current_execution e WHERE e.action_id = l.action_id AND e.id < l.first_id
        ORDER BY e.id DESC LIMIT $2::integer
    ) x
),
granted AS (
    SELECT g.own, extract(epoch FROM now() - g.queued_at)::float8 AS queued_ago,
           extract(epoch FROM now() - g.scheduled_at)::float8 AS granted_ago,
           -- A claim of an earlier attempt does not belong to this grant.
           CASE WHEN g.started_at >= g.scheduled_at THEN extract(epoch FROM g.started_at - g.scheduled_at)::float8 END
               AS claimed_after,
           extract(epoch FROM g.completed_at - g.scheduled_at)::float8 AS lasted
    FROM (
        SELECT * FROM latest
        WHERE scheduled_at IS NOT NULL AND status IN ('scheduled', 'running', 'completed', 'failed', 'timeout')
        ORDER BY own DESC, id DESC LIMIT $3::integer
    ) g
)
SELECT now() AS looked_at,
       (SELECT json_agg(json_build_array(g.own, g.queued_ago, g.granted_ago, g.claimed_after, g.lasted))
        FROM granted g) AS grants,
       -- The hash selects a sample of all holders, whatever their ages are.
       (SELECT array_agg(h.age) FROM (
            SELECT CASE WHEN s.finished_at IS NULL THEN
                       greatest(extract(epoch FROM now() - s.granted_at), 0)::float8 END AS age
            FROM turnstile.live_slot s WHERE s.queue_id = l.queue_id
            ORDER BY hashint8(s.execution_id), s.execution_id LIMIT $4::integer
        ) h) AS ages,
       CASE WHEN l.status = 'delayed' THEN (
           SELECT turnstile.waiting_up_to(
               l.queue_id, l.head_id, l.heads, turnstile.place_of(l.priority, l.id) - 1)
       ) END AS ahead
FROM line l
