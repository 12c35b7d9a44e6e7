-- finish: a worker reports how its attempts ended.
--
-- Guarded by worker, attempt and a live lease (P3, P6): a late report of a reclaimed attempt changes
-- nothing. The slot stays held until `settle` (P1). An attempt with `in_retry_delay_seconds` goes back
-- to wait for its retry, unless it was asked to stop or its time to live leaves no room for one.
--
-- Verdicts: 'applied'; 'already' (said before by this worker; tell it again); 'stale'; 'lease_over'.
CREATE FUNCTION turnstile.finish(
    in_worker_id text,
    in_execution_ids bigint[],
    in_attempts integer[],
    in_statuses text[],
    in_results jsonb[],
    in_error_types text[],
    in_error_messages text[],
    in_logs text[],
    in_retry_delay_seconds double precision[]
)
RETURNS SETOF turnstile.finished
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    finished_now timestamptz := clock_timestamp();
    applied_ids bigint[];
    lease_live boolean;
BEGIN
    lease_live := EXISTS (
        SELECT FROM worker w WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.lease_expires_at > finished_now
    );

    WITH report AS (
        SELECT * FROM unnest(
            in_execution_ids, in_attempts, in_statuses, in_results, in_error_types, in_error_messages, in_logs,
            in_retry_delay_seconds
        ) r(id, attempt, status, result, error_type, error_message, log, retry_delay_seconds)
    ),
    moved AS (
        UPDATE execution e
        SET status = (CASE WHEN again.due_at IS NULL THEN r.status ELSE 'delayed' END)::execution_status,
            result = r.result, error_type = r.error_type, error_message = r.error_message,
            completed_at = CASE WHEN again.due_at IS NULL THEN finished_now END,
            run_at = coalesce(again.due_at, e.run_at),
            failures = e.failures + (r.status = 'failed')::integer
        FROM report r
        CROSS JOIN LATERAL (
            SELECT finished_now + make_interval(secs => r.retry_delay_seconds) AS due_at
        ) wanted
        CROSS JOIN LATERAL (
            SELECT CASE WHEN x.cancel_requested_at IS NULL
                         AND (x.expires_at IS NULL OR x.expires_at > wanted.due_at) THEN wanted.due_at END AS due_at
            FROM execution x WHERE x.id = r.id
        ) again
        WHERE lease_live AND e.id = r.id AND e.attempt = r.attempt AND e.worker_id = in_worker_id
          AND e.status = ANY (:sources_of_complete)
        RETURNING e.id, e.attempt, e.queue_id, e.status, e.run_at, r.status AS reported,
                  r.error_type, r.error_message, r.log
    ),
    not_due AS (
        INSERT INTO delayed (execution_id, queue_id, due_at)
        SELECT m.id, m.queue_id, m.run_at FROM moved m WHERE m.status = 'delayed'
    ),
    ended AS (
        UPDATE slot s SET finished_at = finished_now, told_at = finished_now
        FROM moved m WHERE s.execution_id = m.id AND s.attempt = m.attempt
        RETURNING s.execution_id, s.granted_at, s.claimed_at
    ),
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, error_type, error_message, log,
                             granted_at, started_at, ended_at)
        SELECT m.id, m.attempt, in_worker_id, CASE WHEN m.status = 'delayed' THEN 'retried' ELSE m.reported END,
               m.error_type, m.error_message, m.log, s.granted_at, s.claimed_at, finished_now
        FROM moved m JOIN ended s ON s.execution_id = m.id
    )
    SELECT array_agg(m.id) INTO applied_ids FROM moved m;

    RETURN QUERY
    SELECT r.id, r.attempt,
           CASE WHEN r.id = ANY (applied_ids) THEN 'applied'
                WHEN e.attempt = r.attempt AND e.worker_id = in_worker_id AND e.status <> 'running' THEN 'already'
                WHEN NOT lease_live THEN 'lease_over'
                ELSE 'stale' END,
           e.status::text, coalesce(e.completed_at, finished_now)
    FROM unnest(in_execution_ids, in_attempts) r(id, attempt)
    LEFT JOIN execution e ON e.id = r.id;
END
$$;
