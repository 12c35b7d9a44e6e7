-- exchange: a worker reports how its attempts ended, and claims the attempts that it was offered.
--
-- A busy worker has reports and offers at the same time, and a small batch is mostly fixed cost: one call
-- locks the worker's row once, for both. Reports come first: they mostly have lower ids than offers, and
-- other sessions lock executions ascending. Each row of the answer has one of the two columns; there is one
-- answer for each report and offer.
--
-- *Reports* are guarded by worker, attempt and a live lease (P3, P6): a late report of a reclaimed attempt
-- changes nothing. The slot stays held until `settle` (P1). An attempt with `in_retry_delay_seconds` is
-- delayed for its retry, unless its execution was cancelled or its time to live leaves no time for a retry.
-- `in_logs` is the rest of each log after `append_logs`; `in_log_starts` is the number of characters before
-- it. Verdicts: 'applied'; 'already' (this worker reported it before; publish it again); 'stale';
-- 'lease_over'; 'held'.
--
-- *Claims* are guarded by the slot and its attempt (P6): one of two workers with the same offer wins, and an
-- offer from before a reclaim never wins. The execution's row is only read. Repeating a claim after a lost
-- answer is harmless: what this worker holds comes back as 'claimed'.
-- Verdicts: 'claimed'; 'stale' (do not run, acknowledge); 'unknown' (no such execution yet); 'lease_over'
-- (nothing was claimed, renew first); 'held' (another session holds the execution, try later); 'not_served'
-- (a python action without entrypoint that is not in `in_served_refs`; null: the worker has the code of every
-- action). If no live worker has the code, the offer is withheld from then on, and the verdict is 'stale'.
--
-- With `in_wait_ms` no lock waits longer: the statement fails, and the caller repeats it with
-- `in_suspect_ids` null. Suspects are not waited for (null: all).
CREATE FUNCTION turnstile.exchange(
    in_worker_id text,
    in_offered_ids bigint[],
    in_offered_attempts integer[],
    in_served_refs text[],
    in_ended_ids bigint[],
    in_ended_attempts integer[],
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
RETURNS TABLE (finished turnstile.finished, claimed turnstile.claimed)
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_order
AS $$
DECLARE
    finished_now timestamptz := clock_timestamp();
    claimed_now timestamptz;
    lease_live boolean;
    unavailable_ids bigint[] := '{}';
    moved_count integer;
BEGIN
    -- The previous version's calls of claim and finish often carry only one kind.
    IF cardinality(in_ended_ids) + cardinality(in_offered_ids) = 0 THEN
        RETURN;
    END IF;
    IF in_wait_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', in_wait_ms || 'ms', true);
    END IF;
    -- A shared lock until the commit: a sweep that marks this worker as lost waits for it, or comes first.
    PERFORM 1 FROM worker w
    WHERE w.id = in_worker_id AND w.lost_at IS NULL
      AND coalesce((SELECT v.expires_at FROM worker_lease v WHERE v.worker_id = in_worker_id
                    ORDER BY v.version DESC LIMIT 1), w.lease_expires_at) > finished_now
    FOR KEY SHARE;
    lease_live := FOUND;

    IF cardinality(in_ended_ids) > 0 THEN
        IF in_suspect_ids IS NULL OR in_suspect_ids && in_ended_ids THEN
            unavailable_ids := turnstile.lock_available_executions(in_ended_ids, in_suspect_ids);
        END IF;
        RETURN QUERY
        WITH report AS (
            -- At most ten years, whatever delay was given: later dates are beyond what clients can show.
            SELECT r.*, finished_now + make_interval(secs => CASE WHEN r.retry_delay_seconds IS NOT NULL
                       THEN least(greatest(r.retry_delay_seconds, 0), 316224000) END) AS due_at
            FROM unnest(in_ended_ids, in_ended_attempts, in_statuses, in_results, in_error_types,
                        in_error_messages,
                        in_retry_delay_seconds)
                 r(id, attempt, status, result, error_type, error_message, retry_delay_seconds)
        ),
        moved AS (
            UPDATE execution e
            -- Decided on the row as it is when it is locked: an earlier cancel is seen.
            SET status = CASE WHEN turnstile.retried_at(r.due_at, e.cancel_requested_at, e.expires_at) IS NULL
                              THEN r.status ELSE 'delayed' END::execution_status,
                completed_at = CASE WHEN turnstile.retried_at(r.due_at, e.cancel_requested_at,
                                                              e.expires_at) IS NULL
                                    THEN finished_now END,
                run_at = coalesce(turnstile.retried_at(r.due_at, e.cancel_requested_at, e.expires_at),
                                  e.run_at),
                attempt = r.attempt, worker_id = in_worker_id, scheduled_at = s.granted_at,
                started_at = s.claimed_at,
                result = r.result, error_type = r.error_type,
                -- The reason of the cancel wins: the worker knows only that the execution was cancelled.
                error_message = CASE WHEN r.status = 'cancelled'
                                         THEN coalesce(e.cancel_reason, r.error_message)
                                     ELSE r.error_message END,
                failures = e.failures + (r.status = 'failed')::integer,
                -- A call costs as much as an index lookup, also for null.
                gates = CASE WHEN s.gate_ids IS NOT NULL THEN
                    turnstile.gates_history(e.id, e.queued_at, s.gate_ids, s.gate_units, s.passed_ats) END
            FROM report r
            JOIN slot s ON s.execution_id = ANY (ARRAY[r.id]) AND s.attempt = r.attempt
                AND s.worker_id = in_worker_id
                           AND s.finished_at IS NULL
            -- Whatever ends an attempt before this report writes the number of the attempt into the row.
            WHERE lease_live AND e.id = ANY (ARRAY[r.id]) AND e.attempt = r.attempt - 1
              AND e.completed_at IS NULL
              AND r.id <> ALL (unavailable_ids)
            RETURNING e.id, e.attempt, e.status, e.completed_at
        ),
        -- The slot stays held until settle; the worker publishes the completion now.
        ended AS (
            UPDATE slot s SET finished_at = finished_now, published_at = finished_now
            FROM moved m WHERE s.execution_id = ANY (ARRAY[m.id])
        )
        SELECT ROW(m.id, m.attempt, 'applied', m.status::text,
                   coalesce(m.completed_at, finished_now))::turnstile.finished,
               NULL::turnstile.claimed
        FROM moved m;
        GET DIAGNOSTICS moved_count = ROW_COUNT;
        -- In the common case each attempt ended its execution, without a log, and was applied.
        IF num_nonnulls(VARIADIC in_logs) > 0 OR num_nonnulls(VARIADIC in_retry_delay_seconds) > 0 THEN
            PERFORM turnstile.keep_attempts(in_worker_id, in_ended_ids, in_ended_attempts, in_statuses,
                                            in_error_types,
                                            in_error_messages, in_logs, in_log_starts, finished_now);
        END IF;
        IF moved_count < cardinality(in_ended_ids) THEN
            RETURN QUERY
            SELECT r, NULL::turnstile.claimed
            FROM turnstile.refused_reports(in_worker_id, in_ended_ids, in_ended_attempts, in_statuses,
                                           in_retry_delay_seconds, finished_now, lease_live,
                                           unavailable_ids) r;
        END IF;
    END IF;

    IF cardinality(in_offered_ids) > 0 THEN
        claimed_now := clock_timestamp();
        IF in_suspect_ids IS NULL OR in_suspect_ids && in_offered_ids THEN
            unavailable_ids := turnstile.lock_available_executions(in_offered_ids, in_suspect_ids);
        END IF;
        RETURN QUERY
        WITH moved AS (
            UPDATE slot s
            SET worker_id = in_worker_id, claimed_at = claimed_now,
                overdue_at = claimed_now + make_interval(secs => e.timeout_seconds)
            FROM unnest(in_offered_ids, in_offered_attempts) c(id, attempt)
            JOIN execution e ON e.id = ANY (ARRAY[c.id])
            JOIN action a ON a.id = ANY (ARRAY[e.action_id])
            WHERE lease_live AND s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt
              AND s.claimed_at IS NULL AND s.finished_at IS NULL
              AND c.id <> ALL (unavailable_ids) AND (e.expires_at IS NULL OR e.expires_at > claimed_now)
              AND (in_served_refs IS NULL OR a.runner <> 'python' OR a.entrypoint IS NOT NULL
                   OR a.ref = ANY (in_served_refs))
            RETURNING ROW(s.execution_id, s.attempt, 'claimed', e.action_id, a.ref, a.runner, a.entrypoint,
                          e.parameters, e.timeout_seconds, e.failures, a.retry_max_attempts,
                          a.retry_delay_seconds, a.retry_factor, a.retry_max_delay_seconds, a.retry_jitter,
                          e.traceparent,
                          extract(epoch FROM claimed_now - e.queued_at)::double precision, e.metadata,
                          e.concurrency_key, e.idempotency_key)::turnstile.claimed AS claimed
        )
        SELECT NULL::turnstile.finished, m.claimed FROM moved m;
        GET DIAGNOSTICS moved_count = ROW_COUNT;
        IF moved_count < cardinality(in_offered_ids) THEN
            RETURN QUERY
            SELECT NULL::turnstile.finished, c
            FROM turnstile.refused_offers(in_worker_id, in_offered_ids, in_offered_attempts, in_served_refs,
                                          claimed_now, lease_live, unavailable_ids) c;
        END IF;
    END IF;
END
$$;

-- retried_at: when an attempt that may be retried at `in_due_at` is retried; null: it ends its execution.
CREATE FUNCTION turnstile.retried_at(
    in_due_at timestamptz, in_cancel_requested_at timestamptz, in_expires_at timestamptz
)
RETURNS timestamptz
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN in_cancel_requested_at IS NULL AND (in_expires_at IS NULL OR in_expires_at > in_due_at)
                THEN in_due_at END
$$;

-- keep_attempts: stores, of the outcomes that this call of exchange has applied, what the executions' rows
-- do not have: logs, and attempts that are followed by another one. `in_finished_at` identifies the call.
CREATE FUNCTION turnstile.keep_attempts(
    in_worker_id text, in_ended_ids bigint[], in_ended_attempts integer[], in_statuses text[],
    in_error_types text[],
    in_error_messages text[], in_logs text[], in_log_starts bigint[], in_finished_at timestamptz
)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    WITH kept AS (
        SELECT e.id, e.queue_id, e.status, e.run_at, e.scheduled_at, e.started_at, r.attempt,
               r.status AS reported, r.error_type, r.error_message, r.log, r.log_start
        FROM unnest(in_ended_ids, in_ended_attempts, in_statuses, in_error_types, in_error_messages, in_logs,
                    in_log_starts) r(id, attempt, status, error_type, error_message, log, log_start)
        JOIN slot s ON s.execution_id = ANY (ARRAY[r.id]) AND s.attempt = r.attempt
                              AND s.worker_id = in_worker_id AND s.finished_at = in_finished_at
        JOIN execution e ON e.id = ANY (ARRAY[r.id])
        WHERE e.status = 'delayed' OR r.log <> ''
    ),
    new_delay AS (
        INSERT INTO delayed (execution_id, queue_id, due_at)
        SELECT k.id, k.queue_id, greatest(k.run_at, (SELECT b.next_at FROM turnstile.due_bound b))
        FROM kept k WHERE k.status = 'delayed'
    )
    INSERT INTO attempt (execution_id, attempt, worker_id, outcome, error_type, error_message, log,
                                log_start, granted_at, started_at, ended_at)
    SELECT k.id, k.attempt, in_worker_id, CASE WHEN k.status = 'delayed' THEN 'retried' ELSE k.reported END,
           k.error_type, k.error_message, k.log, coalesce(k.log_start, 0), k.scheduled_at, k.started_at,
           in_finished_at
    FROM kept k;
END
$$;

-- refused_reports: the answers to those outcomes that this call of exchange has not applied.
CREATE FUNCTION turnstile.refused_reports(
    in_worker_id text, in_ended_ids bigint[], in_ended_attempts integer[], in_statuses text[],
    in_retry_delay_seconds double precision[], in_finished_at timestamptz, in_lease_live boolean,
    in_unavailable_ids bigint[]
)
RETURNS SETOF turnstile.finished
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
    SELECT r.id, r.attempt,
           CASE WHEN r.id = ANY (in_unavailable_ids) THEN 'held'
                -- The report equals the stored outcome: this worker reported it before.
                WHEN e.attempt = r.attempt AND e.worker_id = in_worker_id
                     AND (e.status::text = r.status OR e.status = 'delayed' AND r.delay IS NOT NULL)
                    THEN 'already'
                WHEN NOT in_lease_live THEN 'lease_over'
                ELSE 'stale' END,
           e.status::text, coalesce(e.completed_at, in_finished_at)
    FROM unnest(in_ended_ids, in_ended_attempts, in_statuses, in_retry_delay_seconds) r(id, attempt, status,
                                                                                        delay)
    LEFT JOIN execution e ON e.id = ANY (ARRAY[r.id])
    LEFT JOIN slot s ON s.execution_id = ANY (ARRAY[r.id]) AND s.attempt = r.attempt
    WHERE s.finished_at IS DISTINCT FROM in_finished_at;
END
$$;

-- refused_offers: the answers to those offers that this call of exchange has not claimed.
CREATE FUNCTION turnstile.refused_offers(
    in_worker_id text, in_offered_ids bigint[], in_offered_attempts integer[], in_served_refs text[],
    in_claimed_at timestamptz, in_lease_live boolean, in_unavailable_ids bigint[]
)
RETURNS SETOF turnstile.claimed
LANGUAGE plpgsql
AS $$
DECLARE
    withheld_ids bigint[];
BEGIN
    IF in_lease_live AND in_served_refs IS NOT NULL THEN
        withheld_ids := ARRAY(SELECT turnstile.withhold_offers(in_offered_ids, in_offered_attempts));
    END IF;
    RETURN QUERY
    SELECT c.id, c.attempt,
           CASE WHEN NOT in_lease_live THEN 'lease_over'
                WHEN c.id = ANY (in_unavailable_ids) THEN 'held'
                WHEN s.worker_id = in_worker_id AND s.finished_at IS NULL THEN 'claimed'
                -- Neither this attempt nor a later event of the execution is visible yet.
                WHEN e.id IS NULL OR e.completed_at IS NULL AND c.attempt > e.attempt
                     AND s.execution_id IS NULL
                    THEN 'unknown'
                WHEN c.id = ANY (withheld_ids) THEN 'stale'
                WHEN s.claimed_at IS NULL AND s.finished_at IS NULL AND s.execution_id IS NOT NULL
                     AND (e.expires_at IS NULL OR e.expires_at > in_claimed_at) THEN 'not_served'
                ELSE 'stale' END,
           e.action_id, a.ref, a.runner, a.entrypoint, e.parameters, e.timeout_seconds, e.failures,
           a.retry_max_attempts, a.retry_delay_seconds, a.retry_factor, a.retry_max_delay_seconds,
           a.retry_jitter, e.traceparent, extract(epoch FROM s.claimed_at - e.queued_at)::double precision,
           e.metadata, e.concurrency_key, e.idempotency_key
    FROM unnest(in_offered_ids, in_offered_attempts) c(id, attempt)
    LEFT JOIN execution e ON e.id = ANY (ARRAY[c.id])
    LEFT JOIN action a ON a.id = ANY (ARRAY[e.action_id])
    LEFT JOIN slot s ON s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt
    WHERE (s.worker_id = in_worker_id AND s.claimed_at = in_claimed_at) IS NOT TRUE;
END
$$;
