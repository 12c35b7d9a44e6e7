-- reclaim: take back the work of workers whose lease is over (P6, P7).
--
-- The caller has seen the database healthy for a whole lease up to `in_as_of`, an instant on the database's own
-- clock, so every worker that lives has renewed; a lease that was still good then is left alone, even if this
-- very statement was held up for long. A reclaimed execution keeps its ticket and stands at the head again; one that may not be run again, or was
-- reclaimed too often, ends as 'abandoned', and one that somebody asked to stop ends as 'cancelled'.
CREATE FUNCTION turnstile.reclaim(
    in_limit integer,
    in_as_of timestamptz DEFAULT NULL,
    OUT returned turnstile.moved[],
    OUT ended turnstile.moved[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    orphan_ids bigint[];
    over_ids bigint[];
    queue_ids bigint[];
    held_ids bigint[] := '{}';
    found_held_ids bigint[];
    reclaimed_at timestamptz;
BEGIN
    -- A worker that is marked can neither renew nor claim nor finish from here on. One that is just claiming
    -- or finishing holds its row: that is a sign of life, and the next look will judge it.
    WITH overdue AS (
        SELECT w.id FROM worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.lease_expires_at < coalesce(in_as_of, clock_timestamp())
        FOR UPDATE SKIP LOCKED
    )
    UPDATE worker w SET lost_at = clock_timestamp() FROM overdue o WHERE w.id = ANY (ARRAY[o.id]);

    -- Once more without the queues that other sessions hold: what was lost in them must not fill the bound.
    FOR round IN 1..2 LOOP
        SELECT array_agg(o.execution_id), array_agg(DISTINCT o.queue_id) INTO orphan_ids, queue_ids
        FROM (
            SELECT s.execution_id, s.queue_id
            FROM slot s JOIN worker w ON w.id = ANY (ARRAY[s.worker_id])
            WHERE s.finished_at IS NULL AND (w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL)
              AND s.queue_id <> ALL (held_ids)
            ORDER BY s.execution_id LIMIT in_limit
        ) o;
        IF orphan_ids IS NULL THEN
            RETURN;
        END IF;
        found_held_ids := turnstile.lock_unheld_queues(queue_ids);
        held_ids := held_ids || found_held_ids;
        EXIT WHEN found_held_ids = '{}';
    END LOOP;
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (held_ids));
    held_ids := turnstile.held_executions(orphan_ids, NULL);
    reclaimed_at := clock_timestamp();

    -- Judged again under the locks: another replica may have been faster.
    SELECT array_agg(e.id) FILTER (WHERE NOT is_over), array_agg(e.id) FILTER (WHERE is_over)
    INTO orphan_ids, over_ids
    FROM slot s
    JOIN worker w ON w.id = ANY (ARRAY[s.worker_id]) AND (w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL)
    JOIN execution e ON e.id = ANY (ARRAY[s.execution_id]) AND e.attempt = s.attempt AND e.status = 'running'
    JOIN action a ON a.id = ANY (ARRAY[e.action_id])
    CROSS JOIN LATERAL (
        SELECT e.cancel_requested_at IS NOT NULL OR a.on_worker_lost = 'abandon' OR e.reclaims >= a.max_reclaims
            AS is_over
    ) judged
    WHERE s.execution_id = ANY (orphan_ids) AND s.finished_at IS NULL
      AND s.queue_id = ANY (queue_ids) AND s.execution_id <> ALL (held_ids);

    WITH moved AS (
        UPDATE execution e
        SET status = CASE WHEN e.cancel_requested_at IS NULL THEN 'abandoned' ELSE 'cancelled' END::execution_status,
            completed_at = reclaimed_at,
            error_type = CASE WHEN e.cancel_requested_at IS NULL THEN 'WorkerLost' ELSE 'Cancelled' END,
            error_message = CASE WHEN e.cancel_requested_at IS NOT NULL THEN e.cancel_reason
                                 ELSE format('worker %s was lost; %s reclaims before', e.worker_id, e.reclaims) END
        WHERE e.id = ANY (over_ids) AND e.status = ANY (:sources_of_abandon)
        RETURNING e.id, e.attempt, e.action_id, e.status, e.worker_id, e.error_type, e.error_message
    ),
    ended_slot AS (
        UPDATE slot s SET finished_at = reclaimed_at, told_at = reclaimed_at
        FROM moved m WHERE s.execution_id = ANY (ARRAY[m.id])
        RETURNING s.execution_id, s.granted_at, s.claimed_at
    ),
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, error_type, error_message,
                             granted_at, started_at, ended_at)
        SELECT m.id, m.attempt, m.worker_id, m.status::text, m.error_type, m.error_message,
               s.granted_at, s.claimed_at, reclaimed_at
        FROM moved m JOIN ended_slot s ON s.execution_id = m.id
    )
    SELECT array_agg(
        ROW(m.id, m.attempt, m.action_id, a.ref, 'running', m.status, m.worker_id, reclaimed_at)::turnstile.moved
        ORDER BY m.id)
    INTO ended FROM moved m JOIN action a ON a.id = ANY (ARRAY[m.action_id]);

    SELECT array_agg(r ORDER BY r.execution_id) INTO returned
    FROM turnstile.return_to_line(orphan_ids, 'reclaimed', true) r;
    -- Whoever reclaimed may die before it tells the worker to stop: until somebody has, no offer is repeated.
    INSERT INTO untold_stop (execution_id, attempt, worker_id, noted_at)
    SELECT m.execution_id, m.attempt, m.worker_id, reclaimed_at FROM unnest(returned || ended) m;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids FROM turnstile.grant_locked(queue_ids, NULL) g;
