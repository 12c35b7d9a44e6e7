-- return_to_line: put attempts back at the head of their lines (P2: the ticket is kept).
--
-- The caller holds the queue rows locked, and has checked that these attempts may be taken back.
-- The slot is given up in the same statement, so the next grant may name a new attempt (P6).
CREATE FUNCTION turnstile.return_to_line(in_execution_ids bigint[], in_outcome text, in_counts boolean)
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
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
        WHERE e.id = h.execution_id AND e.attempt = h.attempt AND e.status = ANY (:sources_of_reclaim)
        RETURNING e.id, e.attempt, e.action_id, e.queue_id, e.expires_at
    ),
    freed AS (
        DELETE FROM slot s USING moved m WHERE s.execution_id = m.id
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
        WHERE q.id = n.queue_id
    ),
    history AS (
        INSERT INTO attempt (execution_id, attempt, worker_id, outcome, granted_at, started_at, ended_at)
        SELECT m.id, m.attempt, h.worker_id, in_outcome, h.granted_at, h.claimed_at, returned_at
        FROM moved m JOIN held h ON h.execution_id = m.id WHERE h.worker_id IS NOT NULL
    )
    SELECT m.id, m.attempt, m.action_id, a.ref,
           CASE WHEN h.worker_id IS NULL THEN 'scheduled' ELSE 'running' END, 'queued', h.worker_id, returned_at
    FROM moved m JOIN held h ON h.execution_id = m.id JOIN action a ON a.id = m.action_id;
END
$$;

-- hand_back: a draining worker gives back what it could not finish.
CREATE FUNCTION turnstile.hand_back(in_worker_id text, in_execution_ids bigint[], in_attempts integer[])
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
DECLARE
    mine bigint[];
BEGIN
    PERFORM 1 FROM action_queue q
    WHERE q.id IN (SELECT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids))
    ORDER BY q.id FOR NO KEY UPDATE;
    -- Locked before it is judged: a reclaim or a finish of the same attempt comes first or finds it gone.
    PERFORM 1 FROM execution e WHERE e.id = ANY (in_execution_ids) ORDER BY e.id FOR NO KEY UPDATE;
    SELECT array_agg(e.id) INTO mine
    FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
    JOIN execution e ON e.id = c.id
    WHERE e.attempt = c.attempt AND e.worker_id = in_worker_id AND e.status = 'running';
    RETURN QUERY SELECT * FROM turnstile.return_to_line(mine, 'handed_back', false);
END
$$;
