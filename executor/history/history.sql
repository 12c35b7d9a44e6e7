-- execution: one execution, with its attempts.
--
-- $1 id
SELECT e.*, e.status::text AS status, e.parameters::text AS parameters, e.result::text AS result,
       e.metadata::text AS metadata, e.passages::text AS passages, attempts.attempts, now() AS read_at,
       (w.about ->> 'stop_grace_seconds')::double precision AS stop_grace_seconds
FROM ledger.current_execution e
LEFT JOIN ledger.worker w ON w.worker_id = e.worker_id AND e.completed_at IS NULL
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_object(
               'attempt', a.attempt, 'worker_id', a.worker_id, 'outcome', a.outcome,
               'error', CASE WHEN a.error_type IS NOT NULL THEN json_build_object(
                   'type', a.error_type, 'message', coalesce(a.error_message, '')) END,
               'granted_at', a.scheduled_at, 'started_at', coalesce(a.started_at, a.scheduled_at),
               'ended_at', a.ended_at,
               'progress', CASE WHEN p.execution_id IS NOT NULL THEN json_build_object(
                   'done', p.done, 'total', p.total, 'message', p.message, 'updated_at', p.updated_at) END
           ) ORDER BY a.attempt)::text AS attempts
    FROM (
        SELECT t.attempt, t.worker_id, t.outcome, t.error_type, t.error_message, t.scheduled_at, t.started_at,
               t.ended_at
        FROM ledger.attempt t WHERE t.execution_id = e.id
        UNION ALL
        -- The latest attempt, while it runs or if it was the last one.
        SELECT e.attempt, e.worker_id, CASE WHEN e.completed_at IS NOT NULL THEN e.status::text END,
               e.error_type, e.error_message, e.scheduled_at, e.started_at, e.completed_at
        WHERE e.worker_id IS NOT NULL AND e.started_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM ledger.attempt t WHERE t.execution_id = e.id AND t.attempt = e.attempt)
    ) a
    LEFT JOIN LATERAL (
        SELECT l.* FROM ledger.progress l WHERE l.execution_id = e.id AND l.attempt = a.attempt
        ORDER BY l.is_last DESC LIMIT 1
    ) p ON true
) attempts
WHERE e.id = $1

-- action_of: the action of an execution.
--
-- $1 id
SELECT e.action_ref FROM ledger.execution e WHERE e.id = $1

-- has_action: a row if there is such an action, or was: a deleted one has a history.
--
-- $1 name
SELECT FROM ledger.action_id a WHERE a.ref = $1

-- named: the status of these executions; by primary key.
--
-- $1 ids, $2 prefixes of the names of their actions, or null
SELECT e.id, e.status::text AS status
FROM ledger.current_execution e
WHERE e.id = ANY ($1::bigint[]) AND ($2::text[] IS NULL OR e.action_ref ^@ ANY ($2))

-- not_made_under: a condition on a row of `current_execution`: neither it nor an execution that it is a retry
-- of was made by a bulk retry under this idempotency key, which gives the keys `key/id`. Looks at a bounded
-- number of generations.
NOT EXISTS (
    WITH RECURSIVE ancestor(retry_of, idempotency_key, generation) AS (
        SELECT ledger.current_execution.retry_of, ledger.current_execution.idempotency_key, 1
        UNION ALL
        SELECT o.retry_of, o.idempotency_key, a.generation + 1
        FROM ancestor a JOIN ledger.execution o ON o.id = a.retry_of
        WHERE a.generation < :generations
    )
    SELECT FROM ancestor a WHERE a.idempotency_key = :retry_key || '/' || a.retry_of
)

-- logs: what the attempts of an execution have logged, in order, after a position in it.
--
-- $1 execution id, $2 attempt or null for all, $3 attempt and $4 characters of it that were read before,
-- $5 most pieces, $6 most characters (one piece is read in any case).
-- No row: there is no such execution. One row with a null attempt: there is nothing (more) to read, yet.
WITH fresh AS (
    SELECT p.attempt, p.at, greatest(p.start, seen.chars) AS start,
           greatest(p.start - seen.chars, 0) AS missing,
           substr(p.text, (greatest(p.start, seen.chars) - p.start + 1)::integer) AS text
    FROM (
        SELECT l.*, max(l.start + length(l.text)) OVER (
            PARTITION BY l.attempt ORDER BY l.start, l.at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS read
        FROM ledger.log l
        WHERE l.execution_id = $1 AND ($2::integer IS NULL OR l.attempt = $2) AND l.attempt >= $3
    ) p
    -- Pieces may overlap where a worker sent one again; what was read of it is skipped.
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(p.read, 0), CASE WHEN p.attempt = $3 THEN $4::bigint ELSE 0 END) AS chars
    ) seen
    WHERE p.start + length(p.text) > seen.chars
),
page AS (
    SELECT f.*, row_number() OVER place AS number, sum(length(f.text)) OVER place - length(f.text) AS before
    FROM fresh f
    WINDOW place AS (ORDER BY f.attempt, f.start ROWS UNBOUNDED PRECEDING)
)
SELECT p.attempt, p.at, p.start, p.missing, p.text,
       coalesce(p.number, 0) = (SELECT count(*) FROM page) AS is_last,
       -- A worker sends its log before its end, but another executor may still be storing it.
       coalesce(e.completed_at < now() - interval '1 second', false) OR coalesce($2 < e.attempt, false)
           AS is_over
