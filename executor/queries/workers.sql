-- workers: processes, the newest first.
--
-- $1 states, $2 started before, $3 with an id below this one where they started together, $4 rows, $5 only
-- the one with this id. What the leader knows of those that live, in arrays: $6 ids, $7 whether it is lost,
-- $8 seconds that its lease has left, $9 seconds since it was heard, or null, $10 its running attempts. $11:
-- whether the leader answered; else the rows count what runs. $12 not null: only workers that it named, which
-- serve this action. $13 most executions of a worker that is gone.
SELECT w.worker_id AS id, w.name, coalesce(w.about ->> 'host', '') AS host,
       CASE WHEN w.about ->> 'pid' ~ '^[0-9]{1,9}$' THEN (w.about ->> 'pid')::integer ELSE 0 END AS pid,
       w.pools, w.concurrency, state.state,
       coalesce(l.running, CASE WHEN NOT $11::boolean AND w.gone_at IS NULL THEN (
           SELECT count(*) FROM ledger.live r WHERE r.worker_id = w.worker_id AND r.status = 'running'
       ) END, 0) AS running,
       w.registered_at AS started_at, heard.renewed_at,
       coalesce(now() + make_interval(secs => l.lease_left),
                w.heard_at + make_interval(secs => w.lease_seconds)) AS lease_expires_at,
       w.draining_at, CASE WHEN w.gone_why = 'stopped' THEN w.gone_at END AS stopped_at,
       CASE WHEN w.gone_why = 'lost' THEN w.gone_at END AS lost_at, w.acknowledged_at,
       coalesce(cardinality(w.held_ids), 0) AS held_count, coalesce(w.held_ids[1:$13], '{}') AS held_ids,
       w.about ->> 'version' AS version,
       CASE WHEN state.state = 'draining' THEN greatest(w.draining_count, l.running) END AS draining_count,
       CASE WHEN state.state = 'draining' AND jsonb_typeof(w.about -> 'drain_seconds') = 'number'
            THEN w.draining_at + make_interval(
                secs => least((w.about ->> 'drain_seconds')::double precision, 1e9)
            ) END AS draining_until,
       CASE WHEN w.gone_at IS NULL THEN left(w.not_ready, 500) END AS not_ready
FROM ledger.worker w
LEFT JOIN unnest($6::text[], $7::boolean[], $8::double precision[], $9::double precision[], $10::integer[])
    AS l(id, is_lost, lease_left, heard_ago, running) ON l.id = w.worker_id AND w.gone_at IS NULL
CROSS JOIN LATERAL (
    SELECT coalesce(now() - make_interval(secs => l.heard_ago), w.heard_at) AS renewed_at
) heard
CROSS JOIN LATERAL (
    SELECT CASE WHEN w.gone_at IS NOT NULL THEN w.gone_why
                WHEN l.is_lost THEN 'lost'
                WHEN l.lease_left < 0 THEN 'overdue'
                WHEN w.is_draining THEN 'draining'
                ELSE 'live' END AS state
) state
WHERE ($5::text IS NULL OR w.worker_id = $5)
  AND ($12::text IS NULL OR l.id IS NOT NULL)
  AND ($1::text[] IS NULL OR state.state = ANY ($1))
  AND ($2::timestamptz IS NULL OR (w.registered_at, w.worker_id) < ($2, $3::text))
ORDER BY w.registered_at DESC, w.worker_id DESC LIMIT $4

-- worker_id: the id of a worker, by its id or else by its name: of one that is there, else of the newest. The
-- name is searched among the $2 workers that are gone and started last.
--
-- $1 id or name
SELECT w.worker_id FROM (
    SELECT n.worker_id, n.registered_at, false AS is_gone FROM ledger.worker n WHERE n.worker_id = $1
    UNION ALL
    SELECT n.worker_id, n.registered_at, n.is_gone FROM (
        SELECT l.worker_id, l.name, l.registered_at, false AS is_gone FROM ledger.worker l
        WHERE l.gone_at IS NULL
        UNION ALL
        (SELECT g.worker_id, g.name, g.registered_at, true FROM ledger.worker g
         WHERE g.gone_at IS NOT NULL ORDER BY g.registered_at DESC LIMIT $2)
    ) n WHERE n.name = $1
) w ORDER BY w.worker_id = $1 DESC, w.is_gone, w.registered_at DESC LIMIT 1

-- worker_facts: what one worker said at its registration, and what it held when it was gone.
--
-- $1 id
SELECT w.actions IS NOT NULL AS names_actions, w.held_ids, (w.about -> 'start_notes')::text AS start_notes,
       CASE WHEN jsonb_typeof(w.about -> 'stop_grace_seconds') = 'number'
                THEN (w.about ->> 'stop_grace_seconds')::double precision END AS stop_grace_seconds
