-- grant_locked: give the free slots of the queues to the heads of their lines.
--
-- The caller holds the rows of `action_queue` locked since an EARLIER statement. Under READ COMMITTED
-- the statements below take newer snapshots than that lock, so they see every grant that committed
-- before it. Locking and counting in one statement would count with a snapshot older than the lock,
-- and overshoot.
--
-- Keeps P1 (slots are counted from rows), P2 (heads in ticket order), P9 (only the queues named).
-- At most 1,000 per queue and call; queues that could take more come back in `more_queue_ids`.
-- Of `in_suspect_ids` (null: all) those are left out, and come back in `stuck_queue_ids`, of which another session
-- holds an execution that would start: a later one must not start before it.
CREATE FUNCTION turnstile.grant_locked(
    in_queue_ids bigint[],
    in_suspect_ids bigint[] DEFAULT '{}',
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT stuck_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    -- Read after the lock was taken, so it grows from grant to grant of one queue.
    decided_at timestamptz := clock_timestamp();
BEGIN
    -- Mostly nobody waits. And what follows is planned only once there is an execution: while that table is
    -- empty, an index with the ticket in second place looks as good as the ticket's own.
    IF NOT EXISTS (SELECT FROM action_queue q WHERE q.id = ANY (in_queue_ids) AND NOT q.paused AND q.depth > 0) THEN
        RETURN;
    END IF;
    IF in_suspect_ids IS NULL OR in_suspect_ids && in_queue_ids THEN
        stuck_queue_ids := turnstile.stuck_queues(in_queue_ids, in_suspect_ids);
        in_queue_ids := ARRAY(SELECT q.id FROM unnest(in_queue_ids) q(id) WHERE q.id <> ALL (stuck_queue_ids));
    END IF;

    WITH
    -- Stage 1: how many each queue may start. No limit: no count.
    capacity AS MATERIALIZED (
        SELECT q.id AS queue_id, q.head_id, q.max_concurrent, held.slots AS held,
               least(q.depth, 1000, coalesce(q.max_concurrent - held.slots, 1000)) AS take
        FROM action_queue q
        CROSS JOIN LATERAL (
            SELECT count(*) AS slots FROM slot s WHERE s.queue_id = q.id AND q.max_concurrent IS NOT NULL
        ) held
        WHERE q.id = ANY (in_queue_ids) AND NOT q.paused AND q.depth > 0
    ),
    -- Stage 2: the smallest free slot numbers. Among 1 .. held + take at least `take` are free, and
    -- held + take never exceeds the limit.
    room AS MATERIALIZED (
        SELECT c.queue_id, c.head_id, c.take,
               CASE WHEN c.max_concurrent IS NOT NULL THEN ARRAY(
                   SELECT n::integer FROM generate_series(1, c.held + c.take) n
                   WHERE NOT EXISTS (SELECT FROM slot s WHERE s.queue_id = c.queue_id AND s.slot_number = n)
                   ORDER BY n LIMIT c.take
               ) END AS numbers
        FROM capacity c WHERE c.take > 0
    ),
    -- Stage 3: the heads of the lines. `head_id` lets the scan start behind the entries that earlier
    -- grants left dead in the index.
    head AS MATERIALIZED (
        SELECT r.queue_id, w.execution_id, r.numbers[w.rank] AS slot_number
        FROM room r
        CROSS JOIN LATERAL (
            SELECT first.execution_id, row_number() OVER (ORDER BY first.execution_id) AS rank
            FROM (
                SELECT line.execution_id FROM waiting line
                WHERE line.queue_id = r.queue_id AND line.execution_id >= r.head_id
                ORDER BY line.execution_id LIMIT r.take
            ) first
        ) w
    ),
    moved AS (
        UPDATE execution e
        SET status = 'scheduled', attempt = e.attempt + 1, scheduled_at = decided_at, worker_id = NULL
        FROM head h
        WHERE e.id = ANY (ARRAY[h.execution_id]) AND e.status = ANY (:sources_of_grant)
        RETURNING e.id AS execution_id, e.attempt, e.action_id, e.traceparent, h.queue_id, h.slot_number,
                  extract(epoch FROM decided_at - e.queued_at)::double precision AS waited_seconds
    ),
    left_line AS (
        -- The second column by its bounds: an array there may be left out of the index condition.
        DELETE FROM waiting w USING moved m
        WHERE w.queue_id = ANY (ARRAY[m.queue_id]) AND w.execution_id BETWEEN m.execution_id AND m.execution_id
    ),
    took_slot AS (
        INSERT INTO slot (execution_id, queue_id, slot_number, attempt, granted_at, offered_at)
        SELECT m.execution_id, m.queue_id, m.slot_number, m.attempt, decided_at, decided_at FROM moved m
    ),
    counted AS (
        UPDATE action_queue q
        SET depth = q.depth - p.started, head_id = p.last_id + 1, updated_at = decided_at
        FROM (
            SELECT m.queue_id, count(*) AS started, max(m.execution_id) AS last_id FROM moved m GROUP BY m.queue_id
        ) p
        WHERE q.id = ANY (ARRAY[p.queue_id])
    )
    SELECT
        (SELECT array_agg(ROW(m.execution_id, m.attempt, a.ref, a.pool, m.traceparent,
                              m.waited_seconds)::turnstile.granted
                          ORDER BY m.execution_id)
         FROM moved m JOIN action a ON a.id = ANY (ARRAY[m.action_id])),
        (SELECT array_agg(r.queue_id) FROM room r WHERE r.take = 1000)
    INTO granted, more_queue_ids;
END
$$;

-- stuck_queues: those of these queues of which another session holds an execution that `grant_locked` would start.
-- The caller holds the queues locked.
CREATE FUNCTION turnstile.stuck_queues(in_queue_ids bigint[], in_suspect_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    head_ids bigint[];
    queue_ids bigint[];
    free_ids bigint[];
BEGIN
    SELECT array_agg(w.execution_id), array_agg(q.id) INTO head_ids, queue_ids
    FROM action_queue q
    CROSS JOIN LATERAL (
        SELECT count(*) AS slots FROM slot s WHERE s.queue_id = q.id AND q.max_concurrent IS NOT NULL
    ) held
    CROSS JOIN LATERAL (
        SELECT line.execution_id FROM waiting line
        WHERE line.queue_id = q.id AND line.execution_id >= q.head_id
        ORDER BY line.execution_id
        LIMIT greatest(least(q.depth, 1000, coalesce(q.max_concurrent - held.slots, 1000)), 0)
    ) w
    WHERE q.id = ANY (in_queue_ids) AND (in_suspect_ids IS NULL OR q.id = ANY (in_suspect_ids))
      AND NOT q.paused AND q.depth > 0;
    free_ids := ARRAY(
        SELECT e.id FROM execution e WHERE e.id = ANY (head_ids) ORDER BY e.id FOR NO KEY UPDATE SKIP LOCKED);
    RETURN ARRAY(
        SELECT DISTINCT h.queue_id FROM unnest(head_ids, queue_ids) h(id, queue_id)
        WHERE h.id NOT IN (SELECT f.id FROM unnest(free_ids) f(id)));
END
$$;

-- grant_slots: lock the queues, then grant. For limit changes and the watchdog. `blocked_queue_ids` are held by other
-- sessions, `free_queue_ids` are suspects that are not (see `lock_queues`).
CREATE FUNCTION turnstile.grant_slots(
    in_queue_ids bigint[],
    in_wait_ms integer DEFAULT NULL,
    in_suspect_ids bigint[] DEFAULT '{}',
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT blocked_queue_ids bigint[],
    OUT free_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    stuck_ids bigint[];
BEGIN
    blocked_queue_ids := turnstile.lock_queues(in_queue_ids, in_wait_ms, in_suspect_ids);
    SELECT g.granted, g.more_queue_ids, g.stuck_queue_ids INTO granted, more_queue_ids, stuck_ids
    FROM turnstile.grant_locked(
        ARRAY(SELECT q.id FROM unnest(in_queue_ids) q(id) WHERE q.id <> ALL (blocked_queue_ids)), in_suspect_ids) g;
    blocked_queue_ids := blocked_queue_ids || coalesce(stuck_ids, '{}');
    free_queue_ids := turnstile.free_suspects(in_suspect_ids, in_queue_ids, blocked_queue_ids);
END
$$;
