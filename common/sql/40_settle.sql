-- blocked_slots: which of these executions cannot be settled now: their queue is in `in_blocked_queue_ids`, or another
-- session holds their slot; then their queue comes back too. The caller holds the other queues locked.
CREATE FUNCTION turnstile.blocked_slots(
    in_execution_ids bigint[], in_blocked_queue_ids bigint[], OUT blocked_ids bigint[], OUT queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    free_ids bigint[];
BEGIN
    free_ids := ARRAY(
        SELECT s.execution_id FROM slot s
        WHERE s.execution_id = ANY (in_execution_ids) AND s.queue_id <> ALL (in_blocked_queue_ids)
        ORDER BY s.execution_id FOR UPDATE SKIP LOCKED);
    SELECT coalesce(array_agg(e.id), '{}'),
           coalesce(array_agg(DISTINCT e.queue_id) FILTER (WHERE e.queue_id <> ALL (in_blocked_queue_ids)), '{}')
    INTO blocked_ids, queue_ids
    FROM unnest(in_execution_ids) c(id)
    JOIN execution e ON e.id = ANY (ARRAY[c.id])
    WHERE e.queue_id = ANY (in_blocked_queue_ids)
       OR (e.id <> ALL (free_ids) AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = e.id) IS NOT NULL);
END
$$;

-- settle: free the slots of finished attempts, once each, and grant them on.
--
-- Keeps P4: however often, late or early a completion comes, it deletes the slot row of that very
-- attempt, or nothing. A completion whose finish is not committed yet comes back in `early_ids`,
-- one for an execution that the record does not know in `unknown_ids`: neither may be acknowledged away. Nor may one
-- in `blocked_ids`: another session holds its queue or its slot for longer than `in_wait_ms` (see `lock_queues`).
--
-- `in_ends` has the end that each message told, null where it told none (an attempt that waits for its retry, or
-- was handed back). Without it, from a service of the previous version, nobody can say what was told: then an end
-- counts as told only where no attempt came before it, so that no other message can bear its name.
CREATE FUNCTION turnstile.settle(
    in_execution_ids bigint[],
    in_attempts integer[],
    in_wait_ms integer DEFAULT NULL,
    in_suspect_ids bigint[] DEFAULT '{}',
    in_ends text[] DEFAULT NULL,
    OUT settled_count integer,
    OUT early_ids bigint[],
    OUT unknown_ids bigint[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT settled_ids bigint[],
    OUT callback_count integer,
    OUT blocked_ids bigint[],
    OUT blocked_queue_ids bigint[],
    OUT free_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    queue_ids bigint[];
    called_ids bigint[];
    stuck_ids bigint[];
    settled_at timestamptz;
BEGIN
    queue_ids := ARRAY(SELECT DISTINCT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids));
    blocked_queue_ids := turnstile.lock_queues(queue_ids, in_wait_ms, in_suspect_ids);
    IF in_suspect_ids IS NULL OR in_suspect_ids && queue_ids THEN
        queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (blocked_queue_ids));
        SELECT s.blocked_ids, blocked_queue_ids || s.queue_ids INTO blocked_ids, blocked_queue_ids
        FROM turnstile.blocked_slots(in_execution_ids, blocked_queue_ids) s;
        SELECT coalesce(array_agg(c.id), '{}'), coalesce(array_agg(c.attempt), '{}'),
               CASE WHEN in_ends IS NOT NULL THEN coalesce(array_agg(c.told_end), '{}') END
        INTO in_execution_ids, in_attempts, in_ends
        FROM unnest(in_execution_ids, in_attempts, in_ends) c(id, attempt, told_end) WHERE c.id <> ALL (blocked_ids);
        free_queue_ids := turnstile.free_suspects(in_suspect_ids, queue_ids, '{}');
    END IF;
    settled_at := clock_timestamp();

    WITH freed AS (
        DELETE FROM slot s USING unnest(in_execution_ids, in_attempts) c(id, attempt)
        WHERE s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt AND s.finished_at IS NOT NULL
        RETURNING s.execution_id, s.queue_id
    ),
    told AS (
        -- Only by word of that very end: slot messages of its last attempt may come late, and again and again.
        DELETE FROM untold_end u USING unnest(in_execution_ids, in_attempts, in_ends) c(id, attempt, told_end)
        WHERE u.execution_id = ANY (ARRAY[c.id])
          AND (SELECT c.told_end = e.status::text OR in_ends IS NULL AND c.attempt = 0
               FROM execution e WHERE e.id = u.execution_id AND e.attempt = c.attempt)
        RETURNING u.execution_id, u.queue_id
    ),
    ended AS (
        SELECT f.queue_id, f.execution_id, e.callback_url FROM freed f
        -- An attempt that waits for its retry frees its slot but is no end.
        JOIN execution e ON e.id = ANY (ARRAY[f.execution_id]) AND e.completed_at IS NOT NULL
        -- Nor is one that ended while it waited: that end is settled when it was told.
        WHERE (SELECT u.execution_id FROM untold_end u WHERE u.execution_id = f.execution_id) IS NULL
        UNION ALL
        SELECT t.queue_id, t.execution_id, e.callback_url FROM told t
        JOIN execution e ON e.id = ANY (ARRAY[t.execution_id])
    ),
    counted AS (
        UPDATE action_queue q
        SET total_completed = q.total_completed + n.ends, updated_at = settled_at
        FROM (SELECT d.queue_id, count(*) AS ends FROM ended d GROUP BY d.queue_id) n
        WHERE q.id = ANY (ARRAY[n.queue_id])
    )
    SELECT array_agg(s.execution_id),
           (SELECT array_agg(d.execution_id) FROM ended d WHERE d.callback_url IS NOT NULL)
    INTO settled_ids, called_ids
    FROM (SELECT f.execution_id FROM freed f UNION SELECT t.execution_id FROM told t) s;
    settled_count := coalesce(cardinality(settled_ids), 0);

    -- Mostly nobody is called back: a statement of its own costs only those who are.
    callback_count := coalesce(cardinality(called_ids), 0);
    IF callback_count > 0 THEN
        PERFORM turnstile.call_back(called_ids, settled_at);
    END IF;

    -- Each settled something: none was early or unknown.
    IF settled_count < cardinality(in_execution_ids) THEN
        SELECT array_agg(c.id) FILTER (WHERE e.id IS NOT NULL), array_agg(c.id) FILTER (WHERE e.id IS NULL)
        INTO early_ids, unknown_ids
        FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
        LEFT JOIN execution e ON e.id = ANY (ARRAY[c.id])
        LEFT JOIN slot s ON s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt
        -- What has ended has no later attempt to wait for.
        WHERE e.id IS NULL OR (c.attempt > e.attempt AND e.completed_at IS NULL) OR s.execution_id IS NOT NULL;
    END IF;

    SELECT g.granted, g.more_queue_ids, g.stuck_queue_ids INTO granted, more_queue_ids, stuck_ids
    FROM turnstile.grant_locked(queue_ids, in_suspect_ids) g;
    blocked_queue_ids := blocked_queue_ids || coalesce(stuck_ids, '{}');
    free_queue_ids := ARRAY(SELECT f.id FROM unnest(free_queue_ids) f(id) WHERE f.id <> ALL (blocked_queue_ids));
END
$$;
