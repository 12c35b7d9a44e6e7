-- gates_so_far: the gates that an execution has passed, and the one where it waits, as they are kept in its
-- record. Null if it is at no gate, or its action has none after the queue.
CREATE FUNCTION turnstile.gates_so_far(
    in_execution_id bigint, in_queue_id bigint, in_place bigint, in_status text, in_queued_at timestamptz
)
RETURNS jsonb
LANGUAGE sql
STABLE
AS $$
    SELECT CASE
        WHEN in_status IN ('scheduled', 'running') THEN (
            SELECT turnstile.gates_history(in_execution_id, in_queued_at, s.gate_ids, s.gate_units,
                                           s.passed_ats)
            FROM public.slot s WHERE s.execution_id = in_execution_id AND s.finished_at IS NULL)
        WHEN in_status = 'queued' THEN coalesce((
            SELECT coalesce(turnstile.gates_history(in_execution_id, in_queued_at, w.gate_ids, w.gate_units,
                                                    w.passed_ats), '[]')
                   || CASE WHEN turnstile.is_plain_line(g.id, (
                          SELECT a.route FROM public.action_queue q JOIN public.action a
                              ON a.id = ANY (ARRAY[q.action_id])
                          WHERE q.id = in_queue_id)) THEN '[]'::jsonb ELSE jsonb_build_object(
                          'gate', CASE g.kind WHEN 'action' THEN 'total'
                                       WHEN 'resource' THEN 'resource ' || g.name
                                              ELSE 'rate' END,
                          'units', coalesce((
                              SELECT a.route_units[array_position(a.route, g.id)]
                              FROM public.action_queue q JOIN public.action a
                                  ON a.id = ANY (ARRAY[q.action_id])
                              WHERE q.id = in_queue_id), 1),
                          'arrived_at', w.passed_ats[cardinality(w.passed_ats)], 'passed_at', NULL) END
            FROM public.waiting w
            LEFT JOIN public.gate_flow f ON f.id = ANY (ARRAY[w.line_id])
            JOIN public.gate g ON g.id = coalesce(f.gate_id, w.line_id)
            WHERE w.queue_id = in_queue_id AND w.place BETWEEN in_place AND in_place), (
            SELECT jsonb_build_array(jsonb_build_object(
                       'gate', 'queue', 'units', 1, 'passed_at', NULL,
                       'arrived_at', turnstile.arrived_at_queue(in_execution_id, in_queued_at)))
            FROM public.action_queue q JOIN public.action a ON a.id = ANY (ARRAY[q.action_id])
            WHERE q.id = in_queue_id AND a.route IS NOT NULL))
        END
$$;

-- end_unstarted: makes executions terminal that have not started: queued, delayed, or granted and not
-- claimed. For cancel and expire.
--
-- The caller has locked the queue rows, the gates, the execution rows and the slots. An execution that has
-- started or is terminal stays unchanged (P3) and is not returned.
CREATE FUNCTION turnstile.end_unstarted(
    in_execution_ids bigint[], in_status text, in_error_type text, in_error_messages text[]
)
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    ended_at timestamptz := clock_timestamp();
    moves turnstile.moved[];
    changes turnstile.queue_change[];
    line_ids bigint[];
    places bigint[];
    -- A call costs as much as an index lookup, also for null.
    has_gates boolean := EXISTS (SELECT FROM gate);
BEGIN
    -- The state before, which decides what is to be removed.
    WITH before AS MATERIALIZED (
        SELECT e.id, e.status, e.attempt, e.queue_id, e.action_id, e.scheduled_at, e.queued_at,
               c.error_message,
               turnstile.place_of(e.priority, e.id) AS place
        FROM unnest(in_execution_ids, in_error_messages) c(id, error_message)
        JOIN turnstile.current_execution e ON e.id = ANY (ARRAY[c.id]) AND e.status = ANY (:sources_of_expire)
    ),
    moved AS (
        UPDATE execution e
        SET status = in_status::execution_status, attempt = b.attempt, completed_at = ended_at,
            scheduled_at = b.scheduled_at, error_type = in_error_type, error_message = b.error_message,
            gates = CASE WHEN has_gates
                         THEN coalesce(turnstile.gates_so_far(b.id, b.queue_id, b.place, b.status::text,
                                                              b.queued_at), e.gates)
                         ELSE e.gates END
        FROM before b WHERE e.id = ANY (ARRAY[b.id])
    ),
    dequeued AS (
        DELETE FROM waiting w USING before b
        WHERE b.status = 'queued'
          AND w.line_id = ANY (ARRAY[b.queue_id]) AND w.place BETWEEN b.place AND b.place
        RETURNING b.id
    ),
    -- From the list of a later gate.
    left_gate AS (
        DELETE FROM waiting w USING before b
        WHERE b.status = 'queued'
          AND w.queue_id = ANY (ARRAY[b.queue_id]) AND w.place BETWEEN b.place AND b.place
        RETURNING b.id, w.line_id, w.place, w.gate_ids, w.gate_units
    ),
    undelayed AS (
        DELETE FROM delayed d USING before b WHERE b.status = 'delayed' AND d.execution_id = ANY (ARRAY[b.id])
    ),
    -- A granted slot stays held until its completion is settled, as for every terminal execution (P1).
    ended_slot AS (
        UPDATE slot s SET finished_at = ended_at, published_at = ended_at
        FROM before b
        WHERE b.status = 'scheduled' AND s.execution_id = ANY (ARRAY[b.id]) AND s.finished_at IS NULL
    ),
    -- Without a slot, this row repeats the completion until it is settled. Also for a retry whose last slot
    -- is unsettled: the message that frees that slot reports no terminal state.
    unpublished AS (
        INSERT INTO unpublished_completion (execution_id, queue_id, published_at, gate_ids, gate_units)
        -- What it holds after its queue, it holds until its settle, as a granted execution does.
        SELECT b.id, b.queue_id, ended_at, l.gate_ids, l.gate_units
        FROM before b LEFT JOIN left_gate l ON l.id = b.id
        WHERE b.status IN ('queued', 'delayed')
    )
    SELECT (SELECT array_agg(ROW(b.id, b.attempt, b.action_id, a.ref, b.status, in_status, NULL,
                                 ended_at)::turnstile.moved)
            FROM before b JOIN action a ON a.id = ANY (ARRAY[b.action_id])),
           (SELECT array_agg(ROW(n.queue_id, -n.removed, 0, NULL, 0, 0, NULL)::turnstile.queue_change)
            FROM (
                SELECT b.queue_id, count(*) AS removed
                FROM before b JOIN dequeued d ON d.id = b.id GROUP BY b.queue_id
            ) n),
           (SELECT array_agg(l.line_id ORDER BY l.place) FROM left_gate l),
           (SELECT array_agg(l.place ORDER BY l.place) FROM left_gate l)
    INTO moves, changes, line_ids, places;
    PERFORM turnstile.change_queues(changes);
    IF line_ids IS NOT NULL THEN
        PERFORM turnstile.change_gates(turnstile.leave_lines(line_ids, places));
    END IF;
    RETURN QUERY SELECT * FROM unnest(moves);
END
$$;
