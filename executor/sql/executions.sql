-- execution: one execution, and the facts that decide what it waits for (P10).
-- $1 id, $2 whether its documents and attempts are needed
SELECT e.id, a.ref AS action_ref, e.concurrency_key, e.idempotency_key, e.priority, e.status::text AS status,
       e.attempt, CASE WHEN $2::boolean THEN e.parameters END AS parameters,
       CASE WHEN $2 THEN e.result END AS result, CASE WHEN $2 THEN e.metadata END AS metadata,
       e.error_type, e.error_message, e.worker_id,
       e.created_at, e.queued_at, e.scheduled_at, e.started_at, e.completed_at, e.run_at, e.expires_at,
       e.retry_of,
       a.pool, coalesce(q.paused, a.paused) AS paused, q.max_concurrent, q.depth,
       EXISTS (
           SELECT FROM turnstile.current_worker w
           WHERE a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
             AND w.draining_at IS NULL AND w.lease_expires_at > now()
             AND (a.runner <> 'python' OR a.entrypoint IS NOT NULL OR w.served_refs IS NULL
                  OR a.ref = ANY (w.served_refs))
       ) AS served,
       CASE WHEN e.status IN ('queued', 'scheduled') THEN (
           SELECT (array_agg(DISTINCT n.pool ORDER BY n.pool))[1:10]
           FROM turnstile.current_worker w
           CROSS JOIN LATERAL unnest(w.pools) n(pool)
           WHERE a.ref = ANY (w.served_refs) AND w.lost_at IS NULL AND w.stopped_at IS NULL
             AND w.draining_at IS NULL AND w.lease_expires_at > now()
       ) END AS pools_with_it,
       place.position, held.active_count, held.holder_ids, held.unclaimed_ids, history.attempts,
       e.timeout_seconds, e.cancel_requested_at, e.cancel_reason, now() AS read_at,
       (SELECT w.stop_grace_seconds FROM worker w WHERE w.id = e.worker_id) AS stop_grace_seconds,
       CASE WHEN p.paused OR p.depth > 0 OR turnstile.room_of(p.capacity, p.held, p.lead) = 0
                THEN p.places END AS pool_capacity,
       coalesce(p.paused, false) AS pool_paused, p.capacity AS pool_slots,
       coalesce(p.held, 0) AS pool_held,
       -- Then `execution_gates` has more facts.
       e.gates IS NOT NULL OR EXISTS (SELECT FROM gate) AS may_have_gates
FROM turnstile.current_execution e
JOIN action a ON a.id = e.action_id
-- The idle queue of an ended execution may have been deleted.
LEFT JOIN turnstile.current_queue q ON q.id = ANY (ARRAY[e.queue_id])
LEFT JOIN turnstile.current_pool p ON p.id = a.pool_id
-- From `head_id` the count skips the dead index entries of earlier grants.
CROSS JOIN LATERAL (
    SELECT CASE WHEN e.status = 'queued' THEN (
        SELECT turnstile.waiting_up_to(q.id, q.head_id, q.heads, turnstile.place_of(e.priority, e.id))
    ) END AS position
) place
CROSS JOIN LATERAL (
    SELECT CASE WHEN e.status = 'queued' THEN q.held ELSE 0 END AS active_count,
           (array_agg(s.execution_id ORDER BY s.execution_id))[1:100] AS holder_ids,
           (array_agg(s.execution_id ORDER BY s.execution_id)
                FILTER (WHERE s.claimed_at IS NULL))[1:100] AS unclaimed_ids
    FROM turnstile.live_slot s WHERE e.status = 'queued' AND s.queue_id = e.queue_id
) held
-- The attempts that have ended, and the running one, which its slot has.
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_object(
               'attempt', t.attempt, 'worker_id', t.worker_id, 'outcome', t.outcome,
               'error', CASE WHEN t.error_type IS NOT NULL THEN json_build_object(
                   'type', t.error_type, 'message', coalesce(t.error_message, '')) END,
               'granted_at', t.granted_at, 'started_at', t.started_at, 'ended_at', t.ended_at,
               'progress', turnstile.progress_of(e.id, t.attempt)
           ) ORDER BY t.attempt) AS attempts
    FROM (
        SELECT h.attempt, h.worker_id, h.outcome, h.error_type, h.error_message,
               h.granted_at, h.started_at, h.ended_at
        FROM turnstile.ended_attempt h WHERE h.execution_id = e.id AND $2
        UNION ALL
        SELECT s.attempt, s.worker_id, NULL, NULL, NULL, s.granted_at, s.claimed_at, NULL
        FROM slot s WHERE s.execution_id = e.id AND s.claimed_at IS NOT NULL AND s.finished_at IS NULL
    ) t
) history
WHERE e.id = $1

