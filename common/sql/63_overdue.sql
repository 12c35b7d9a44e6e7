-- duration_text: a duration as workers write it (`format_duration`): 250ms, 30s, 1h30m.
CREATE FUNCTION turnstile.duration_text(in_seconds double precision)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT coalesce(nullif(concat(
        CASE WHEN m.ms >= 86400000 THEN m.ms / 86400000 || 'd' END,
        CASE WHEN m.ms / 3600000 % 24 > 0 THEN m.ms / 3600000 % 24 || 'h' END,
        CASE WHEN m.ms / 60000 % 60 > 0 THEN m.ms / 60000 % 60 || 'm' END,
        CASE WHEN m.ms / 1000 % 60 > 0 THEN m.ms / 1000 % 60 || 's' END,
        CASE WHEN m.ms % 1000 > 0 THEN m.ms % 1000 || 'ms' END), ''), '0s')
    FROM (SELECT round(in_seconds * 1000)::bigint AS ms) m
$$;

-- elapsed_text: a measured time as workers write it (`format_elapsed`).
CREATE FUNCTION turnstile.elapsed_text(in_seconds double precision)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN in_seconds < 59.95 THEN round(in_seconds::numeric, 1) || 's'
                ELSE turnstile.duration_text(round(in_seconds)) END
$$;

-- stop_overdue: ends attempts that should have stopped and have not: their timeout is over, or they were
-- cancelled and the message was lost or the worker does not react.
--
-- First the worker gets `in_cancels_max` cancel messages, `in_grace_seconds` apart. Then the attempt ends
-- here, with the outcome that the worker should have reported, and the worker's own report is too late (P3,
-- P6). The slot waits for its settle as usual.
CREATE FUNCTION turnstile.stop_overdue(
    in_grace_seconds double precision,
    in_cancels_max integer,
    in_limit integer,
    OUT asked turnstile.moved[],
    OUT ended turnstile.moved[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    due_ids bigint[];
    exhausted_ids bigint[];
    unavailable_ids bigint[];
    overdue_since timestamptz := clock_timestamp() - make_interval(secs => in_grace_seconds);
    ended_at timestamptz;
BEGIN
    due_ids := ARRAY(
        SELECT s.execution_id FROM turnstile.live_slot s
        WHERE s.overdue_at < overdue_since AND s.finished_at IS NULL AND s.cancels_sent < in_cancels_max
        ORDER BY s.ticket LIMIT in_limit);
    exhausted_ids := ARRAY(
        SELECT s.execution_id FROM turnstile.live_slot s
        WHERE s.overdue_at < overdue_since AND s.finished_at IS NULL AND s.cancels_sent >= in_cancels_max
        ORDER BY s.ticket LIMIT in_limit);
    IF cardinality(due_ids || exhausted_ids) = 0 THEN
        RETURN;
    END IF;
    -- Executions before slots, as in finish and cancel; rows that other sessions hold are left for later.
    -- Everything is checked again under the locks: a report or another replica may have come first.
    unavailable_ids := turnstile.lock_available_executions(due_ids || exhausted_ids, NULL);
    due_ids := ARRAY(SELECT c.id FROM unnest(due_ids) c(id) WHERE c.id <> ALL (unavailable_ids));
    exhausted_ids := ARRAY(SELECT c.id FROM unnest(exhausted_ids) c(id) WHERE c.id <> ALL (unavailable_ids));

    WITH cancelled AS (
        UPDATE slot s SET overdue_at = clock_timestamp(), cancels_sent = s.cancels_sent + 1
        WHERE s.execution_id = ANY (due_ids) AND s.overdue_at < overdue_since
          AND s.finished_at IS NULL AND s.cancels_sent < in_cancels_max
        RETURNING s.execution_id, s.attempt, s.worker_id
    )
    SELECT array_agg(ROW(t.execution_id, t.attempt, e.action_id, a.ref, 'running', 'running', t.worker_id,
                         clock_timestamp())::turnstile.moved ORDER BY t.execution_id)
    INTO asked
    FROM cancelled t
    JOIN execution e ON e.id = ANY (ARRAY[t.execution_id])
    JOIN action a ON a.id = ANY (ARRAY[e.action_id]);

    ended_at := clock_timestamp();
    WITH moved AS (
        UPDATE execution e
        SET status = CASE WHEN e.cancel_requested_at IS NULL THEN 'timeout'
                          ELSE 'cancelled' END::execution_status,
            attempt = s.attempt, worker_id = s.worker_id, scheduled_at = s.granted_at,
            started_at = s.claimed_at,
            completed_at = ended_at,
            gates = CASE WHEN s.gate_ids IS NOT NULL THEN
                turnstile.gates_history(e.id, e.queued_at, s.gate_ids, s.gate_units, s.passed_ats) END,
            error_type = CASE WHEN e.cancel_requested_at IS NULL THEN 'Timeout' ELSE 'Cancelled' END,
            -- Worded as by a worker (`StopRequest.ended`).
            error_message = CASE WHEN e.cancel_requested_at IS NULL
                THEN format('it ran longer than its timeout of %s and was ended by the executor after %s; ',
                            turnstile.duration_text(e.timeout_seconds),
                            turnstile.elapsed_text(extract(epoch FROM ended_at - s.claimed_at)::float8))
                ELSE coalesce(e.cancel_reason || '; ', '') END
                || format('worker %s did not stop it within the grace period of %s after the last cancel '
                          'message', s.worker_id, turnstile.duration_text(in_grace_seconds))
        FROM slot s
        WHERE s.execution_id = ANY (exhausted_ids) AND s.overdue_at < overdue_since
          AND s.finished_at IS NULL AND s.cancels_sent >= in_cancels_max
          AND e.id = ANY (ARRAY[s.execution_id]) AND e.attempt = s.attempt - 1 AND e.completed_at IS NULL
        RETURNING e.id, e.attempt, e.action_id, e.status, e.worker_id
    ),
    ended_slot AS (
        UPDATE slot s SET finished_at = ended_at, published_at = ended_at
        FROM moved m WHERE s.execution_id = ANY (ARRAY[m.id]) AND s.attempt = m.attempt
    )
    SELECT array_agg(ROW(m.id, m.attempt, m.action_id, a.ref, 'running', m.status, m.worker_id,
                         ended_at)::turnstile.moved ORDER BY m.id)
    INTO ended FROM moved m JOIN action a ON a.id = ANY (ARRAY[m.action_id]);
END
$$;