FROM ledger.current_execution e
LEFT JOIN page p ON p.number <= $5 AND p.before < $6
WHERE e.id = $1
ORDER BY p.number

-- append_logs: stores pieces of logs of the sender's own attempts; a repeated piece is stored once. At least
-- the last $9 characters of each log are kept. Returns how many pieces were not the sender's.
--
-- $1 worker id, $2 hash of its secret, $3 execution ids, $4 attempts, $5 and $6 grants, $7 starts, $8 texts
WITH sent AS MATERIALIZED (
    SELECT p.*, EXISTS (SELECT FROM ledger.worker w WHERE w.worker_id = $1 AND w.secret_hash = $2)
                AND ledger.is_attempt_of($1, p.id, p.attempt, p.epoch, p.counter) AS is_own
    FROM unnest($3::bigint[], $4::integer[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[])
        AS p(id, attempt, epoch, counter, start, text)
),
stored AS (
    INSERT INTO ledger.log (execution_id, attempt, start, at, text)
    SELECT s.id, s.attempt, s.start, clock_timestamp(), s.text FROM sent s WHERE s.is_own
    ON CONFLICT DO NOTHING
),
-- The range lies behind the piece in the order of the key, and is usually empty.
cut AS (
    DELETE FROM ledger.log l USING sent s
    WHERE s.is_own AND l.execution_id = s.id AND l.attempt = s.attempt
      AND l.start < s.start + length(s.text) - $9
      AND l.start + length(l.text) <= s.start + length(s.text) - $9
)
SELECT count(*) AS refused FROM sent s WHERE NOT s.is_own

-- report_progress: stores how far the sender's own attempts say that they have come, one report of each, if
-- it is newer than what is stored. Returns how many were not the sender's.
--
-- $1 worker id, $2 hash of its secret, $3 execution ids, $4 attempts, $5 and $6 grants, $7 instants, $8 and
-- $9 done and total, $10 messages
WITH sent AS MATERIALIZED (
    SELECT p.*, EXISTS (SELECT FROM ledger.worker w WHERE w.worker_id = $1 AND w.secret_hash = $2)
                AND ledger.is_attempt_of($1, p.id, p.attempt, p.epoch, p.counter) AS is_own
    FROM unnest($3::bigint[], $4::integer[], $5::bigint[], $6::bigint[], $7::double precision[],
                $8::double precision[], $9::double precision[], $10::text[])
        AS p(id, attempt, epoch, counter, at, done, total, message)
),
stored AS (
    INSERT INTO ledger.progress AS p (execution_id, attempt, done, total, message, updated_at)
    SELECT s.id, s.attempt, s.done, s.total, left(s.message, 500), to_timestamp(s.at)
    FROM sent s WHERE s.is_own
    ON CONFLICT (execution_id, attempt, is_last) DO UPDATE
    SET done = excluded.done, total = excluded.total, message = excluded.message,
        updated_at = excluded.updated_at
    WHERE p.updated_at <= excluded.updated_at
)
SELECT count(*) AS refused FROM sent s WHERE NOT s.is_own

-- by_key: for the selects of lists. Each is planned once for each connection, and whatever a statistic says,
-- rows are found by their keys, in their order.
SET LOCAL plan_cache_mode = force_generic_plan;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL enable_hashagg = off;
SET LOCAL enable_bitmapscan = off

-- unfinished_ids: a part of the select of a list: what has not ended, between two ids. Each source is read
-- in the order of its key, and an id may come from two of them.
SELECT w.id FROM ledger.waiting w WHERE w.id > :after_id AND w.id < :before_id
UNION ALL
SELECT l.id FROM ledger.live l WHERE l.id > :after_id AND l.id < :before_id
UNION ALL
SELECT e.id FROM ledger.execution e
WHERE e.completed_at IS NULL AND e.id > :after_id AND e.id < :before_id
  AND e.id >= (SELECT t.low_id FROM ledger.turn t ORDER BY t.epoch DESC, t.number DESC LIMIT 1)
