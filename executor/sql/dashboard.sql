-- dashboard_queues: the queues that changed since an instant, or all of them, the busy ones first.
--
-- Every change of a queue's state sets its `updated_at`, so the changes of a second are found by it, and only
-- for those the head is read. What passes a later gate changes only the gate: then the queues with held slots
-- are read whose executions pass it. An unused action has no queue yet and has a row of its own.
--
-- $1 changed since (null: all), $2 rows
WITH passed AS MATERIALIZED (
    SELECT array_agg(g.id) AS gate_ids FROM turnstile.current_gate g WHERE g.updated_at > $1::timestamptz
),
moved AS MATERIALIZED (
    SELECT q.id AS queue_id, a.id AS action_id, a.ref AS action_ref, q.concurrency_key, a.pool, q.head_id,
           q.heads,
           coalesce(q.depth, 0) AS depth, coalesce(q.held, 0) AS held,
           coalesce(q.total_enqueued, 0) AS total_enqueued,
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
       m.depth + coalesce(l.executions, 0) AS depth, m.held - coalesce(l.executions, 0) AS active_count,
       m.total_enqueued, m.total_completed, m.max_concurrent, m.paused,
       -- One by one, so that no plan reads the whole history.
       CASE WHEN m.depth > 0 OR l.executions > 0 THEN (
           SELECT e.queued_at FROM execution e
           WHERE e.id = least(l.first_id, (
               SELECT turnstile.id_of_place(w.place)
               FROM turnstile.first_waiting(m.queue_id, m.head_id, m.heads, 1) w
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
       coalesce(sum(w.concurrency) FILTER (WHERE w.lease_expires_at > now() AND w.draining_at IS NULL),
                0) AS capacity,
       coalesce((
           SELECT array_agg(DISTINCT p.pool)
           FROM turnstile.current_worker l CROSS JOIN LATERAL unnest(l.pools) p(pool)
           WHERE l.lost_at IS NULL AND l.stopped_at IS NULL AND l.draining_at IS NULL
             AND l.lease_expires_at > now()
       ), '{}') AS pools
FROM turnstile.current_worker w
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL

-- dashboard_deleted: how many executions the deleted queues of idle keys counted, over all actions.
SELECT coalesce(sum(t.executions), 0)::bigint AS executions
FROM deleted_queue_total t JOIN action a ON a.id = t.action_id WHERE a.deleted_at IS NULL

-- dashboard_executions: the status and the progress of these executions; by primary key.
-- $1 ids
SELECT e.id, e.status::text AS status, e.attempt, turnstile.progress_of(e.id, e.attempt) AS progress
FROM turnstile.current_execution e WHERE e.id = ANY ($1::bigint[])

-- dashboard_failures: how the newest executions of some actions ended: counts, and the latest failure of
-- each.
--
-- There is no index on the time of an outcome, so the executions of an action are read by id, backwards:
-- from the newest one, and from the heads of its queues, because what waits there may be more than is read.
-- Bounded by the starts and their rows, whatever the history, the queues and the window are. A failure is
-- the outcome failed, timeout or abandoned.
--
-- `since`: from when on every outcome is counted; later than the window if more ended than was read.
--
-- $1 and $2 starts: actions, each with a queue, or null for the newest execution; $3 rows of a start; $4
-- seconds of the window
WITH start AS MATERIALIZED (
    SELECT a.id AS action_id, a.ref, s.queue_id
    FROM unnest($1::text[], $2::bigint[]) s(ref, queue_id)
    JOIN action a ON a.ref = s.ref AND a.deleted_at IS NULL
),
bound AS MATERIALIZED (
    SELECT s.action_id, 9223372036854775807 AS before_id FROM start s WHERE s.queue_id IS NULL
    UNION
    SELECT s.action_id, turnstile.id_of_place(first.place)
    FROM start s
    JOIN turnstile.current_queue q ON q.id = ANY (ARRAY[s.queue_id])
    CROSS JOIN turnstile.line_ranges(q.head_id, q.heads) r
    CROSS JOIN LATERAL (
        SELECT w.place FROM waiting w
        WHERE w.line_id = q.id AND w.place BETWEEN r.first_place AND r.last_place
        ORDER BY w.place LIMIT 1
    ) first
),
seen AS MATERIALIZED (
    SELECT b.action_id, b.before_id, e.id, e.status, e.completed_at
    FROM bound b
    CROSS JOIN LATERAL (
        SELECT n.id, n.status::text AS status, n.completed_at FROM execution n
        WHERE n.action_id = b.action_id AND n.id < b.before_id
        ORDER BY n.id DESC LIMIT $3::integer
    ) e
),
reach AS (
    SELECT n.action_id, bool_or(n.rows = $3::integer) AS is_cut, min(n.first_end) AS first_end
    FROM (
        SELECT s.action_id, s.before_id, count(*) AS rows, min(s.completed_at) AS first_end
        FROM seen s GROUP BY s.action_id, s.before_id
    ) n GROUP BY n.action_id
),
counted AS (
    SELECT d.action_id, count(*) AS ended,
           count(*) FILTER (WHERE d.status IN ('failed', 'timeout', 'abandoned')) AS failed,
           (array_agg(d.id ORDER BY d.completed_at DESC)
                FILTER (WHERE d.status IN ('failed', 'timeout', 'abandoned')))[1]
               AS last_id
    FROM (SELECT DISTINCT s.action_id, s.id, s.status, s.completed_at FROM seen s) d
    WHERE d.completed_at > now() - make_interval(secs => $4::float8)
    GROUP BY d.action_id
)
SELECT a.ref AS action_ref, now() AS read_at, coalesce(c.ended, 0) AS ended, coalesce(c.failed, 0) AS failed,
       CASE WHEN r.is_cut
                THEN greatest(now() - make_interval(secs => $4::float8), coalesce(r.first_end, now()))
            ELSE now() - make_interval(secs => $4::float8) END AS since,
       e.id AS last_id, e.status::text AS last_status, e.completed_at AS last_at,
       left(e.error_type, 200) AS last_type,
       left(e.error_message, 300) AS last_message
FROM (SELECT DISTINCT s.action_id, s.ref FROM start s) a
LEFT JOIN reach r ON r.action_id = a.action_id
LEFT JOIN counted c ON c.action_id = a.action_id
LEFT JOIN execution e ON e.id = ANY (ARRAY[c.last_id])

-- dashboard_attention: what an operator must not miss: stored dead letters, and workers that were lost
-- lately. One row.
--
-- Counted up to $1 dead letters, and among the $2 workers that are gone and started last.
--
-- $3 seconds since when a loss counts
SELECT (SELECT count(*)
        FROM (SELECT FROM dead_letter d ORDER BY d.died_at, d.id LIMIT $1::integer) l) AS dead_letters,
       (
           SELECT count(*) FROM (
               SELECT w.lost_at FROM worker w
               WHERE w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL
               ORDER BY w.started_at DESC LIMIT $2::integer
           ) gone
           WHERE gone.lost_at > now() - make_interval(secs => $3::float8)
       ) AS lost_workers
