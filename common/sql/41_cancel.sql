-- cancel: end what has not started, and ask for the end of what runs.
--
-- One guarded write decides every race with grant, claim and finish: the queue rows are locked, then the
-- execution rows, and only then are they judged (P3).
--
-- Statuses returned: 'cancelled' (ended here), 'running' (its worker is to be asked), the status it
-- already had if it was terminal before, null if there is no such execution.
CREATE FUNCTION turnstile.cancel(in_execution_ids bigint[], in_reasons text[])
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    cancelled_at timestamptz;
BEGIN
    PERFORM 1 FROM action_queue q
    WHERE q.id = ANY (ARRAY(SELECT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids)))
    ORDER BY q.id FOR NO KEY UPDATE;
    PERFORM 1 FROM execution e WHERE e.id = ANY (in_execution_ids) ORDER BY e.id FOR NO KEY UPDATE;
    cancelled_at := clock_timestamp();

    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT DISTINCT ON (c.id) c.id, c.reason FROM unnest(in_execution_ids, in_reasons) c(id, reason) ORDER BY c.id
    ),
    before AS MATERIALIZED (
        SELECT e.id, e.status, e.attempt, e.queue_id, e.action_id, e.worker_id, c.reason
        FROM asked c JOIN execution e ON e.id = ANY (ARRAY[c.id])
    ),
    marked AS (
        UPDATE execution e
        SET status = CASE WHEN b.status = 'running' THEN e.status ELSE 'cancelled' END,
            completed_at = CASE WHEN b.status = 'running' THEN NULL ELSE cancelled_at END,
            error_type = CASE WHEN b.status = 'running' THEN e.error_type ELSE 'Cancelled' END,
            error_message = CASE WHEN b.status = 'running' THEN e.error_message ELSE b.reason END,
            cancel_requested_at = coalesce(e.cancel_requested_at, cancelled_at),
            cancel_reason = coalesce(e.cancel_reason, b.reason)
        FROM before b
        WHERE e.id = ANY (ARRAY[b.id]) AND b.status = ANY (:sources_of_cancel)
        RETURNING e.id, e.status
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
        UPDATE action_queue q SET depth = q.depth - n.gone, updated_at = cancelled_at
        FROM (SELECT b.queue_id, count(*) AS gone FROM before b WHERE b.status = 'queued' GROUP BY b.queue_id) n
        WHERE q.id = ANY (ARRAY[n.queue_id])
    ),
    -- A granted slot stays held until its completion is settled, like every other end (P1).
    ended_slot AS (
        UPDATE slot s SET finished_at = cancelled_at, told_at = cancelled_at
        FROM before b
        WHERE b.status = 'scheduled' AND s.execution_id = ANY (ARRAY[b.id]) AND s.finished_at IS NULL
        RETURNING s.execution_id
    ),
    -- A retry that waits may still have its last slot unsettled: that slot's completion tells the end.
    untold AS (
        INSERT INTO untold_end (execution_id, queue_id, told_at)
        SELECT b.id, b.queue_id, cancelled_at FROM before b
        WHERE b.status IN ('queued', 'delayed')
          AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = b.id) IS NULL
    )
    SELECT c.id, b.attempt, b.action_id, a.ref, b.status::text, coalesce(m.status, b.status)::text,
           b.worker_id, cancelled_at
    FROM asked c
    LEFT JOIN before b ON b.id = c.id
    LEFT JOIN marked m ON m.id = c.id
    LEFT JOIN action a ON a.id = ANY (ARRAY[b.action_id]);
END
$$;
