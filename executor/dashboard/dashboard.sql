-- What the dashboard reads from the rows: what no leader is needed for, and what is known without one.

-- queues: all queues as the rows show them, the busy ones first, for the time without a leader.
--
-- $1 rows
WITH low AS MATERIALIZED (
    SELECT t.low_id FROM ledger.turn t ORDER BY t.epoch DESC, t.number DESC LIMIT 1
),
kept AS (
    SELECT w.id, w.action_ref, w.key, w.queued_at, false AS is_held, false AS is_holding FROM ledger.waiting w
    WHERE NOT EXISTS (SELECT FROM ledger.live l WHERE l.id = w.id)
    UNION ALL
    SELECT l.id, l.action_ref, l.key, l.queued_at, l.worker_id IS NOT NULL, l.is_holding FROM ledger.live l
    WHERE l.status <> 'delayed'
    UNION ALL
    -- What is so new that it has no other row.
    SELECT e.id, e.action_ref, e.key, e.created_at, false, false
    FROM low CROSS JOIN ledger.execution e
    WHERE e.id >= low.low_id AND e.completed_at IS NULL
      AND NOT EXISTS (SELECT FROM ledger.live l WHERE l.id = e.id)
      AND NOT EXISTS (SELECT FROM ledger.waiting w WHERE w.id = e.id)
      AND NOT EXISTS (SELECT FROM ledger.pending_end p WHERE p.execution_id = e.id)
),
queue AS (
    SELECT k.action_ref, k.key, count(*) FILTER (WHERE NOT (k.is_held OR g.id IS NOT NULL)) AS depth,
           count(*) FILTER (WHERE k.is_held OR g.id IS NOT NULL) AS active_count,
           count(*) FILTER (WHERE k.is_holding) AS held_waiting,
           min(k.id) FILTER (WHERE NOT (k.is_held OR g.id IS NOT NULL)) AS head_id,
           min(k.queued_at) FILTER (WHERE NOT (k.is_held OR g.id IS NOT NULL)) AS oldest_enqueued_at
    FROM kept k LEFT JOIN ledger.first_grant g ON g.id = k.id
    GROUP BY k.action_ref, k.key
),
-- The limit of a key: its own, or that of the action.
limited AS (
    SELECT d.name, d.body, q.*,
           (CASE WHEN (k.body ->> 'has_limit')::boolean THEN k.body
                 ELSE d.body END ->> 'max_concurrent')::integer AS max_concurrent
    FROM ledger.definition d LEFT JOIN queue q ON q.action_ref = d.name
    LEFT JOIN ledger.definition k ON k.kind = 'key' AND k.name = concat(d.name, '/', q.key)
    WHERE d.kind = 'action'
)
SELECT q.name AS action_ref, nullif(q.key, '') AS concurrency_key,
       coalesce(q.body ->> 'pool', 'default') AS pool, q.max_concurrent,
       coalesce((q.body ->> 'paused')::boolean, false) AS paused, coalesce(q.depth, 0) AS depth,
       -- What is granted beyond the limit waits in a run.
       greatest(least(coalesce(q.active_count, 0), q.max_concurrent - coalesce(q.held_waiting, 0)), 0)
           AS active_count,
       coalesce(q.held_waiting, 0) AS held_waiting, q.head_id, q.oldest_enqueued_at
FROM limited q
ORDER BY coalesce(q.depth, 0) > 0 DESC, q.name LIMIT $1

-- workers: the workers that the last leader knew. Whether their leases last is not known without a leader.
SELECT now() AS read_at, count(*) FILTER (WHERE w.is_taking AND NOT w.is_draining) AS live,
       count(*) FILTER (WHERE NOT w.is_taking OR w.is_draining) AS draining,
       coalesce(sum(w.concurrency) FILTER (WHERE w.is_taking AND NOT w.is_draining), 0) AS capacity,
       coalesce((
           SELECT array_agg(DISTINCT p.pool)
           FROM ledger.worker o CROSS JOIN LATERAL unnest(o.pools) AS p(pool)
           WHERE o.is_taking AND NOT o.is_draining AND o.gone_at IS NULL
       ), '{}') AS pools
