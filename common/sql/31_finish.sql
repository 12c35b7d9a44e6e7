-- finish: a worker reports how its attempts ended.
--
-- Guarded by worker, attempt and a live lease (P3, P6): a late report of a reclaimed attempt changes
-- nothing. The slot stays held until `settle` (P1). An attempt with `in_retry_delay_seconds` goes back
-- to wait for its retry, unless it was asked to stop or its time to live leaves no room for one.
--
-- `in_logs` is what is left of each log behind `append_logs`: `in_log_starts` says how many characters came before.
-- Verdicts: 'applied'; 'already' (said before by this worker; tell it again); 'stale'; 'lease_over'; 'held' (as in
-- claim, like `in_wait_ms` and `in_suspect_ids`).
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
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    finished_now timestamptz := clock_timestamp();
    applied_ids bigint[];
    lease_live boolean;
    held_ids bigint[] := '{}';
BEGIN
    IF in_wait_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', in_wait_ms || 'ms', true);
    END IF;
    -- Shared until the commit, as in claim.
    PERFORM 1 FROM worker w
    WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.lease_expires_at > finished_now
    FOR KEY SHARE;
    lease_live := FOUND;
    IF in_suspect_ids IS NULL OR in_suspect_ids && in_execution_ids THEN
        held_ids := turnstile.held_executions(in_execution_ids, in_suspect_ids);
    END IF;

    WITH report AS (
        -- Within ten years, whoever asks for the wait: beyond the calendar of its readers nothing could be shown.
        SELECT r.*, finished_now + make_interval(secs => CASE WHEN r.retry_delay_seconds IS NOT NULL
                   THEN least(greatest(r.retry_delay_seconds, 0), 316224000) END) AS due_at FROM unnest(
            in_execution_ids, in_attempts, in_statuses, in_results, in_error_types, in_error_messages, in_logs,
            in_retry_delay_seconds, in_log_starts
        ) r(id, attempt, status, result, error_type, error_message, log, retry_delay_seconds, log_start)
    ),
    moved AS (
        UPDATE execution e
        -- Judged on the row as it is when it is locked: a cancel that came first is seen.
        SET (status, completed_at, run_at) = (
                SELECT CASE WHEN again THEN 'delayed' ELSE r.status END::execution_status,
                       CASE WHEN again THEN NULL ELSE finished_now END,
                       CASE WHEN again THEN r.due_at ELSE e.run_at END
                FROM (SELECT r.due_at IS NOT NULL AND e.cancel_requested_at IS NULL
                             AND (e.expires_at IS NULL OR e.expires_at > r.due_at) AS again) judged
            ),
            result = r.result, error_type = r.error_type,
            -- Whoever asked for the end said why; the worker knows only that it was asked.
            error_message = CASE WHEN r.status = 'cancelled' THEN coalesce(e.cancel_reason, r.error_message)
                                 ELSE r.error_message END,
            failures = e.failures + (r.status = 'failed')::integer
        FROM report r
        WHERE lease_live AND e.id = ANY (ARRAY[r.id]) AND e.attempt = r.attempt AND e.worker_id = in_worker_id
          AND e.status = ANY (:sources_of_complete) AND r.id <> ALL (held_ids)
        RETURNING e.id, e.attempt, e.queue_id, e.status, e.run_at, r.status AS reported,
                  r.error_type, r.error_message, r.log, r.log_start
    ),
    not_due AS (
        INSERT INTO delayed (execution_id, queue_id, due_at)
        SELECT m.id, m.queue_id, m.run_at FROM moved m WHERE m.status = 'delayed'
    ),
    ended AS (
        UPDATE slot s SET finished_at = finished_now, told_at = finished_now
        FROM moved m WHERE s.execution_id = ANY (ARRAY[m.id]) AND s.attempt = m.attempt
        RETURNING m.id, m.attempt, CASE WHEN m.status = 'delayed' THEN 'retried' ELSE m.reported END AS outcome,
                  m.error_type, m.error_message, m.log, m.log_start, s.granted_at, s.claimed_at
    ),
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, error_type, error_message, log,
                             log_start, granted_at, started_at, ended_at)
        SELECT d.id, d.attempt, in_worker_id, d.outcome, d.error_type, d.error_message, d.log,
               coalesce(d.log_start, 0), d.granted_at, d.claimed_at, finished_now
        FROM ended d
    )
    SELECT array_agg(m.id) INTO applied_ids FROM moved m;

    RETURN QUERY
    SELECT r.id, r.attempt,
           CASE WHEN r.id = ANY (held_ids) THEN 'held'
                WHEN r.id = ANY (applied_ids) THEN 'applied'
                -- What this worker said and what the record holds are the same: not an end by somebody else.
                WHEN e.attempt = r.attempt AND e.worker_id = in_worker_id
                     AND (e.status::text = r.status OR e.status = 'delayed' AND r.delay IS NOT NULL) THEN 'already'
                WHEN NOT lease_live THEN 'lease_over'
                ELSE 'stale' END,
           e.status::text, coalesce(e.completed_at, finished_now)
    FROM unnest(in_execution_ids, in_attempts, in_statuses, in_retry_delay_seconds) r(id, attempt, status, delay)
    LEFT JOIN execution e ON e.id = ANY (ARRAY[r.id]);
END
$$;
