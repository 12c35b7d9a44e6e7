-- stop_overdue: see to the end of attempts that should have stopped and have not: their timeout is over, or
-- somebody asked for their end, and the word was lost or the worker does not obey.
--
-- First the worker is told, `in_asks_max` times, `in_grace_seconds` apart; then the attempt is ended here, as the
-- worker should have reported it, and the worker's own report will come too late (P3, P6). The slot waits to
-- be settled like any other.
CREATE FUNCTION turnstile.stop_overdue(
    in_grace_seconds double precision,
    in_asks_max integer,
    in_limit integer,
    OUT asked turnstile.moved[],
    OUT ended turnstile.moved[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    due_ids bigint[];
    over_ids bigint[];
    held_ids bigint[];
    overdue_since timestamptz := clock_timestamp() - make_interval(secs => in_grace_seconds);
    ended_at timestamptz;
BEGIN
    due_ids := ARRAY(
        SELECT s.execution_id FROM slot s
        WHERE s.overdue_at < overdue_since AND s.finished_at IS NULL AND s.stops_asked < in_asks_max
        ORDER BY s.execution_id LIMIT in_limit);
    over_ids := ARRAY(
        SELECT s.execution_id FROM slot s
        WHERE s.overdue_at < overdue_since AND s.finished_at IS NULL AND s.stops_asked >= in_asks_max
        ORDER BY s.execution_id LIMIT in_limit);
    IF cardinality(due_ids || over_ids) = 0 THEN
        RETURN;
    END IF;
    -- Executions before slots, as in finish and cancel; what others hold has its turn later. All is judged again
    -- under the locks: a report may have come first, or another replica.
    held_ids := turnstile.held_executions(due_ids || over_ids, NULL);
    due_ids := ARRAY(SELECT c.id FROM unnest(due_ids) c(id) WHERE c.id <> ALL (held_ids));
    over_ids := ARRAY(SELECT c.id FROM unnest(over_ids) c(id) WHERE c.id <> ALL (held_ids));

    WITH told AS (
        UPDATE slot s SET overdue_at = clock_timestamp(), stops_asked = s.stops_asked + 1
        WHERE s.execution_id = ANY (due_ids) AND s.overdue_at < overdue_since
          AND s.finished_at IS NULL AND s.stops_asked < in_asks_max
        RETURNING s.execution_id, s.attempt, s.worker_id
    )
    SELECT array_agg(ROW(t.execution_id, t.attempt, e.action_id, a.ref, 'running', 'running', t.worker_id,
                         clock_timestamp())::turnstile.moved ORDER BY t.execution_id)
    INTO asked
    FROM told t
    JOIN execution e ON e.id = ANY (ARRAY[t.execution_id])
    JOIN action a ON a.id = ANY (ARRAY[e.action_id]);

    ended_at := clock_timestamp();
    WITH moved AS (
        UPDATE execution e
        SET status = CASE WHEN e.cancel_requested_at IS NULL THEN 'timeout' ELSE 'cancelled' END::execution_status,
            completed_at = ended_at,
            error_type = CASE WHEN e.cancel_requested_at IS NULL THEN 'Timeout' ELSE 'Cancelled' END,
            error_message = CASE WHEN e.cancel_requested_at IS NULL
                THEN format('it ran longer than its timeout of %s seconds, and worker %s did not stop it',
                            e.timeout_seconds, e.worker_id)
                ELSE coalesce(e.cancel_reason || '; ', '') || format('worker %s did not stop it', e.worker_id) END
        FROM slot s
        WHERE s.execution_id = ANY (over_ids) AND s.overdue_at < overdue_since
          AND s.finished_at IS NULL AND s.stops_asked >= in_asks_max
          AND e.id = ANY (ARRAY[s.execution_id]) AND e.attempt = s.attempt AND e.status = ANY (:sources_of_time_out)
        RETURNING e.id, e.attempt, e.action_id, e.status, e.worker_id, e.error_type, e.error_message
    ),
    ended_slot AS (
        UPDATE slot s SET finished_at = ended_at, told_at = ended_at
        FROM moved m WHERE s.execution_id = ANY (ARRAY[m.id]) AND s.attempt = m.attempt
        RETURNING s.execution_id, s.granted_at, s.claimed_at
    ),
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, error_type, error_message,
                             granted_at, started_at, ended_at)
        SELECT m.id, m.attempt, m.worker_id, m.status::text, m.error_type, m.error_message,
               s.granted_at, s.claimed_at, ended_at
        FROM moved m JOIN ended_slot s ON s.execution_id = m.id
    )
    SELECT array_agg(ROW(m.id, m.attempt, m.action_id, a.ref, 'running', m.status, m.worker_id,
                         ended_at)::turnstile.moved ORDER BY m.id)
    INTO ended FROM moved m JOIN action a ON a.id = ANY (ARRAY[m.action_id]);
END
$$;
