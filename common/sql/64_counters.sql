-- Counters: `depth` and `head_id` change only together with the rows that they count, and are recounted nevertheless.
-- A limit or pause that differs from the action's counts as drift too.

-- drifted_queues: queues with wrong counters, among the next `in_limit` after `in_after_id`. One statement is one
-- snapshot, so it needs no lock and has no false positives under load. `next_id`: where to continue; 0: from the
-- start.
CREATE FUNCTION turnstile.drifted_queues(
    in_after_id bigint, in_limit integer, OUT queue_ids bigint[], OUT next_id bigint
)
LANGUAGE sql
:settings_for_index_lookups
AS $$
    WITH scanned AS MATERIALIZED (
        SELECT q.* FROM action_queue q WHERE q.id > in_after_id ORDER BY q.id LIMIT in_limit
    )
    SELECT array_agg(q.id ORDER BY q.id) FILTER (
               WHERE q.depth <> recount.depth OR q.head_id > recount.head_id
                  -- A change that has not reached this queue yet is being rolled out: that is no drift.
                  OR ((q.max_concurrent IS DISTINCT FROM a.max_concurrent OR q.paused <> a.paused)
                      AND a.rollout_from_key IS NULL AND (q.id = ANY (a.rollout_held_ids)) IS NOT TRUE)),
           CASE WHEN count(*) = in_limit THEN max(q.id) ELSE 0 END
    FROM scanned q
    JOIN action a ON a.id = ANY (ARRAY[q.action_id])
    CROSS JOIN LATERAL (
        SELECT count(*) AS depth, min(w.execution_id) AS head_id FROM waiting w WHERE w.queue_id = q.id
    ) recount;
$$;

-- repair_queues: recounts these queues under their locks, and grants what that frees. Returns the old and the new
-- depth of each queue that was still wrong.
CREATE FUNCTION turnstile.repair_queues(
    in_queue_ids bigint[],
    OUT repaired turnstile.repaired[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    action_ids bigint[];
    unavailable_ids bigint[];
BEGIN
    -- The rows of the actions first, as for every change of a limit. Rows that other sessions hold are left for
    -- later.
    action_ids := ARRAY(
        SELECT a.id FROM action a
        WHERE a.id = ANY (ARRAY(SELECT q.action_id FROM action_queue q WHERE q.id = ANY (in_queue_ids)))
        ORDER BY a.id FOR SHARE SKIP LOCKED);
    in_queue_ids := ARRAY(
        SELECT q.id FROM action_queue q WHERE q.id = ANY (in_queue_ids) AND q.action_id = ANY (action_ids));
    unavailable_ids := turnstile.lock_available_queues(in_queue_ids);
    in_queue_ids := ARRAY(SELECT q.id FROM unnest(in_queue_ids) q(id) WHERE q.id <> ALL (unavailable_ids));
    WITH counted AS MATERIALIZED (
        SELECT q.id, q.depth AS depth_before, recount.depth,
               least(q.head_id, coalesce(recount.head_id, q.head_id)) AS head_id,
               a.max_concurrent, a.paused
        FROM action_queue q
        JOIN action a ON a.id = ANY (ARRAY[q.action_id])
        CROSS JOIN LATERAL (
            SELECT count(*) AS depth, min(w.execution_id) AS head_id FROM waiting w WHERE w.queue_id = q.id
        ) recount
        WHERE q.id = ANY (in_queue_ids)
          AND (q.depth <> recount.depth OR q.head_id > recount.head_id
               OR q.max_concurrent IS DISTINCT FROM a.max_concurrent OR q.paused <> a.paused)
    ),
    corrected AS (
        UPDATE action_queue q
        SET depth = c.depth, head_id = c.head_id, max_concurrent = c.max_concurrent, paused = c.paused,
            updated_at = clock_timestamp()
        FROM counted c WHERE q.id = ANY (ARRAY[c.id])
    )
    SELECT array_agg(ROW(c.id, c.depth_before, c.depth)::turnstile.repaired ORDER BY c.id) INTO repaired FROM counted c;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids FROM turnstile.grant_locked(in_queue_ids, NULL) g;
END
$$;