FROM ledger.worker w WHERE w.gone_at IS NULL

-- executions: the status and the progress of these executions; by primary key.
--
-- $1 ids
SELECT e.id, e.status::text AS status, e.attempt,
       CASE WHEN p.execution_id IS NOT NULL THEN json_build_object(
           'done', p.done, 'total', p.total, 'message', p.message, 'updated_at', p.updated_at
       )::text END AS progress
FROM ledger.current_execution e
LEFT JOIN LATERAL (
    SELECT l.* FROM ledger.progress l WHERE l.execution_id = e.id AND l.attempt = e.attempt
    ORDER BY l.is_last DESC LIMIT 1
) p ON true
WHERE e.id = ANY ($1::bigint[])

-- failures: how the newest executions of some actions ended: counts, and the latest failure of each.
--
-- There is no index on the time of an outcome, so the executions of an action are read by id, backwards:
-- from the newest one, and from the heads of its queues, because what waits there may be more than is read.
-- Bounded by the starts and their rows, whatever the history, the queues and the window are. A failure is
-- the outcome failed, timeout or abandoned.
--
-- `since`: from when on every outcome is counted; later than the window if more ended than was read.
--
-- $1 and $2 starts: actions, each with an id, or null for the newest execution; $3 rows of a start; $4
-- seconds of the window
WITH bound AS MATERIALIZED (
    SELECT DISTINCT s.ref, coalesce(s.before_id, 9223372036854775807) AS before_id
    FROM unnest($1::text[], $2::bigint[]) s(ref, before_id)
    JOIN ledger.definition d ON d.kind = 'action' AND d.name = s.ref
),
seen AS MATERIALIZED (
    SELECT b.ref, b.before_id, e.id, e.status, e.completed_at
    FROM bound b
    CROSS JOIN LATERAL (
        SELECT n.id, n.status::text AS status, n.completed_at FROM ledger.execution n
        -- Bounds, so that the action is a part of the order.
        WHERE n.action_ref BETWEEN b.ref AND b.ref AND n.id < b.before_id
        ORDER BY n.action_ref DESC, n.id DESC LIMIT $3::integer
    ) e
),
reach AS (
    SELECT n.ref, bool_or(n.rows = $3::integer) AS is_cut, min(n.first_end) AS first_end
    FROM (
        SELECT s.ref, s.before_id, count(*) AS rows, min(s.completed_at) AS first_end
        FROM seen s GROUP BY s.ref, s.before_id
    ) n GROUP BY n.ref
),
counted AS (
    SELECT d.ref, count(*) AS ended,
           count(*) FILTER (WHERE d.status IN ('failed', 'timeout', 'abandoned')) AS failed,
           (array_agg(d.id ORDER BY d.completed_at DESC)
                FILTER (WHERE d.status IN ('failed', 'timeout', 'abandoned')))[1]
               AS last_id
    FROM (SELECT DISTINCT s.ref, s.id, s.status, s.completed_at FROM seen s) d
    WHERE d.completed_at > now() - make_interval(secs => $4::float8)
    GROUP BY d.ref
)
SELECT a.ref AS action_ref, now() AS read_at, coalesce(c.ended, 0) AS ended, coalesce(c.failed, 0) AS failed,
       CASE WHEN r.is_cut
                THEN greatest(now() - make_interval(secs => $4::float8), coalesce(r.first_end, now()))
            ELSE now() - make_interval(secs => $4::float8) END AS since,
       e.id AS last_id, e.status::text AS last_status, e.completed_at AS last_at,
       left(e.error_type, 200) AS last_type,
       left(e.error_message, 300) AS last_message
FROM (SELECT DISTINCT b.ref FROM bound b) a
LEFT JOIN reach r ON r.ref = a.ref
LEFT JOIN counted c ON c.ref = a.ref
LEFT JOIN ledger.execution e ON e.id = ANY (ARRAY[c.last_id])