-- logs: what the attempts of an execution have logged, in order, after a position in it.
-- $1 execution id, $2 attempt or null for all, $3 attempt and $4 characters of it that were read before,
-- $5 most pieces, $6 most characters (one piece is read in any case).
-- No row: there is no such execution. One row with a null attempt: there is nothing (more) to read, yet.
WITH piece AS (
    SELECT l.attempt, l.start, l.at, l.text
    FROM attempt_log l
    WHERE l.execution_id = $1 AND ($2::integer IS NULL OR l.attempt = $2) AND l.attempt >= $3
    UNION ALL
    SELECT t.attempt, t.log_start, t.ended_at, t.log
    FROM attempt t
    WHERE t.execution_id = $1 AND ($2::integer IS NULL OR t.attempt = $2) AND t.attempt >= $3
      AND t.log IS NOT NULL
),
-- A flush whose answer was lost comes again with the attempt's end: what was read of it is skipped.
fresh AS (
    SELECT p.attempt, p.at, greatest(p.start, seen.chars) AS start,
           greatest(p.start - seen.chars, 0) AS missing,
           substr(p.text, (greatest(p.start, seen.chars) - p.start + 1)::integer) AS text
    FROM (
        SELECT p.*, max(p.start + length(p.text)) OVER (
            PARTITION BY p.attempt ORDER BY p.start, p.at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS read FROM piece p
    ) p
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
       e.completed_at IS NOT NULL OR coalesce($2 <= e.attempt, false) AS is_over
FROM execution e
LEFT JOIN page p ON p.number <= $5 AND p.before < $6
WHERE e.id = $1
ORDER BY p.number

-- outcomes: what is needed to publish completions again. A result above $2 bytes is left out, and an error
-- text that is longer than a worker reports is cut: the message must reach the completion listener.
SELECT e.id, e.attempt, e.action_id, a.ref, e.status, left(e.error_type, 200) AS error_type,
       left(e.error_message, 5000) AS error_message, e.completed_at, e.traceparent,
       CASE WHEN octet_length(e.result::text) <= $2 THEN e.result END AS result
FROM execution e
JOIN action a ON a.id = e.action_id
WHERE e.id = ANY ($1)

-- not_made_under: a condition on a row of `execution`: neither it nor an execution that it is a retry of was
-- made by a bulk retry under this idempotency key, which gives the keys `key/id`. Looks at a bounded number
-- of generations.
NOT EXISTS (
    WITH RECURSIVE ancestor(retry_of, idempotency_key, generation) AS (
        SELECT execution.retry_of, execution.idempotency_key, 1
        UNION ALL
        SELECT o.retry_of, o.idempotency_key, a.generation + 1
        FROM ancestor a JOIN execution o ON o.id = a.retry_of
        WHERE a.generation < :generations
    )
    SELECT FROM ancestor a WHERE a.idempotency_key = :retry_key || '/' || a.retry_of
)

-- named_executions: the status of these executions; by primary key.
--
-- $1 ids, $2 prefixes of the names of their actions, or null
SELECT e.id, e.status::text AS status
FROM turnstile.current_execution e
JOIN action a ON a.id = e.action_id
WHERE e.id = ANY ($1::bigint[]) AND ($2::text[] IS NULL OR a.ref ^@ ANY ($2))
