-- The watchdog's lines: free slots beside waiting executions, and what is due.

-- idle_queues: queues where a free slot stands beside a waiting execution (P7), among the next
-- `in_lines_max` lines after `in_after_id`. It steps from line to line by the index, past all that wait in
-- each, so it costs what there are lines with somebody in them. `next_id`: where to go on; 0: from the start.
CREATE FUNCTION turnstile.idle_queues(
    in_after_id bigint, in_lines_max integer, OUT queue_ids bigint[], OUT next_id bigint
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    WITH RECURSIVE line(queue_id, rank) AS (
        SELECT (SELECT w.queue_id FROM waiting w WHERE w.queue_id > in_after_id
                ORDER BY w.queue_id, w.execution_id LIMIT 1), 1
        UNION ALL
        SELECT (SELECT w.queue_id FROM waiting w WHERE w.queue_id > l.queue_id
                ORDER BY w.queue_id, w.execution_id LIMIT 1), l.rank + 1
        FROM line l WHERE l.queue_id IS NOT NULL AND l.rank < in_lines_max
    )
    SELECT array_agg(q.id ORDER BY q.id) FILTER (
               WHERE NOT q.paused AND (q.max_concurrent IS NULL OR q.max_concurrent > held.slots)),
           CASE WHEN count(l.queue_id) = in_lines_max THEN max(l.queue_id) ELSE 0 END
    INTO queue_ids, next_id
    FROM line l
    LEFT JOIN action_queue q ON q.id = ANY (ARRAY[l.queue_id])
    CROSS JOIN LATERAL (
        SELECT count(*) AS slots FROM slot s WHERE s.queue_id = q.id AND q.max_concurrent IS NOT NULL
    ) held;
END
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
    held_ids bigint[] := '{}';
    found_held_ids bigint[];
    woken_at timestamptz := clock_timestamp();
BEGIN
    -- Once more without the queues that other sessions hold: what is due in them must not fill the bound.
    FOR round IN 1..2 LOOP
        SELECT array_agg(d.execution_id), array_agg(DISTINCT d.queue_id) INTO due_ids, queue_ids
        FROM (
            SELECT d.execution_id, d.queue_id FROM delayed d
            -- A retry keeps its place outside the line until the slot of its last attempt is settled.
            WHERE d.due_at <= woken_at
              AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = d.execution_id) IS NULL
              AND d.queue_id <> ALL (held_ids)
            ORDER BY d.due_at LIMIT in_limit
        ) d;
        IF due_ids IS NULL THEN
            RETURN;
        END IF;
        found_held_ids := turnstile.lock_unheld_queues(queue_ids);
        held_ids := held_ids || found_held_ids;
        EXIT WHEN found_held_ids = '{}';
    END LOOP;
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (held_ids));
    held_ids := turnstile.held_executions(
        ARRAY(SELECT d.execution_id FROM delayed d
              WHERE d.execution_id = ANY (due_ids) AND d.queue_id = ANY (queue_ids)), NULL);

    WITH due AS (
        DELETE FROM delayed d
        WHERE d.execution_id = ANY (due_ids) AND d.due_at <= woken_at AND d.queue_id = ANY (queue_ids)
          AND d.execution_id <> ALL (held_ids)
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
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids FROM turnstile.grant_locked(queue_ids, NULL) g;
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
    held_ids bigint[] := '{}';
    found_held_ids bigint[];
    reasons text[];
BEGIN
    -- Once more without the queues that other sessions hold, as in wake_due.
    FOR round IN 1..2 LOOP
        SELECT array_agg(x.execution_id), array_agg(DISTINCT x.queue_id) INTO due_ids, queue_ids
        FROM (
            SELECT * FROM expiring x
            WHERE x.expires_at <= clock_timestamp() AND x.queue_id <> ALL (held_ids)
            ORDER BY x.expires_at LIMIT in_limit
        ) x;
        IF due_ids IS NULL THEN
            RETURN;
        END IF;
        found_held_ids := turnstile.lock_unheld_queues(queue_ids);
        held_ids := held_ids || found_held_ids;
        EXIT WHEN found_held_ids = '{}';
    END LOOP;
    due_ids := ARRAY(
        SELECT x.execution_id FROM expiring x WHERE x.execution_id = ANY (due_ids) AND x.queue_id <> ALL (held_ids));
    held_ids := turnstile.held_executions(due_ids, NULL);
    due_ids := ARRAY(SELECT c.id FROM unnest(due_ids) c(id) WHERE c.id <> ALL (held_ids));

    DELETE FROM expiring x WHERE x.execution_id = ANY (due_ids);
    SELECT array_agg(e.id),
           array_agg(format('did not start within its time to live, which ended at %s',
                            to_char(e.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
    INTO due_ids, reasons
    FROM execution e WHERE e.id = ANY (due_ids);
    RETURN QUERY SELECT * FROM turnstile.end_unstarted(due_ids, 'expired', 'Expired', reasons);
END
$$;
