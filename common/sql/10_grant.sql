-- grant_locked: grants the free slots of these queues to the heads of the queues.
--
-- The caller has locked the rows of `action_queue` in an EARLIER statement. Under READ COMMITTED the statements below
-- take newer snapshots than that lock, so they see every grant that committed before it. One statement that locks and
-- counts would count with a snapshot older than the lock, and exceed the limit.
--
-- Keeps P1 (slots are counted from rows), P2 (heads in order of execution id), P9 (only the given queues). Grants at
-- most 1,000 per queue and call; `more_queue_ids` are queues that could take more. `blocked_queue_ids` are those of
-- `in_suspect_ids` (null: all) where another session holds an execution that would start. Nothing of such a queue is
-- granted, because a later execution must not start first.
CREATE FUNCTION turnstile.grant_locked(
    in_queue_ids bigint[],
    in_suspect_ids bigint[] DEFAULT '{}',
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT blocked_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    -- Read after the lock was taken, so it increases from grant to grant of one queue.
    decided_at timestamptz := clock_timestamp();
BEGIN
    -- The common case: nothing waits. Also, what follows is planned only once an execution exists: for an empty
    -- table, an index with the id in second place looks as good as the primary key.
    IF NOT EXISTS (SELECT FROM action_queue q WHERE q.id = ANY (in_queue_ids) AND NOT q.paused AND q.depth > 0) THEN
        RETURN;
    END IF;
    IF in_suspect_ids IS NULL OR in_suspect_ids && in_queue_ids THEN
        blocked_queue_ids := turnstile.queues_with_locked_heads(in_queue_ids, in_suspect_ids);
        in_queue_ids := ARRAY(SELECT q.id FROM unnest(in_queue_ids) q(id) WHERE q.id <> ALL (blocked_queue_ids));
    END IF;

    WITH
    -- Stage 1: how many executions each queue may start. Without a limit nothing is counted.
    capacity AS MATERIALIZED (
        SELECT q.id AS queue_id, q.head_id, q.max_concurrent, held.slots AS held,
               least(q.depth, 1000, coalesce(q.max_concurrent - held.slots, 1000)) AS take
        FROM action_queue q
        CROSS JOIN LATERAL (
            SELECT count(*) AS slots FROM slot s WHERE s.queue_id = q.id AND q.max_concurrent IS NOT NULL
        ) held
        WHERE q.id = ANY (in_queue_ids) AND NOT q.paused AND q.depth > 0
    ),
    -- Stage 2: the lowest free slot numbers. Among 1 .. held + take at least `take` are free, and held + take never
    -- exceeds the limit.
    free_slot AS MATERIALIZED (
        SELECT c.queue_id, c.head_id, c.take,
               CASE WHEN c.max_concurrent IS NOT NULL THEN ARRAY(
                   SELECT n::integer FROM generate_series(1, c.held + c.take) n
                   WHERE NOT EXISTS (SELECT FROM slot s WHERE s.queue_id = c.queue_id AND s.slot_number = n)
                   ORDER BY n LIMIT c.take
               ) END AS numbers
        FROM capacity c WHERE c.take > 0
    ),
    -- Stage 3: the heads of the queues. `head_id` lets the scan start behind the dead index entries of earlier
    -- grants.
    head AS MATERIALIZED (
        SELECT r.queue_id, w.execution_id, r.numbers[w.rank] AS slot_number
        FROM free_slot r
        CROSS JOIN LATERAL (
            SELECT first.execution_id, row_number() OVER (ORDER BY first.execution_id) AS rank
            FROM (
                SELECT queued.execution_id FROM waiting queued
                WHERE queued.queue_id = r.queue_id AND queued.execution_id >= r.head_id
                ORDER BY queued.execution_id LIMIT r.take
            ) first
        ) w
    ),
    -- Stage 4: the transition, guarded by the source states. Later stages follow the rows that it changed.
    moved AS (
        UPDATE execution e
        SET status = 'scheduled', attempt = e.attempt + 1, scheduled_at = decided_at, worker_id = NULL
        FROM head h
        WHERE e.id = ANY (ARRAY[h.execution_id]) AND e.status = ANY (:sources_of_grant)
        RETURNING e.id AS execution_id, e.attempt, e.action_id, e.traceparent, h.queue_id, h.slot_number,
                  extract(epoch FROM decided_at - e.queued_at)::double precision AS waited_seconds
    ),
    dequeued AS (
        -- The second column as bounds: with an array the planner may leave it out of the index condition.
        DELETE FROM waiting w USING moved m
        WHERE w.queue_id = ANY (ARRAY[m.queue_id]) AND w.execution_id BETWEEN m.execution_id AND m.execution_id
    ),
    new_slot AS (
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
        (SELECT array_agg(r.queue_id) FROM free_slot r WHERE r.take = 1000)
    INTO granted, more_queue_ids;
END
$$;

-- queues_with_locked_heads: those of these queues where another session holds an execution that `grant_locked` would
-- start. The caller has locked the queues.
CREATE FUNCTION turnstile.queues_with_locked_heads(in_queue_ids bigint[], in_suspect_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_order
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
        SELECT queued.execution_id FROM waiting queued
        WHERE queued.queue_id = q.id AND queued.execution_id >= q.head_id
        ORDER BY queued.execution_id
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

-- grant_slots: locks the queues, then grants. For limit changes and the watchdog. Other sessions hold
-- `blocked_queue_ids`; `free_queue_ids` are suspects that none holds (see `lock_queues`).
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
:settings_for_index_lookups
AS $$
DECLARE
    blocked_head_ids bigint[];
BEGIN
    blocked_queue_ids := turnstile.lock_queues(in_queue_ids, in_wait_ms, in_suspect_ids);
    SELECT g.granted, g.more_queue_ids, g.blocked_queue_ids INTO granted, more_queue_ids, blocked_head_ids
    FROM turnstile.grant_locked(
        ARRAY(SELECT q.id FROM unnest(in_queue_ids) q(id) WHERE q.id <> ALL (blocked_queue_ids)), in_suspect_ids) g;
    blocked_queue_ids := blocked_queue_ids || coalesce(blocked_head_ids, '{}');
    free_queue_ids := turnstile.free_suspects(in_suspect_ids, in_queue_ids, blocked_queue_ids);
END
$$;
