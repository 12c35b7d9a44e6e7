-- Functions that only services of the previous version call while they run beside newer ones. Remove these functions
-- in the version after next: `tests/integration/compatibility/calls.sql` records every call that must keep working.

-- due_offers: offers again what is granted, not claimed, and was last offered more than `in_timeout_seconds` ago.
-- Replaced by due_pools and missing_offers, which compare with what the broker holds. Without that comparison the
-- delay grows with the age of the grant, up to ten timeouts.
CREATE FUNCTION turnstile.due_offers(in_timeout_seconds double precision, in_limit integer)
RETURNS SETOF turnstile.granted
LANGUAGE sql
:settings
AS $$
    WITH due AS (
        SELECT s.execution_id FROM turnstile.live_slot s
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND (s.offered_at IS NULL OR s.offered_at < clock_timestamp() - greatest(
              make_interval(secs => in_timeout_seconds),
              least(s.offered_at - s.granted_at, make_interval(secs => in_timeout_seconds * 10))))
          AND EXISTS (
              SELECT FROM action_queue q
              JOIN action a ON a.id = q.action_id
              JOIN turnstile.current_worker w ON a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
                            AND w.lease_expires_at > clock_timestamp()
              WHERE q.id = s.queue_id AND NOT turnstile.is_unserved(a))
          -- A lost worker receives the cancel message of its attempt before the next attempt is offered.
          AND NOT EXISTS (SELECT FROM unpublished_cancel u WHERE u.execution_id = ANY (ARRAY[s.execution_id]))
        ORDER BY s.ticket LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    offered AS (
        UPDATE slot s SET offered_at = clock_timestamp() FROM due d WHERE s.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING s.execution_id, s.attempt
    )
    SELECT o.execution_id, o.attempt, a.ref, a.pool, e.traceparent, NULL::double precision
    FROM offered o
    JOIN execution e ON e.id = ANY (ARRAY[o.execution_id])
    JOIN action a ON a.id = ANY (ARRAY[e.action_id]);
$$;

-- idle_queues: now grantable_queues.
CREATE FUNCTION turnstile.idle_queues(
    in_after_id bigint, in_lines_max integer, OUT queue_ids bigint[], OUT next_id bigint
)
LANGUAGE sql
:settings
AS $$
    SELECT * FROM turnstile.grantable_queues(in_after_id, in_lines_max);
$$;

-- due_stops: now due_cancels.
CREATE FUNCTION turnstile.due_stops(in_timeout_seconds double precision, in_limit integer)
RETURNS TABLE (execution_id bigint, attempt integer, worker_id text)
LANGUAGE sql
:settings
AS $$
    SELECT * FROM turnstile.due_cancels(in_timeout_seconds, in_limit);
$$;

-- stops_told: now cancels_published.
CREATE FUNCTION turnstile.stops_told(in_execution_ids bigint[], in_attempts integer[])
RETURNS void
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.cancels_published(in_execution_ids, in_attempts);
$$;

-- return_to_present: now clamp_future_instants.
CREATE FUNCTION turnstile.return_to_present(in_retries boolean)
RETURNS bigint
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.clamp_future_instants(in_retries);
$$;

-- keep_early_cancels: now store_early_cancels.
CREATE FUNCTION turnstile.keep_early_cancels(
    in_execution_ids bigint[],
    in_idempotency_keys text[],
    in_reasons text[],
    in_message_keys uuid[],
    in_messages bytea[],
    in_keep_seconds double precision[],
    in_rows_max integer
)
RETURNS integer
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.store_early_cancels(
        in_execution_ids, in_idempotency_keys, in_reasons, in_message_keys, in_messages, in_keep_seconds, in_rows_max);
$$;

-- forget_early_cancels: now delete_early_cancels.
CREATE FUNCTION turnstile.forget_early_cancels(in_ids bigint[])
RETURNS void
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.delete_early_cancels(in_ids);
$$;

-- note_webhooks: now record_webhooks.
CREATE FUNCTION turnstile.note_webhooks(
    in_execution_ids bigint[],
    in_claimed_untils timestamptz[],
    in_states text[],
    in_statuses integer[],
    in_errors text[],
    in_delay_seconds double precision[]
)
RETURNS SETOF bigint
LANGUAGE sql
:settings
AS $$
    SELECT * FROM turnstile.record_webhooks(
        in_execution_ids, in_claimed_untils, in_states, in_statuses, in_errors, in_delay_seconds);
$$;

-- prune_changes: now prune_audit_log.
CREATE FUNCTION turnstile.prune_changes(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.prune_audit_log(in_keep_seconds, in_limit);
$$;

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
    FROM turnstile.exchange(in_worker_id, in_execution_ids, in_attempts, in_served_refs, '{}', '{}', '{}', '{}', '{}',
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
    FROM turnstile.exchange(in_worker_id, '{}', '{}', NULL, in_execution_ids, in_attempts, in_statuses, in_results,
                            in_error_types, in_error_messages, in_logs, in_retry_delay_seconds, in_log_starts,
                            in_wait_ms, in_suspect_ids) x;
END
$$;
