-- The watchdog's sweeps. Each reads only live tables, takes at most `in_limit` rows, and skips what
-- another replica is working on.

-- due_offers: granted, not claimed, and last offered longer ago than `in_timeout_seconds`. A repeated offer
-- is harmless: the claim is fenced. Where nobody serves the pool nothing is repeated, and the wait grows
-- with the age of the grant (to ten timeouts): busy workers must not drown in copies.
CREATE FUNCTION turnstile.due_offers(in_timeout_seconds double precision, in_limit integer)
RETURNS SETOF turnstile.granted
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    WITH due AS (
        SELECT s.execution_id FROM slot s
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND s.offered_at < clock_timestamp() - greatest(
              make_interval(secs => in_timeout_seconds),
              least(s.offered_at - s.granted_at, make_interval(secs => in_timeout_seconds * 10)))
          AND EXISTS (
              SELECT FROM action_queue q
              JOIN action a ON a.id = q.action_id
              JOIN worker w ON a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.lease_expires_at > clock_timestamp()
              WHERE q.id = s.queue_id)
        ORDER BY s.execution_id LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    offered AS (
        UPDATE slot s SET offered_at = clock_timestamp() FROM due d WHERE s.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING s.execution_id, s.attempt
    )
    SELECT o.execution_id, o.attempt, a.ref, a.pool, e.traceparent
    FROM offered o
    JOIN execution e ON e.id = ANY (ARRAY[o.execution_id])
    JOIN action a ON a.id = ANY (ARRAY[e.action_id]);
$$;

-- due_completions: ended, not settled, and last told longer ago than `in_timeout_seconds`. Telling it again is
-- harmless: settling deletes a row or nothing.
CREATE FUNCTION turnstile.due_completions(in_timeout_seconds double precision, in_limit integer)
RETURNS SETOF bigint
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    WITH due_slot AS (
        SELECT s.execution_id FROM slot s
        WHERE s.finished_at IS NOT NULL AND s.told_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
        ORDER BY s.execution_id LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    slot_told AS (
        UPDATE slot s SET told_at = clock_timestamp() FROM due_slot d WHERE s.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING s.execution_id
    ),
    due_end AS (
        SELECT u.execution_id FROM untold_end u
        WHERE u.told_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
        ORDER BY u.execution_id LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    end_told AS (
        UPDATE untold_end u SET told_at = clock_timestamp() FROM due_end d WHERE u.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING u.execution_id
    )
    SELECT execution_id FROM slot_told UNION ALL SELECT execution_id FROM end_told;
$$;

-- idle_queues: queues where a free slot stands beside a waiting execution (P7).
CREATE FUNCTION turnstile.idle_queues(in_limit integer)
RETURNS SETOF bigint
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    SELECT q.id FROM action_queue q
    WHERE q.depth > 0 AND NOT q.paused
      AND (q.max_concurrent IS NULL OR q.max_concurrent > (SELECT count(*) FROM slot s WHERE s.queue_id = q.id))
    ORDER BY q.id LIMIT in_limit;
$$;

-- wake_due: let delayed executions that are due take their place in line, by their ticket, and grant.
CREATE FUNCTION turnstile.wake_due(
    in_limit integer, OUT woken turnstile.moved[], OUT granted turnstile.granted[], OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    due_ids bigint[];
    queue_ids bigint[];
    woken_at timestamptz := clock_timestamp();
BEGIN
    SELECT array_agg(d.execution_id), array_agg(DISTINCT d.queue_id) INTO due_ids, queue_ids
    FROM (SELECT * FROM delayed d WHERE d.due_at <= woken_at ORDER BY d.due_at LIMIT in_limit) d;
    IF due_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM 1 FROM action_queue q WHERE q.id = ANY (queue_ids) ORDER BY q.id FOR NO KEY UPDATE;

    WITH due AS (
        DELETE FROM delayed d WHERE d.execution_id = ANY (due_ids) AND d.due_at <= woken_at
          -- A retry keeps its place outside the line until the slot of its last attempt is settled.
          AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = d.execution_id) IS NULL
        RETURNING d.execution_id
    ),
    moved AS (
        UPDATE execution e SET status = 'queued', queued_at = woken_at, worker_id = NULL
        FROM due d WHERE e.id = ANY (ARRAY[d.execution_id]) AND e.status = ANY (:sources_of_wake)
        RETURNING e.id, e.attempt, e.action_id, e.queue_id
    ),
    in_line AS (
        INSERT INTO waiting (queue_id, execution_id) SELECT m.queue_id, m.id FROM moved m
    ),
    counted AS (
        UPDATE action_queue q
        SET depth = q.depth + n.woken, head_id = least(q.head_id, n.first_id), updated_at = woken_at
        FROM (SELECT m.queue_id, count(*) AS woken, min(m.id) AS first_id FROM moved m GROUP BY m.queue_id) n
        WHERE q.id = ANY (ARRAY[n.queue_id])
    )
    SELECT array_agg(ROW(m.id, m.attempt, m.action_id, a.ref, 'delayed', 'queued', NULL, woken_at)::turnstile.moved
                     ORDER BY m.id)
    INTO woken FROM moved m JOIN action a ON a.id = ANY (ARRAY[m.action_id]);
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids FROM turnstile.grant_locked(queue_ids) g;
END
$$;

-- expire_due: end what did not start before its deadline. A deadline that passed is removed, whatever
-- became of its execution.
CREATE FUNCTION turnstile.expire_due(in_limit integer)
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    due_ids bigint[];
    queue_ids bigint[];
    expired_at timestamptz := clock_timestamp();
BEGIN
    SELECT array_agg(x.execution_id), array_agg(DISTINCT x.queue_id) INTO due_ids, queue_ids
    FROM (SELECT * FROM expiring x WHERE x.expires_at <= expired_at ORDER BY x.expires_at LIMIT in_limit) x;
    IF due_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM 1 FROM action_queue q WHERE q.id = ANY (queue_ids) ORDER BY q.id FOR NO KEY UPDATE;
    PERFORM 1 FROM execution e WHERE e.id = ANY (due_ids) ORDER BY e.id FOR NO KEY UPDATE;

    RETURN QUERY
    WITH passed AS (
        DELETE FROM expiring x WHERE x.execution_id = ANY (due_ids)
    ),
    before AS MATERIALIZED (
        SELECT e.id, e.status, e.attempt, e.queue_id, e.action_id, e.created_at, e.expires_at
        FROM execution e WHERE e.id = ANY (due_ids) AND e.status = ANY (:sources_of_expire)
    ),
    moved AS (
        UPDATE execution e
        SET status = 'expired', completed_at = expired_at, error_type = 'Expired',
            error_message = format('did not start within its time to live of %s seconds',
                                   round(extract(epoch FROM b.expires_at - b.created_at), 3))
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
        UPDATE action_queue q SET depth = q.depth - n.gone, updated_at = expired_at
        FROM (SELECT b.queue_id, count(*) AS gone FROM before b WHERE b.status = 'queued' GROUP BY b.queue_id) n
        WHERE q.id = ANY (ARRAY[n.queue_id])
    ),
    ended_slot AS (
        UPDATE slot s SET finished_at = expired_at, told_at = expired_at
        FROM before b
        WHERE b.status = 'scheduled' AND s.execution_id = ANY (ARRAY[b.id]) AND s.finished_at IS NULL
    ),
    untold AS (
        INSERT INTO untold_end (execution_id, queue_id, told_at)
        SELECT b.id, b.queue_id, expired_at FROM before b
        WHERE b.status IN ('queued', 'delayed')
          AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = b.id) IS NULL
    )
    SELECT b.id, b.attempt, b.action_id, a.ref, b.status::text, 'expired', NULL::text, expired_at
    FROM before b JOIN action a ON a.id = ANY (ARRAY[b.action_id]);
END
$$;