-- errors: the failures among the newest executions of one action, grouped by error, the most frequent first.
--
-- Read by id, as `failures` does. Of each message, texts in quotes and words with digits (numbers, ids,
-- paths, addresses) count as equal.
--
-- $1 action; $2 ids below which is read, null for the newest execution; $3 rows of each; $4 groups
WITH seen AS MATERIALIZED (
    SELECT DISTINCT e.id, e.status
    FROM (SELECT DISTINCT coalesce(b, 9223372036854775807) AS before_id FROM unnest($2::bigint[]) b) b
    CROSS JOIN LATERAL (
        SELECT n.id, n.status::text AS status FROM ledger.execution n
        WHERE n.action_ref BETWEEN $1 AND $1 AND n.id < b.before_id
        ORDER BY n.action_ref DESC, n.id DESC LIMIT $3::integer
    ) e
),
failed AS (
    SELECT e.id, e.completed_at, s.status, left(e.error_type, 200) AS type, regexp_replace(
               regexp_replace(
                   left(e.error_message, 300),
                   '"[^"]*"|`[^`]*`|(?<![[:alnum:]])''[^'']*''(?![[:alnum:]])', '…', 'g'
               ),
               '([[:alnum:]_]+[-.:/@])*[[:alpha:]_]*[[:digit:]]([-.:,/@]?[[:alnum:]_])*', '…', 'g'
           ) AS message
    FROM seen s JOIN ledger.execution e ON e.id = s.id
    WHERE s.status IN ('failed', 'timeout', 'abandoned')
),
grouped AS (
    SELECT f.status, f.type, f.message, count(*) AS count, sum(count(*)) OVER () AS failed,
           max(f.completed_at) AS last_at,
           (array_agg(f.id ORDER BY f.completed_at DESC))[1] AS last_id
    FROM failed f GROUP BY f.status, f.type, f.message
    ORDER BY count(*) DESC, max(f.completed_at) DESC LIMIT $4
)
SELECT (SELECT count(*) FROM seen) AS examined, coalesce(g.failed, 0)::integer AS failed, g.status, g.type,
       g.message, g.count, g.last_at, g.last_id
FROM (SELECT) one LEFT JOIN grouped g ON true ORDER BY g.count DESC, g.last_at DESC

-- attention: what an operator must not miss: stored dead letters, workers that were lost lately and are not
-- acknowledged, and webhooks that failed lately or are tried again. One row.
--
-- Counted up to $1 dead letters, among the $2 workers that are gone and started last, and among the $4 newest
-- webhooks of each state.
--
-- $3 seconds since when a loss or a failed webhook counts
WITH undelivered AS MATERIALIZED (
    SELECT w.*
    FROM unnest('{failed,pending}'::text[]) s(state)
    CROSS JOIN LATERAL (
        SELECT n.execution_id, n.state, n.attempts, n.origin, n.created_at, n.ended_at,
               coalesce(n.last_error, 'status ' || n.last_status) AS error
        FROM ledger.webhook n
        WHERE n.state = s.state ORDER BY n.execution_id DESC LIMIT $4::integer
    ) w
    WHERE w.error IS NOT NULL AND coalesce(w.ended_at, now()) > now() - make_interval(secs => $3::float8)
),
latest AS (
    SELECT u.origin, u.error FROM undelivered u ORDER BY u.execution_id DESC LIMIT 1
)
SELECT (SELECT count(*)
        FROM (SELECT FROM ledger.dead_letter d ORDER BY d.died_at, d.id LIMIT $1::integer) l) AS dead_letters,
       (SELECT d.died_at FROM ledger.dead_letter d ORDER BY d.died_at, d.id LIMIT 1) AS oldest_dead_letter_at,
       (SELECT count(*) FROM undelivered) AS webhooks,
       (SELECT min(u.created_at) FROM undelivered u) AS webhook_since,
       (SELECT l.origin FROM latest l) AS webhook_origin,
       (SELECT left(l.error, 300) FROM latest l) AS webhook_error,
       (
           SELECT count(*) FROM (
               SELECT w.gone_at, w.gone_why, w.acknowledged_at FROM ledger.worker w
               WHERE w.gone_at IS NOT NULL
               ORDER BY w.registered_at DESC LIMIT $2::integer
           ) gone
           WHERE gone.gone_why = 'lost' AND gone.acknowledged_at IS NULL
             AND gone.gone_at > now() - make_interval(secs => $3::float8)
       ) AS lost_workers
