-- end_unstarted: makes executions terminal that have not started: queued, delayed, or granted and not claimed. For
-- cancel and expire.
--
-- The caller has locked the queue rows, the execution rows and the slots. An execution that has started or is terminal
-- stays unchanged (P3) and is not returned.
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
BEGIN
    -- The state before, which decides what is to be removed.
    WITH before AS MATERIALIZED (
        SELECT e.id, e.status, e.attempt, e.queue_id, e.action_id, e.scheduled_at, c.error_message
        FROM unnest(in_execution_ids, in_error_messages) c(id, error_message)
        JOIN turnstile.current_execution e ON e.id = ANY (ARRAY[c.id]) AND e.status = ANY (:sources_of_expire)
    ),
    moved AS (
        UPDATE execution e
        SET status = in_status::execution_status, attempt = b.attempt, completed_at = ended_at,
            scheduled_at = b.scheduled_at, error_type = in_error_type, error_message = b.error_message
        FROM before b WHERE e.id = ANY (ARRAY[b.id])
    ),
    dequeued AS (
        DELETE FROM waiting w USING before b
        WHERE b.status = 'queued'
          AND w.queue_id = ANY (ARRAY[b.queue_id]) AND w.execution_id BETWEEN b.id AND b.id
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
    -- Without a slot, this row repeats the completion until it is settled. Also for a retry whose last slot is
    -- unsettled: the message that frees that slot reports no terminal state.
    unpublished AS (
        INSERT INTO unpublished_completion (execution_id, queue_id, published_at)
        SELECT b.id, b.queue_id, ended_at FROM before b
        WHERE b.status IN ('queued', 'delayed')
    )
    SELECT (SELECT array_agg(ROW(b.id, b.attempt, b.action_id, a.ref, b.status, in_status, NULL,
                                 ended_at)::turnstile.moved)
            FROM before b JOIN action a ON a.id = ANY (ARRAY[b.action_id])),
           (SELECT array_agg(ROW(n.queue_id, -n.removed, 0, NULL, 0, 0)::turnstile.queue_change)
            FROM (SELECT b.queue_id, count(*) AS removed FROM before b WHERE b.status = 'queued' GROUP BY b.queue_id) n)
    INTO moves, changes;
    PERFORM turnstile.change_queues(changes);
    RETURN QUERY SELECT * FROM unnest(moves);
END
$$;
