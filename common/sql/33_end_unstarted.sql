-- end_unstarted: end what has not started, wherever it stands: in line, not due, or in a slot that nobody
-- claimed. For cancel and expire.
--
-- The caller holds the queue rows and the execution rows locked. What has started or ended meanwhile is left
-- as it is (P3), and does not come back.
CREATE FUNCTION turnstile.end_unstarted(
    in_execution_ids bigint[], in_status text, in_error_type text, in_error_messages text[]
)
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    ended_at timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH before AS MATERIALIZED (
        SELECT e.id, e.status, e.attempt, e.queue_id, e.action_id, c.error_message
        FROM unnest(in_execution_ids, in_error_messages) c(id, error_message)
        JOIN execution e ON e.id = ANY (ARRAY[c.id]) AND e.status = ANY (:sources_of_expire)
    ),
    moved AS (
        UPDATE execution e
        SET status = in_status::execution_status, completed_at = ended_at,
            error_type = in_error_type, error_message = b.error_message
        FROM before b WHERE e.id = ANY (ARRAY[b.id])
    ),
    left_line AS (
        DELETE FROM waiting w USING before b
        WHERE b.status = 'queued'
          AND w.queue_id = ANY (ARRAY[b.queue_id]) AND w.execution_id BETWEEN b.id AND b.id
    ),
    not_due_any_more AS (
        DELETE FROM delayed d USING before b WHERE b.status = 'delayed' AND d.execution_id = ANY (ARRAY[b.id])
    ),
    counted AS (
        UPDATE action_queue q SET depth = q.depth - n.gone, updated_at = ended_at
        FROM (SELECT b.queue_id, count(*) AS gone FROM before b WHERE b.status = 'queued' GROUP BY b.queue_id) n
        WHERE q.id = ANY (ARRAY[n.queue_id])
    ),
    -- A granted slot stays held until its completion is settled, like every other end (P1).
    ended_slot AS (
        UPDATE slot s SET finished_at = ended_at, told_at = ended_at
        FROM before b
        WHERE b.status = 'scheduled' AND s.execution_id = ANY (ARRAY[b.id]) AND s.finished_at IS NULL
    ),
    -- Also where a retry that waits has its last slot unsettled: what frees that slot tells no end.
    untold AS (
        INSERT INTO untold_end (execution_id, queue_id, told_at)
        SELECT b.id, b.queue_id, ended_at FROM before b
        WHERE b.status IN ('queued', 'delayed')
    )
    SELECT b.id, b.attempt, b.action_id, a.ref, b.status::text, in_status, NULL::text, ended_at
    FROM before b JOIN action a ON a.id = ANY (ARRAY[b.action_id]);
END
$$;
