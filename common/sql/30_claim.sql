-- claim: a worker takes the attempts that it was offered.
--
-- Guarded by the slot and its attempt (P6): one of two workers with the same offer wins, and an offer from before a
-- reclaim never wins. The execution's row is only read. Repeating a claim after a lost answer is harmless: what this worker holds comes back as 'claimed'.
--
-- Verdicts: 'claimed'; 'stale' (do not run, acknowledge); 'unknown' (no such execution yet); 'lease_over' (nothing
-- was claimed, renew first); 'held' (another session holds the execution, try later); 'not_served' (a python action
-- without entrypoint that is not in `in_served_refs`; null: the worker has the code of every action). If no live
-- worker has the code, the offer is withheld from then on, and the verdict is 'stale'.
--
-- With `in_wait_ms` no lock waits longer: the statement fails, and the caller repeats it with `in_suspect_ids` null.
-- Suspects are not waited for (null: all).
CREATE FUNCTION turnstile.claim(
    in_worker_id text, in_execution_ids bigint[], in_attempts integer[], in_served_refs text[] DEFAULT NULL,
    in_wait_ms integer DEFAULT NULL, in_suspect_ids bigint[] DEFAULT '{}'
)
RETURNS SETOF turnstile.claimed
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_order
AS $$
DECLARE
    claimed_now timestamptz := clock_timestamp();
    unavailable_ids bigint[] := '{}';
    claimed_rows turnstile.claimed[];
    withheld_ids bigint[];
BEGIN
    -- A worker reports ends and claims offers in one call, and often has only one of the two.
    IF cardinality(in_execution_ids) = 0 THEN
        RETURN;
    END IF;
    IF in_wait_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', in_wait_ms || 'ms', true);
    END IF;
    -- A shared lock until the commit: a sweep that marks this worker as lost waits for it, or comes first.
    PERFORM 1 FROM worker w
    WHERE w.id = in_worker_id AND w.lost_at IS NULL
      AND coalesce((SELECT v.expires_at FROM worker_lease v WHERE v.worker_id = in_worker_id
                    ORDER BY v.version DESC LIMIT 1), w.lease_expires_at) > claimed_now
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT c.id, c.attempt, 'lease_over', NULL::bigint, NULL::text, NULL::text, NULL::jsonb, NULL::jsonb,
               NULL::double precision, NULL::integer, NULL::integer, NULL::double precision,
               NULL::double precision, NULL::double precision, NULL::double precision, NULL::text,
               NULL::double precision, NULL::jsonb, NULL::text, NULL::text
        FROM unnest(in_execution_ids, in_attempts) c(id, attempt);
        RETURN;
    END IF;

    IF in_suspect_ids IS NULL OR in_suspect_ids && in_execution_ids THEN
        unavailable_ids := turnstile.lock_available_executions(in_execution_ids, in_suspect_ids);
    END IF;
    WITH moved AS (
        UPDATE slot s
        SET worker_id = in_worker_id, claimed_at = claimed_now,
            overdue_at = claimed_now + make_interval(secs => e.timeout_seconds)
        FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
        JOIN execution e ON e.id = ANY (ARRAY[c.id])
        JOIN action a ON a.id = ANY (ARRAY[e.action_id])
        WHERE s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt
          AND s.claimed_at IS NULL AND s.finished_at IS NULL
          AND c.id <> ALL (unavailable_ids) AND (e.expires_at IS NULL OR e.expires_at > claimed_now)
          AND (in_served_refs IS NULL OR a.runner <> 'python' OR a.entrypoint IS NOT NULL
               OR a.ref = ANY (in_served_refs))
        RETURNING s.execution_id, s.attempt, 'claimed', e.action_id, a.ref, a.runner, a.entrypoint, e.parameters,
                  e.timeout_seconds, e.failures, a.retry_max_attempts, a.retry_delay_seconds, a.retry_factor,
                  a.retry_max_delay_seconds, a.retry_jitter, e.traceparent,
                  extract(epoch FROM claimed_now - e.queued_at)::double precision, e.metadata, e.concurrency_key,
                  e.idempotency_key
    )
    SELECT array_agg(m::turnstile.claimed) INTO claimed_rows FROM moved m;
    -- The common case: each offer was claimed.
    IF cardinality(claimed_rows) = cardinality(in_execution_ids) THEN
        RETURN QUERY SELECT * FROM unnest(claimed_rows);
        RETURN;
    END IF;

    IF in_served_refs IS NOT NULL THEN
        withheld_ids := ARRAY(SELECT turnstile.withhold_offers(in_execution_ids, in_attempts));
    END IF;
    RETURN QUERY
    SELECT c.id, c.attempt,
           CASE WHEN c.id = ANY (unavailable_ids) THEN 'held'
                WHEN s.worker_id = in_worker_id AND s.finished_at IS NULL THEN 'claimed'
                -- Neither this attempt nor a later event of the execution is visible yet.
                WHEN e.id IS NULL OR e.completed_at IS NULL AND c.attempt > e.attempt AND s.execution_id IS NULL
                    THEN 'unknown'
                WHEN c.id = ANY (withheld_ids) THEN 'stale'
                WHEN s.claimed_at IS NULL AND s.finished_at IS NULL AND s.execution_id IS NOT NULL
                     AND (e.expires_at IS NULL OR e.expires_at > claimed_now) THEN 'not_served'
                ELSE 'stale' END,
           e.action_id, a.ref, a.runner, a.entrypoint, e.parameters, e.timeout_seconds, e.failures,
           a.retry_max_attempts, a.retry_delay_seconds, a.retry_factor, a.retry_max_delay_seconds,
           a.retry_jitter, e.traceparent, extract(epoch FROM s.claimed_at - e.queued_at)::double precision, e.metadata,
           e.concurrency_key, e.idempotency_key
    FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
    LEFT JOIN execution e ON e.id = ANY (ARRAY[c.id])
    LEFT JOIN action a ON a.id = ANY (ARRAY[e.action_id])
    LEFT JOIN slot s ON s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt;
END
$$;