FROM ledger.worker w WHERE w.worker_id = $1

-- worker_actions: the actions whose code a worker has, by name.
--
-- $1 id, $2 rows
SELECT n.ref AS action_ref, a.body ->> 'pool' AS pool,
       (a.body ->> 'max_concurrent')::integer AS max_concurrent,
       (a.body ->> 'paused')::boolean AS paused, a.updated_at
FROM ledger.worker w
CROSS JOIN LATERAL unnest(w.actions) n(ref)
LEFT JOIN ledger.definition a ON a.kind = 'action' AND a.name = n.ref
WHERE w.worker_id = $1
ORDER BY n.ref COLLATE "C" LIMIT $2

-- running_by_rows: what a worker runs, where no leader answers.
--
-- $1 id, $2 rows
SELECT l.id FROM ledger.live l WHERE l.worker_id = $1 AND l.status = 'running' ORDER BY l.started_at LIMIT $2

-- worker_runs: those of these executions that run, the longest first.
--
-- $1 ids, $2 rows
SELECT e.id, e.action_ref, e.concurrency_key, e.attempt, e.started_at, e.completed_at, e.timeout_seconds,
       e.cancel_requested_at, e.cancel_reason, now() AS read_at
FROM ledger.current_execution e WHERE e.id = ANY ($1::bigint[]) AND e.status = 'running'
ORDER BY e.started_at, e.id LIMIT $2

-- worker_held: what became of the executions that a worker held when it was gone.
--
-- $1 id, $2 ids that it held, $3 rows
SELECT e.id, e.action_ref, e.concurrency_key, e.status::text AS status,
       coalesce(a.attempt, CASE WHEN e.worker_id = $1 THEN e.attempt END) AS attempt,
       CASE WHEN a.attempt IS NOT NULL THEN a.started_at
            WHEN e.worker_id = $1 THEN e.started_at END AS started_at
FROM ledger.current_execution e
LEFT JOIN LATERAL (
    SELECT t.attempt, t.started_at FROM ledger.attempt t
    WHERE t.execution_id = e.id AND t.worker_id = $1 ORDER BY t.attempt DESC LIMIT 1
) a ON true
WHERE e.id = ANY ($2::bigint[])
ORDER BY e.id LIMIT $3

-- acknowledge: notes that the loss of a worker needs no more attention, and records who said so.
--
-- $1 to $3 name, address and channel of the caller, $4 id
WITH changed AS (
    UPDATE ledger.worker w SET acknowledged_at = clock_timestamp()
    WHERE w.worker_id = $4 AND w.gone_why = 'lost' AND w.acknowledged_at IS NULL
    RETURNING w.worker_id
)
INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)
SELECT left($1::text, 200), left($2::text, 200), $3::text, 'acknowledged', 'worker', c.worker_id,
       jsonb_build_object('state', 'lost'), jsonb_build_object('state', 'lost, acknowledged')
FROM changed c

-- worker_failures: the newest attempts of a worker that failed, among those of the $3 newest executions and
-- of what it held when it was gone. There is no index on the worker, which is written at the end of an
-- execution.
--
-- $1 id, $2 ids that it held, $4 rows
WITH newest AS MATERIALIZED (
    SELECT coalesce(
        (SELECT e.id FROM ledger.execution e ORDER BY e.id DESC OFFSET $3 LIMIT 1), 0
    ) AS before_id
)
SELECT h.execution_id, e.action_ref, h.attempt, h.outcome, left(h.error_type, 200) AS error_type,
       left(h.error_message, 1000) AS error_message, h.started_at, h.ended_at
FROM (
    SELECT a.execution_id, a.attempt, a.outcome, a.error_type, a.error_message,
           coalesce(a.started_at, a.scheduled_at) AS started_at, a.ended_at
    FROM newest n JOIN ledger.attempt a ON a.execution_id > n.before_id
    WHERE a.worker_id = $1 AND a.outcome IN ('retried', 'reclaimed')
    UNION
    SELECT a.execution_id, a.attempt, a.outcome, a.error_type, a.error_message,
           coalesce(a.started_at, a.scheduled_at), a.ended_at
    FROM ledger.attempt a
    WHERE a.execution_id = ANY ($2::bigint[]) AND a.worker_id = $1 AND a.outcome IN ('retried', 'reclaimed')
    UNION
    SELECT c.id, c.attempt, c.status::text, c.error_type, c.error_message,
           coalesce(c.started_at, c.scheduled_at, c.completed_at), c.completed_at
    FROM newest n JOIN ledger.execution c ON c.id > n.before_id
    WHERE c.worker_id = $1 AND c.status IN ('failed', 'timeout', 'abandoned')
    ORDER BY 7 DESC LIMIT $4
) h
JOIN ledger.execution e ON e.id = h.execution_id
ORDER BY h.ended_at DESC
