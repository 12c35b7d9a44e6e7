-- finish: a worker reports the outcomes of its attempts.
--
-- Guarded by worker, attempt and a live lease (P3, P6): a late report of a reclaimed attempt changes nothing. The
-- slot stays held until `settle` (P1). An attempt with `in_retry_delay_seconds` is delayed for its retry, unless its
-- execution was cancelled or its time to live leaves no time for a retry.
--
-- `in_logs` is the rest of each log after `append_logs`; `in_log_starts` is the number of characters before it.
-- Verdicts: 'applied'; 'already' (this worker reported it before; publish it again); 'stale'; 'lease_over'; 'held'.
-- `in_wait_ms` and `in_suspect_ids`: as in claim.
CREATE FUNCTION turnstile.finish(
    in_worker_id text,
    in_execution_ids bigint[],
    in_attempts integer[],
    in_statuses text[],
    in_results jsonb[],
    in_error_types text[],
    in_error_messages text[],
    in_logs text[],
    in_retry_delay_seconds double precision[],
    in_log_starts bigint[] DEFAULT NULL,
    in_wait_ms integer DEFAULT NULL,
    in_suspect_ids bigint[] DEFAULT '{}'
)
RETURNS SETOF turnstile.finished
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_order
AS $$
DECLARE
    finished_now timestamptz := clock_timestamp();
    applied_ids bigint[];
    lease_live boolean;
    unavailable_ids bigint[] := '{}';
BEGIN
    -- As in claim: a call without reports is common.
    IF cardinality(in_execution_ids) = 0 THEN
        RETURN;
    END IF;
    IF in_wait_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', in_wait_ms || 'ms', true);
    END IF;
    -- A shared lock until the commit, as in claim.
    PERFORM 1 FROM worker w
    WHERE w.id = in_worker_id AND w.lost_at IS NULL
      AND coalesce((SELECT v.expires_at FROM worker_lease v WHERE v.worker_id = in_worker_id
                    ORDER BY v.version DESC LIMIT 1), w.lease_expires_at) > finished_now
    FOR KEY SHARE;
    lease_live := FOUND;
    IF in_suspect_ids IS NULL OR in_suspect_ids && in_execution_ids THEN
        unavailable_ids := turnstile.lock_available_executions(in_execution_ids, in_suspect_ids);
    END IF;

    WITH report AS (
        -- At most ten years, whatever delay was given: later dates are beyond what clients can show.
        SELECT r.*, finished_now + make_interval(secs => CASE WHEN r.retry_delay_seconds IS NOT NULL
                   THEN least(greatest(r.retry_delay_seconds, 0), 316224000) END) AS due_at FROM unnest(
            in_execution_ids, in_attempts, in_statuses, in_results, in_error_types, in_error_messages, in_logs,
            in_retry_delay_seconds, in_log_starts
        ) r(id, attempt, status, result, error_type, error_message, log, retry_delay_seconds, log_start)
    ),
    moved AS (
        UPDATE execution e
        -- Decided on the row as it is when it is locked: an earlier cancel is seen.
        SET (status, completed_at, run_at) = (
                SELECT CASE WHEN again THEN 'delayed' ELSE r.status END::execution_status,
                       CASE WHEN again THEN NULL ELSE finished_now END,
                       CASE WHEN again THEN r.due_at ELSE e.run_at END
                FROM (SELECT r.due_at IS NOT NULL AND e.cancel_requested_at IS NULL
                             AND (e.expires_at IS NULL OR e.expires_at > r.due_at) AS again) evaluated
            ),
            attempt = r.attempt, worker_id = in_worker_id, scheduled_at = s.granted_at, started_at = s.claimed_at,
            result = r.result, error_type = r.error_type,
            -- The reason of the cancel wins: the worker knows only that the execution was cancelled.
            error_message = CASE WHEN r.status = 'cancelled' THEN coalesce(e.cancel_reason, r.error_message)
                                 ELSE r.error_message END,
            failures = e.failures + (r.status = 'failed')::integer,
            -- A call costs as much as an index lookup, also for null.
            gates = CASE WHEN s.gate_ids IS NOT NULL THEN
                turnstile.gates_history(e.queued_at, s.gate_ids, s.gate_units, s.passed_ats) END
        FROM report r
        JOIN slot s ON s.execution_id = ANY (ARRAY[r.id]) AND s.attempt = r.attempt AND s.worker_id = in_worker_id
                       AND s.finished_at IS NULL
        -- Whatever ends an attempt before this report writes the number of the attempt into the row.
        WHERE lease_live AND e.id = ANY (ARRAY[r.id]) AND e.attempt = r.attempt - 1 AND e.completed_at IS NULL
          AND r.id <> ALL (unavailable_ids)
        RETURNING e.id, e.attempt, e.queue_id, e.status, e.run_at, r.status AS reported,
                  r.error_type, r.error_message, r.log, r.log_start, s.granted_at, s.claimed_at
    ),
    new_delay AS (
        INSERT INTO delayed (execution_id, queue_id, due_at)
        SELECT m.id, m.queue_id, greatest(m.run_at, (SELECT b.next_at FROM turnstile.due_bound b))
        FROM moved m WHERE m.status = 'delayed'
    ),
    -- The slot stays held until settle; the worker publishes the completion now.
    ended AS (
        UPDATE slot s SET finished_at = finished_now, published_at = finished_now
        FROM moved m WHERE s.execution_id = ANY (ARRAY[m.id])
    ),
    -- The execution's row has the last attempt, except for its log.
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, error_type, error_message, log,
                             log_start, granted_at, started_at, ended_at)
        SELECT m.id, m.attempt, in_worker_id, CASE WHEN m.status = 'delayed' THEN 'retried' ELSE m.reported END,
               m.error_type, m.error_message, m.log, coalesce(m.log_start, 0), m.granted_at, m.claimed_at, finished_now
        FROM moved m WHERE m.status = 'delayed' OR m.log <> ''
    )
    SELECT array_agg(m.id) INTO applied_ids FROM moved m;

    RETURN QUERY
    SELECT r.id, r.attempt,
           CASE WHEN r.id = ANY (unavailable_ids) THEN 'held'
                WHEN r.id = ANY (applied_ids) THEN 'applied'
                -- The report equals the stored outcome: this worker reported it before.
                WHEN e.attempt = r.attempt AND e.worker_id = in_worker_id
                     AND (e.status::text = r.status OR e.status = 'delayed' AND r.delay IS NOT NULL) THEN 'already'
                WHEN NOT lease_live THEN 'lease_over'
                ELSE 'stale' END,
           e.status::text, coalesce(e.completed_at, finished_now)
    FROM unnest(in_execution_ids, in_attempts, in_statuses, in_retry_delay_seconds) r(id, attempt, status, delay)
    LEFT JOIN execution e ON e.id = ANY (ARRAY[r.id]);
END
$$;
