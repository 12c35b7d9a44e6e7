-- reclaim: takes back the attempts of workers whose lease is over (P6, P7).
--
-- The caller has seen the database healthy for a whole lease up to `in_as_of`, an instant on the database's
-- clock, so every live worker has renewed. A lease that was valid at that instant is not touched, even if
-- this statement was delayed for long. A reclaimed execution keeps its id and returns to the head of its
-- queue. One that may not run again, or was reclaimed too often, becomes 'abandoned'; one with a cancel
-- request becomes 'cancelled'.
CREATE FUNCTION turnstile.reclaim(
    in_limit integer,
    in_as_of timestamptz DEFAULT NULL,
    OUT returned turnstile.moved[],
    OUT ended turnstile.moved[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    orphaned_ids bigint[];
    ending_ids bigint[];
    queue_ids bigint[];
    unavailable_ids bigint[] := '{}';
    newly_unavailable_ids bigint[];
    gate_ids bigint[];
    reclaimed_at timestamptz;
    overdue_before timestamptz := coalesce(in_as_of, clock_timestamp());
    overdue_ids text[];
BEGIN
    -- From here on a marked worker can neither renew nor claim nor finish. A worker that is claiming or
    -- finishing holds its row: it is alive, and the next sweep checks it again.
    overdue_ids := ARRAY(
        SELECT w.id FROM worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
          AND (SELECT c.lease_expires_at FROM turnstile.current_worker c WHERE c.id = w.id) < overdue_before
        FOR UPDATE SKIP LOCKED
    );
    IF cardinality(overdue_ids) > 0 THEN
        -- Checked again under the lock: it may have been renewed.
        WITH lost AS (
            UPDATE worker w
            SET lost_at = clock_timestamp(), renewed_at = c.renewed_at, lease_expires_at = c.lease_expires_at
            FROM turnstile.current_worker c
            WHERE w.id = ANY (overdue_ids) AND c.id = ANY (ARRAY[w.id])
              AND c.lease_expires_at < overdue_before
            RETURNING w.id
        )
        DELETE FROM worker_lease v USING lost l WHERE v.worker_id = ANY (ARRAY[l.id]);
    END IF;

    -- A second round without the queues that other sessions hold: their lost attempts must not fill the
    -- limit.
    FOR round IN 1..2 LOOP
        SELECT array_agg(o.execution_id), array_agg(DISTINCT o.queue_id) INTO orphaned_ids, queue_ids
        FROM (
            SELECT s.execution_id, s.queue_id
            FROM turnstile.live_slot s JOIN worker w ON w.id = ANY (ARRAY[s.worker_id])
            WHERE s.finished_at IS NULL AND (w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL)
              AND s.queue_id <> ALL (unavailable_ids)
            ORDER BY s.ticket LIMIT in_limit
        ) o;
        IF orphaned_ids IS NULL THEN
            RETURN;
        END IF;
        newly_unavailable_ids := turnstile.lock_available_queues(queue_ids);
        unavailable_ids := unavailable_ids || newly_unavailable_ids;
        EXIT WHEN newly_unavailable_ids = '{}';
    END LOOP;
    SELECT l.gate_ids, unavailable_ids || l.busy_queue_ids INTO gate_ids, unavailable_ids
    FROM turnstile.lock_gates(queue_ids, unavailable_ids, orphaned_ids, NULL) l;
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (unavailable_ids));
    unavailable_ids := turnstile.lock_available_executions(orphaned_ids, NULL);
    reclaimed_at := clock_timestamp();

    -- Checked again under the locks: another replica may have been faster.
    SELECT array_agg(e.id) FILTER (WHERE NOT is_ending), array_agg(e.id) FILTER (WHERE is_ending)
    INTO orphaned_ids, ending_ids
    FROM slot s
    JOIN worker w ON w.id = ANY (ARRAY[s.worker_id]) AND (w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL)
    JOIN execution e ON e.id = ANY (ARRAY[s.execution_id]) AND e.attempt = s.attempt - 1
        AND e.completed_at IS NULL
    JOIN action a ON a.id = ANY (ARRAY[e.action_id])
    CROSS JOIN LATERAL (
        SELECT e.cancel_requested_at IS NOT NULL OR a.on_worker_lost = 'abandon'
               OR e.reclaims >= a.max_reclaims
            AS is_ending
    ) evaluated
    WHERE s.execution_id = ANY (orphaned_ids) AND s.finished_at IS NULL
      AND s.queue_id = ANY (queue_ids) AND s.execution_id <> ALL (unavailable_ids);

    -- What may not run again becomes terminal; its slot waits for settle.
    WITH moved AS (
        UPDATE execution e
        SET status = CASE WHEN e.cancel_requested_at IS NULL THEN 'abandoned'
                          ELSE 'cancelled' END::execution_status,
            attempt = s.attempt, worker_id = s.worker_id, scheduled_at = s.granted_at,
            started_at = s.claimed_at,
            completed_at = reclaimed_at,
            -- A call costs as much as an index lookup, also for null.
            gates = CASE WHEN s.gate_ids IS NOT NULL THEN
                turnstile.gates_history(e.id, e.queued_at, s.gate_ids, s.gate_units, s.passed_ats) END,
            error_type = CASE WHEN e.cancel_requested_at IS NULL THEN 'WorkerLost' ELSE 'Cancelled' END,
            error_message = CASE WHEN e.cancel_requested_at IS NOT NULL THEN e.cancel_reason
                                 ELSE format('worker %s was lost; reclaimed %s times before', s.worker_id,
                                             e.reclaims) END
        FROM slot s
        WHERE s.execution_id = ANY (ending_ids) AND s.finished_at IS NULL
          AND e.id = ANY (ARRAY[s.execution_id]) AND e.attempt = s.attempt - 1 AND e.completed_at IS NULL
        RETURNING e.id, e.attempt, e.action_id, e.status, e.worker_id
    ),
    ended_slot AS (
        UPDATE slot s SET finished_at = reclaimed_at, published_at = reclaimed_at
        FROM moved m WHERE s.execution_id = ANY (ARRAY[m.id])
    )
    SELECT array_agg(
        ROW(m.id, m.attempt, m.action_id, a.ref, 'running', m.status, m.worker_id,
            reclaimed_at)::turnstile.moved
        ORDER BY m.id)
    INTO ended FROM moved m JOIN action a ON a.id = ANY (ARRAY[m.action_id]);

    SELECT array_agg(r ORDER BY r.execution_id) INTO returned
    FROM turnstile.requeue(orphaned_ids, 'reclaimed', true) r;
    -- The caller may die before it sends the worker a cancel message. Until that is sent, no offer is
    -- repeated.
    INSERT INTO unpublished_cancel (execution_id, attempt, worker_id, recorded_at)
    SELECT m.execution_id, m.attempt, m.worker_id, reclaimed_at FROM unnest(returned || ended) m;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
    FROM turnstile.grant_locked(queue_ids, in_gate_ids => gate_ids) g;
END
$$;

-- clamp_future_instants: after the server's clock was set back, earlier writes have instants in the future,
-- and what depends on them would wait that much longer. None of these columns can hold a future instant, so
-- each is set to now, and what was derived from it moves by the same amount. A lease is then over after one
-- more lease at the latest. Requested instants (`run_at`, times to live) and the history of attempts stay
-- unchanged.
--
-- `in_retries`: also correct the delays of retries, which reads all delayed executions, and the returns from
-- gates, which reads all of them. Rows that another session holds are skipped; the next call corrects them.
CREATE FUNCTION turnstile.clamp_future_instants(in_retries boolean)
RETURNS bigint
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    now_at timestamptz;
    future_ids text[];
    found_count bigint;
    total_count bigint := 0;
BEGIN
    -- An id before the bound of the delays is read, see due_bound.
    PERFORM pg_current_xact_id();
    -- The clock is read for each row: what is in the future even then was written before the clock was set
    -- back.
    future_ids := ARRAY(
        SELECT w.id FROM worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
          AND (SELECT c.renewed_at FROM turnstile.current_worker c WHERE c.id = w.id) > clock_timestamp()
        ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED
    );
    UPDATE worker_lease v
    SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + (v.expires_at - v.renewed_at)
    WHERE v.worker_id = ANY (future_ids) AND v.renewed_at > clock_timestamp();
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    now_at := clock_timestamp();
    WITH future AS MATERIALIZED (
        SELECT s.execution_id, e.cancel_requested_at IS NOT NULL OR s.cancels_sent > 0 AS is_stopping
        FROM turnstile.live_slot s JOIN execution e ON e.id = s.execution_id
        WHERE greatest(s.granted_at, s.offered_at, s.claimed_at, s.finished_at,
                       s.published_at) > clock_timestamp()
           OR s.overdue_at > clock_timestamp() AND (e.cancel_requested_at IS NOT NULL OR s.cancels_sent > 0)
        ORDER BY s.execution_id FOR NO KEY UPDATE OF s SKIP LOCKED
    )
    UPDATE slot s
    SET granted_at = least(s.granted_at, now_at),
        offered_at = CASE WHEN s.offered_at > now_at THEN now_at ELSE s.offered_at END,
        claimed_at = CASE WHEN s.claimed_at > now_at THEN now_at ELSE s.claimed_at END,
        finished_at = CASE WHEN s.finished_at > now_at THEN now_at ELSE s.finished_at END,
        published_at = CASE WHEN s.published_at > now_at THEN now_at ELSE s.published_at END,
        overdue_at = CASE WHEN a.is_stopping AND s.overdue_at > now_at THEN now_at
                          WHEN s.claimed_at > now_at THEN s.overdue_at - (s.claimed_at - now_at)
                          ELSE s.overdue_at END
    FROM future a WHERE s.execution_id = a.execution_id;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    WITH future AS MATERIALIZED (
        SELECT u.execution_id FROM turnstile.live_unpublished_completion u
        WHERE u.published_at > clock_timestamp()
        ORDER BY u.execution_id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE unpublished_completion u SET published_at = now_at FROM future a
    WHERE u.execution_id = a.execution_id;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    WITH future AS MATERIALIZED (
        SELECT u.execution_id, u.attempt FROM turnstile.live_unpublished_cancel u
        WHERE u.recorded_at > clock_timestamp()
        ORDER BY u.execution_id, u.attempt FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE unpublished_cancel u SET recorded_at = now_at
    FROM future a WHERE u.execution_id = a.execution_id AND u.attempt = a.attempt;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    -- A decision holds the lock of its gate.
    WITH locked AS MATERIALIZED (
        SELECT g.id FROM gate g
        -- The newest start has the latest instant.
        WHERE g.rate_starts IS NOT NULL AND (
            SELECT s.granted_at FROM rate_start s
            WHERE s.gate_id = g.id
              AND s.number = (SELECT v.starts_taken FROM gate_state v WHERE v.gate_id = g.id
                              ORDER BY v.version DESC LIMIT 1)
        ) > clock_timestamp()
        ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE rate_start s SET granted_at = now_at FROM locked l
    WHERE s.gate_id = ANY (ARRAY[l.id]) AND s.granted_at > now_at;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    total_count := total_count + found_count;

    IF in_retries THEN
        WITH future AS MATERIALIZED (
            SELECT d.execution_id, e.run_at - (t.ended_at - now_at) AS run_at
            FROM delayed d
            JOIN execution e ON e.id = d.execution_id
            JOIN attempt t ON t.execution_id = e.id AND t.attempt = e.attempt
            WHERE t.ended_at > now_at
            ORDER BY d.execution_id FOR NO KEY UPDATE OF d, e SKIP LOCKED
        ),
        due AS (
            UPDATE delayed d SET due_at = greatest(a.run_at, (SELECT b.next_at FROM turnstile.due_bound b))
            FROM future a WHERE d.execution_id = a.execution_id
        )
        UPDATE execution e SET run_at = a.run_at FROM future a WHERE e.id = a.execution_id;
        GET DIAGNOSTICS found_count = ROW_COUNT;
        total_count := total_count + found_count;

        WITH future AS MATERIALIZED (
            SELECT r.execution_id FROM gate_return r WHERE r.returned_at > clock_timestamp()
            ORDER BY r.execution_id FOR NO KEY UPDATE SKIP LOCKED
        )
        UPDATE gate_return r SET returned_at = now_at FROM future a WHERE r.execution_id = a.execution_id;
        GET DIAGNOSTICS found_count = ROW_COUNT;
        total_count := total_count + found_count;
    END IF;
    RETURN total_count;
END
$$;