END
$$;

-- return_to_present: after the server's clock was set back, instants that it wrote before lie in the future, and what
-- waits for them would wait for as long as the clock was set back. None of these can lie there, so each becomes now;
-- what was counted from it comes as much earlier. A lease is then over one lease from now, at the latest.
-- What people asked for (`run_at`, times to live) stays, and so does what is on the record of ended attempts.
--
-- `in_retries`: look at the waits before retries too; that reads all that is delayed. What others work on is skipped:
-- the next call finds it.
CREATE FUNCTION turnstile.return_to_present(in_retries boolean)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET jit = off
AS $$
DECLARE
    present timestamptz;
    found_count bigint;
    total_count bigint := 0;
BEGIN
    -- The clock is read for each row: what is in the future even then was written before it was set back.
    WITH ahead AS MATERIALIZED (
        SELECT w.id FROM worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.renewed_at > clock_timestamp()
        ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE worker w
    SET renewed_at = clock_timestamp(), lease_expires_at = clock_timestamp() + (w.lease_expires_at - w.renewed_at)
    FROM ahead a WHERE w.id = a.id;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    present := clock_timestamp();
    WITH ahead AS MATERIALIZED (
        SELECT s.execution_id, e.cancel_requested_at IS NOT NULL OR s.stops_asked > 0 AS is_to_stop
        FROM slot s JOIN execution e ON e.id = s.execution_id
        WHERE greatest(s.granted_at, s.offered_at, s.claimed_at, s.finished_at, s.told_at) > clock_timestamp()
           OR s.overdue_at > clock_timestamp() AND (e.cancel_requested_at IS NOT NULL OR s.stops_asked > 0)
        ORDER BY s.execution_id FOR NO KEY UPDATE OF s SKIP LOCKED
    )
    UPDATE slot s
    SET granted_at = least(s.granted_at, present),
        offered_at = CASE WHEN s.offered_at > present THEN present ELSE s.offered_at END,
        claimed_at = CASE WHEN s.claimed_at > present THEN present ELSE s.claimed_at END,
        finished_at = CASE WHEN s.finished_at > present THEN present ELSE s.finished_at END,
        told_at = CASE WHEN s.told_at > present THEN present ELSE s.told_at END,
        overdue_at = CASE WHEN a.is_to_stop AND s.overdue_at > present THEN present
                          WHEN s.claimed_at > present THEN s.overdue_at - (s.claimed_at - present)
                          ELSE s.overdue_at END
    FROM ahead a WHERE s.execution_id = a.execution_id;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    WITH ahead AS MATERIALIZED (
        SELECT u.execution_id FROM untold_end u WHERE u.told_at > clock_timestamp()
        ORDER BY u.execution_id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE untold_end u SET told_at = present FROM ahead a WHERE u.execution_id = a.execution_id;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    WITH ahead AS MATERIALIZED (
        SELECT u.execution_id, u.attempt FROM untold_stop u WHERE u.noted_at > clock_timestamp()
        ORDER BY u.execution_id, u.attempt FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE untold_stop u SET noted_at = present
    FROM ahead a WHERE u.execution_id = a.execution_id AND u.attempt = a.attempt;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    IF in_retries THEN
        WITH ahead AS MATERIALIZED (
            SELECT d.execution_id, d.due_at - (t.ended_at - present) AS due_at
            FROM delayed d
            JOIN execution e ON e.id = d.execution_id
            JOIN attempt t ON t.execution_id = e.id AND t.attempt = e.attempt
            WHERE t.ended_at > present
            ORDER BY d.execution_id FOR NO KEY UPDATE OF d, e SKIP LOCKED
        ),
        due AS (
            UPDATE delayed d SET due_at = a.due_at FROM ahead a WHERE d.execution_id = a.execution_id
        )
        UPDATE execution e SET run_at = a.due_at FROM ahead a WHERE e.id = a.execution_id;
        GET DIAGNOSTICS found_count = ROW_COUNT;
        total_count := total_count + found_count;
    END IF;
    RETURN total_count;
END
$$;
