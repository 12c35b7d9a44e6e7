-- Functions that only workers of the previous version call while they run beside newer executors. Remove
-- these functions in the version after next: `tests/integration/compatibility/calls.sql` records every call
-- that must keep working.

-- claim: now exchange, with ends. Workers of the previous version call claim and finish in one statement.
CREATE FUNCTION turnstile.claim(
    in_worker_id text, in_execution_ids bigint[], in_attempts integer[], in_served_refs text[] DEFAULT NULL,
    in_wait_ms integer DEFAULT NULL, in_suspect_ids bigint[] DEFAULT '{}'
)
RETURNS SETOF turnstile.claimed
LANGUAGE plpgsql
SECURITY DEFINER
:settings
AS $$
BEGIN
    RETURN QUERY
    SELECT (x.claimed).*
    FROM turnstile.exchange(in_worker_id, in_execution_ids, in_attempts, in_served_refs, '{}', '{}', '{}',
                            '{}', '{}',
                            '{}', '{}', '{}', '{}', in_wait_ms, in_suspect_ids) x;
END
$$;

-- finish: now exchange, with offers.
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
:settings
AS $$
BEGIN
    RETURN QUERY
    SELECT (x.finished).*
    FROM turnstile.exchange(in_worker_id, '{}', '{}', NULL, in_execution_ids, in_attempts, in_statuses,
                            in_results, in_error_types, in_error_messages, in_logs, in_retry_delay_seconds,
                            in_log_starts,
                            in_wait_ms, in_suspect_ids) x;
END
$$;
