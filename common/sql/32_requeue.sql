-- requeue: returns attempts to the heads of their queues (P2: the execution id stays).
--
-- The caller has locked the queue rows, the gates, the executions and the slots, and has checked that these
-- attempts may be returned. The slot is freed here, so the next grant has a new attempt (P6). A cancelled
-- execution does not start again: it becomes 'cancelled' here, and its slot waits for its settle as usual.
CREATE FUNCTION turnstile.requeue(in_execution_ids bigint[], in_outcome text, in_counts boolean)
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    returned_at timestamptz := clock_timestamp();
    moves turnstile.moved[];
    changes turnstile.queue_change[];
    gate_changes turnstile.gate_change[];
    worker_slot_changes turnstile.gate_change[];
BEGIN
    -- The slots of attempts that have not finished.
    WITH held AS MATERIALIZED (
        SELECT s.* FROM slot s WHERE s.execution_id = ANY (in_execution_ids) AND s.finished_at IS NULL
    ),
    -- Back to the queue.
    moved AS (
        UPDATE execution e
        SET status = 'queued', attempt = h.attempt, queued_at = returned_at, worker_id = NULL,
            scheduled_at = NULL,
            started_at = NULL, reclaims = e.reclaims + in_counts::integer
        FROM held h
        WHERE e.id = ANY (ARRAY[h.execution_id]) AND e.attempt = h.attempt - 1 AND e.completed_at IS NULL
          AND e.cancel_requested_at IS NULL
        RETURNING e.id, e.attempt, e.action_id, e.queue_id, e.expires_at,
            turnstile.place_of(e.priority, e.id) AS place
    ),
    -- Cancelled while it ran: terminal instead of queued.
    ended AS (
        UPDATE execution e
        SET status = 'cancelled', attempt = h.attempt, worker_id = h.worker_id, scheduled_at = h.granted_at,
            started_at = h.claimed_at, completed_at = returned_at, error_type = 'Cancelled',
            error_message = e.cancel_reason,
            -- A call costs as much as an index lookup, also for null.
            gates = CASE WHEN h.gate_ids IS NOT NULL THEN
                turnstile.gates_history(e.id, e.queued_at, h.gate_ids, h.gate_units, h.passed_ats) END
        FROM held h
        WHERE e.id = ANY (ARRAY[h.execution_id]) AND e.attempt = h.attempt - 1 AND e.completed_at IS NULL
          AND e.cancel_requested_at IS NOT NULL
        RETURNING e.id, e.attempt, e.action_id
    ),
    -- No completion is published yet: the watchdog's next sweep of `published_at` publishes it.
    ended_slot AS (
        UPDATE slot s SET finished_at = returned_at, published_at = '-infinity'
        FROM ended d WHERE s.execution_id = ANY (ARRAY[d.id])
    ),
    freed AS (
        DELETE FROM slot s USING moved m WHERE s.execution_id = ANY (ARRAY[m.id])
    ),
    enqueued AS (
        INSERT INTO waiting (line_id, place) SELECT m.queue_id, m.place FROM moved m
    ),
    new_deadline AS (
        INSERT INTO expiring (execution_id, queue_id, expires_at)
        -- It may have passed long ago.
        SELECT m.id, m.queue_id, greatest(m.expires_at, (SELECT b.next_at FROM turnstile.due_bound b))
        FROM moved m WHERE m.expires_at IS NOT NULL
        ON CONFLICT DO NOTHING
    ),
    returned_rows AS (
        SELECT m.id, m.attempt, m.action_id, 'queued' AS status FROM moved m
        UNION ALL
        SELECT d.id, d.attempt, d.action_id, 'cancelled' FROM ended d
    ),
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, granted_at, started_at, ended_at)
        SELECT m.id, m.attempt, h.worker_id, in_outcome, h.granted_at, h.claimed_at, returned_at
        FROM moved m JOIN held h ON h.execution_id = m.id WHERE h.worker_id IS NOT NULL
    )
    SELECT (SELECT array_agg(
                ROW(t.id, t.attempt, t.action_id, a.ref,
                    CASE WHEN h.worker_id IS NULL THEN 'scheduled' ELSE 'running' END, t.status, h.worker_id,
                    returned_at)::turnstile.moved)
            FROM returned_rows t
            JOIN held h ON h.execution_id = t.id
            JOIN action a ON a.id = ANY (ARRAY[t.action_id])),
           (SELECT array_agg(ROW(n.queue_id, n.returned, -n.returned, n.first_id, 0, 0,
                                 n.first_places)::turnstile.queue_change)
            FROM (
                SELECT m.queue_id, count(*) AS returned, min(m.id) FILTER (WHERE m.place = m.id) AS first_id,
                       turnstile.first_places(array_agg(m.place)) AS first_places
                FROM moved m GROUP BY m.queue_id
            ) n),
           (SELECT array_agg(ROW(u.gate_id, -u.units, 0)::turnstile.gate_change)
            FROM moved m JOIN held h ON h.execution_id = m.id
            CROSS JOIN unnest(h.gate_ids, h.gate_units) u(gate_id, units)),
           (SELECT array_agg(ROW(h.pool_id, -1, 0)::turnstile.gate_change)
            FROM moved m JOIN held h ON h.execution_id = m.id WHERE h.pool_id IS NOT NULL)
    INTO moves, changes, gate_changes, worker_slot_changes;
    PERFORM turnstile.change_queues(changes);
    IF gate_changes IS NOT NULL THEN
        PERFORM turnstile.change_gates(gate_changes);
    END IF;
    IF worker_slot_changes IS NOT NULL THEN
        PERFORM turnstile.release_worker_slots(worker_slot_changes, true);
    END IF;
    RETURN QUERY SELECT * FROM unnest(moves);
END
$$;

-- hand_back: a draining worker returns what it could not finish. Returns the executions that wait again. A
-- row that another session holds fails the statement soon, and the worker repeats it.
CREATE FUNCTION turnstile.hand_back(in_worker_id text, in_execution_ids bigint[], in_attempts integer[])
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_lookups
SET lock_timeout = '500ms'
AS $$
DECLARE
    own_ids bigint[];
BEGIN
    PERFORM 1 FROM action_queue q
    WHERE q.id = ANY (ARRAY(SELECT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids)))
    ORDER BY q.id FOR NO KEY UPDATE;
    PERFORM turnstile.lock_gates('{}', '{}', in_execution_ids);
    -- Locked before it is checked: a reclaim or a finish of the same attempt comes first, or finds it gone.
    PERFORM 1 FROM execution e WHERE e.id = ANY (in_execution_ids) ORDER BY e.id FOR NO KEY UPDATE;
    PERFORM 1 FROM slot s WHERE s.execution_id = ANY (in_execution_ids) ORDER BY s.execution_id
    FOR NO KEY UPDATE;
    SELECT array_agg(s.execution_id) INTO own_ids
    FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
    JOIN slot s ON s.execution_id = ANY (ARRAY[c.id])
    WHERE s.attempt = c.attempt AND s.worker_id = in_worker_id AND s.finished_at IS NULL;
    RETURN QUERY SELECT * FROM turnstile.requeue(own_ids, 'handed_back', false) r WHERE r.status = 'queued';
END
$$;
