-- report_progress: stores how far running attempts say that they have come: the newest report of each, in
-- place of the one before it.
--
-- Fenced like append_logs (P6): the lease of the worker must be live, and only what it holds is stored.
-- Returns false, and stores nothing, if the lease is over.
CREATE FUNCTION turnstile.report_progress(
    in_worker_id text,
    in_execution_ids bigint[],
    in_attempts integer[],
    in_dones double precision[],
    in_totals double precision[],
    in_messages text[]
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_order
AS $$
DECLARE
    reported_now timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (
        SELECT FROM turnstile.current_worker w
        WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.lease_expires_at > reported_now
    ) THEN
        RETURN false;
    END IF;

    WITH owned AS MATERIALIZED (
        SELECT p.*, coalesce((SELECT g.version FROM attempt_progress g
                              WHERE g.execution_id = p.id AND g.attempt = p.attempt
                              ORDER BY g.version DESC LIMIT 1), 0) AS version
        FROM unnest(in_execution_ids, in_attempts, in_dones, in_totals, in_messages) p(id, attempt, done,
                                                                                       total, message)
        JOIN slot s ON s.execution_id = ANY (ARRAY[p.id]) AND s.attempt = p.attempt
                       AND s.worker_id = in_worker_id AND s.finished_at IS NULL
    ),
    written AS (
        INSERT INTO attempt_progress (execution_id, attempt, version, done, total, message, updated_at)
        SELECT o.id, o.attempt, o.version + 1, o.done, o.total, left(o.message, 500), reported_now
        FROM owned o
    )
    DELETE FROM attempt_progress g USING owned o
    WHERE g.execution_id = ANY (ARRAY[o.id]) AND g.attempt = o.attempt
      AND g.version BETWEEN o.version AND o.version;
    RETURN true;
END
$$;

-- progress_of: the newest progress of an attempt as JSON, or null.
CREATE FUNCTION turnstile.progress_of(in_execution_id bigint, in_attempt integer)
RETURNS json
LANGUAGE sql
STABLE
AS $$
    SELECT json_build_object('done', g.done, 'total', g.total, 'message', g.message, 'updated_at',
                             g.updated_at)
    FROM attempt_progress g
    WHERE g.execution_id = in_execution_id AND g.attempt = in_attempt
    ORDER BY g.version DESC LIMIT 1
$$;
