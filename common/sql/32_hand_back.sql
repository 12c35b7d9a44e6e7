-- return_to_line: put attempts back at the head of their lines (P2: the ticket is kept).
--
-- The caller holds the queue rows locked, and has checked that these attempts may be taken back.
-- The slot is given up in the same statement, so the next grant may name a new attempt (P6). What was asked
-- to stop does not start again: it ends here as 'cancelled', and its slot waits to be settled like any other.
CREATE FUNCTION turnstile.return_to_line(in_execution_ids bigint[], in_outcome text, in_counts boolean)
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    returned_at timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT s.* FROM slot s WHERE s.execution_id = ANY (in_execution_ids) AND s.finished_at IS NULL
    ),
    moved AS (
        UPDATE execution e
        SET status = 'queued', queued_at = returned_at, worker_id = NULL,
            reclaims = e.reclaims + in_counts::integer
        FROM held h
        WHERE e.id = ANY (ARRAY[h.execution_id]) AND e.attempt = h.attempt AND e.status = ANY (:sources_of_reclaim)
          AND e.cancel_requested_at IS NULL
        RETURNING e.id, e.attempt, e.action_id, e.queue_id, e.expires_at
    ),
    ended AS (
        UPDATE execution e
        SET status = 'cancelled', completed_at = returned_at, error_type = 'Cancelled', error_message = e.cancel_reason
        FROM held h
        WHERE e.id = ANY (ARRAY[h.execution_id]) AND e.attempt = h.attempt AND e.status = ANY (:sources_of_cancel)
          AND e.cancel_requested_at IS NOT NULL
        RETURNING e.id, e.attempt, e.action_id
    ),
    -- Nobody has told this end yet: the watchdog's next look at `told_at` does.
    ended_slot AS (
        UPDATE slot s SET finished_at = returned_at, told_at = '-infinity'
        FROM ended d WHERE s.execution_id = ANY (ARRAY[d.id])
    ),
    freed AS (
        DELETE FROM slot s USING moved m WHERE s.execution_id = ANY (ARRAY[m.id])
    ),
    in_line AS (
        INSERT INTO waiting (queue_id, execution_id) SELECT m.queue_id, m.id FROM moved m
    ),
    with_deadline AS (
        INSERT INTO expiring (execution_id, queue_id, expires_at)
        SELECT m.id, m.queue_id, m.expires_at FROM moved m WHERE m.expires_at IS NOT NULL
        ON CONFLICT DO NOTHING
    ),
    counted AS (
        UPDATE action_queue q
        SET depth = q.depth + n.returned, head_id = least(q.head_id, n.first_id), updated_at = returned_at
        FROM (SELECT m.queue_id, count(*) AS returned, min(m.id) AS first_id FROM moved m GROUP BY m.queue_id) n
        WHERE q.id = ANY (ARRAY[n.queue_id])
    ),
    taken AS (
        SELECT m.id, m.attempt, m.action_id, 'queued' AS status, in_outcome AS outcome FROM moved m
        UNION ALL
        SELECT d.id, d.attempt, d.action_id, 'cancelled', 'cancelled' FROM ended d
    ),
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, granted_at, started_at, ended_at)
        SELECT t.id, t.attempt, h.worker_id, t.outcome, h.granted_at, h.claimed_at, returned_at
        FROM taken t JOIN held h ON h.execution_id = t.id WHERE h.worker_id IS NOT NULL
    )
    SELECT t.id, t.attempt, t.action_id, a.ref,
           CASE WHEN h.worker_id IS NULL THEN 'scheduled' ELSE 'running' END, t.status, h.worker_id, returned_at
    FROM taken t JOIN held h ON h.execution_id = t.id JOIN action a ON a.id = ANY (ARRAY[t.action_id]);
END
$$;

-- hand_back: a draining worker gives back what it could not finish. Returns what stands in line again. What another
-- session holds fails soon, and the worker repeats it.
CREATE FUNCTION turnstile.hand_back(in_worker_id text, in_execution_ids bigint[], in_attempts integer[])
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
SET lock_timeout = '500ms'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    mine bigint[];
BEGIN
    PERFORM 1 FROM action_queue q
    WHERE q.id = ANY (ARRAY(SELECT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids)))
    ORDER BY q.id FOR NO KEY UPDATE;
    -- Locked before it is judged: a reclaim or a finish of the same attempt comes first or finds it gone.
    PERFORM 1 FROM execution e WHERE e.id = ANY (in_execution_ids) ORDER BY e.id FOR NO KEY UPDATE;
    SELECT array_agg(e.id) INTO mine
    FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
    JOIN execution e ON e.id = ANY (ARRAY[c.id])
    WHERE e.attempt = c.attempt AND e.worker_id = in_worker_id AND e.status = 'running';
    RETURN QUERY SELECT * FROM turnstile.return_to_line(mine, 'handed_back', false) r WHERE r.status = 'queued';
END
$$;
