-- Sweeps of the watchdog: free slots beside waiting executions, due executions, passed deadlines.

-- grantable_queues: queues with a free slot and a waiting execution (P7), among the next `in_queues_max`
-- queues after `in_after_id`. Reads their states only. `next_id`: where to continue; 0: from the start.
CREATE FUNCTION turnstile.grantable_queues(
    in_after_id bigint, in_queues_max integer, OUT queue_ids bigint[], OUT next_id bigint
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    SELECT array_agg(q.id ORDER BY q.id) FILTER (
               WHERE q.depth > 0 AND NOT q.paused AND (q.max_concurrent IS NULL OR q.max_concurrent > q.held)
                   AND (a.route IS NULL OR NOT turnstile.is_closed(a.route, a.route_units))
                   -- A queue that waits for a worker slot of its pool is left to its turn.
                   AND a.served AND (p.id IS NULL OR turnstile.room_of(p.capacity, p.held, p.lead) > 0
                                     OR NOT EXISTS (
                                         SELECT FROM ready_queue r
                                         WHERE r.action_id = q.action_id AND r.place = q.ready_place))),
           CASE WHEN count(*) = in_queues_max THEN max(q.id) ELSE 0 END
    INTO queue_ids, next_id
    FROM (SELECT n.id FROM action_queue n WHERE n.id > in_after_id ORDER BY n.id LIMIT in_queues_max) n
    JOIN turnstile.current_queue q ON q.id = n.id
    JOIN action a ON a.id = ANY (ARRAY[q.action_id])
    LEFT JOIN turnstile.current_pool p ON p.id = a.pool_id;
END
$$;

-- wake_due: enqueues delayed executions that are due, by their ids, and grants.
CREATE FUNCTION turnstile.wake_due(
    in_limit integer, OUT woken turnstile.moved[], OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    due_ids bigint[];
    queue_ids bigint[];
    unavailable_ids bigint[] := '{}';
    newly_unavailable_ids bigint[];
    changes turnstile.queue_change[];
    woken_at timestamptz := clock_timestamp();
    bound record;
BEGIN
    SELECT b.first_at, greatest(b.next_at, woken_at) AS last_at INTO bound FROM turnstile.due_bound b;
    -- A second round without the queues that other sessions hold: their due executions must not fill the
    -- limit.
    FOR round IN 1..2 LOOP
        SELECT array_agg(d.execution_id), array_agg(DISTINCT d.queue_id) INTO due_ids, queue_ids
        FROM (
            SELECT d.execution_id, d.queue_id FROM delayed d
            -- A retry stays delayed until the slot of its last attempt is settled.
            WHERE d.due_at BETWEEN bound.first_at AND bound.last_at
              AND (d.due_at <= woken_at
                   OR (SELECT e.run_at FROM execution e WHERE e.id = d.execution_id) <= woken_at)
              AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = d.execution_id) IS NULL
              AND d.queue_id <> ALL (unavailable_ids)
            ORDER BY d.due_at LIMIT in_limit
        ) d;
        IF due_ids IS NULL THEN
            RETURN;
        END IF;
        newly_unavailable_ids := turnstile.lock_available_queues(queue_ids);
        unavailable_ids := unavailable_ids || newly_unavailable_ids;
        EXIT WHEN newly_unavailable_ids = '{}';
    END LOOP;
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (unavailable_ids));
    unavailable_ids := turnstile.lock_available_executions(
        ARRAY(SELECT d.execution_id FROM delayed d
              WHERE d.execution_id = ANY (due_ids) AND d.queue_id = ANY (queue_ids)), NULL);

    WITH due AS (
        DELETE FROM delayed d
        WHERE d.execution_id = ANY (due_ids) AND d.queue_id = ANY (queue_ids)
          -- Checked again under the locks: it may have run, and wait for another retry.
          AND (d.due_at <= woken_at
               OR (SELECT e.run_at FROM execution e WHERE e.id = d.execution_id) <= woken_at)
          AND d.execution_id <> ALL (unavailable_ids)
        RETURNING d.execution_id
    ),
    moved AS (
        UPDATE execution e
        -- Under the locks: from this instant on nothing passes it.
        SET status = 'queued', queued_at = clock_timestamp(), worker_id = NULL, scheduled_at = NULL,
            started_at = NULL
        FROM due d WHERE e.id = ANY (ARRAY[d.execution_id]) AND e.status = ANY (:sources_of_wake)
        RETURNING e.id, e.attempt, e.action_id, e.queue_id, turnstile.place_of(e.priority, e.id) AS place
    ),
    enqueued AS (
        INSERT INTO waiting (line_id, place) SELECT m.queue_id, m.place FROM moved m
    )
    SELECT (SELECT array_agg(ROW(m.id, m.attempt, m.action_id, a.ref, 'delayed', 'queued', NULL,
                                 woken_at)::turnstile.moved ORDER BY m.id)
            FROM moved m JOIN action a ON a.id = ANY (ARRAY[m.action_id])),
           (SELECT array_agg(ROW(n.queue_id, n.woken, 0, n.first_id, 0, 0,
                                 n.first_places)::turnstile.queue_change)
            FROM (
                SELECT m.queue_id, count(*) AS woken, min(m.id) FILTER (WHERE m.place = m.id) AS first_id,
                       turnstile.first_places(array_agg(m.place)) AS first_places
                FROM moved m GROUP BY m.queue_id
            ) n)
    INTO woken, changes;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
    FROM turnstile.grant_locked(queue_ids, coalesce(changes, '{}')) g;
END
$$;

-- expire_due: makes executions 'expired' that did not start before their deadline. A deadline that passed is
-- deleted, whatever the state of its execution.
CREATE FUNCTION turnstile.expire_due(in_limit integer)
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    due_ids bigint[];
    queue_ids bigint[];
    unavailable_ids bigint[] := '{}';
    newly_unavailable_ids bigint[];
    reasons text[];
    expired_at timestamptz := clock_timestamp();
    bound record;
BEGIN
    SELECT b.first_at, greatest(b.next_at, expired_at) AS last_at INTO bound FROM turnstile.due_bound b;
    -- A second round without the queues that other sessions hold, as in wake_due.
    FOR round IN 1..2 LOOP
        SELECT array_agg(x.execution_id), array_agg(DISTINCT x.queue_id) INTO due_ids, queue_ids
        FROM (
            SELECT * FROM expiring x
            WHERE x.expires_at BETWEEN bound.first_at AND bound.last_at
              AND (x.expires_at <= expired_at
                   OR (SELECT e.expires_at FROM execution e WHERE e.id = x.execution_id) <= expired_at)
              AND x.queue_id <> ALL (unavailable_ids)
            ORDER BY x.expires_at LIMIT in_limit
        ) x;
        IF due_ids IS NULL THEN
            RETURN;
        END IF;
        newly_unavailable_ids := turnstile.lock_available_queues(queue_ids);
        unavailable_ids := unavailable_ids || newly_unavailable_ids;
        EXIT WHEN newly_unavailable_ids = '{}';
    END LOOP;
    unavailable_ids := unavailable_ids || (
        SELECT l.busy_queue_ids FROM turnstile.lock_gates('{}', unavailable_ids, due_ids, NULL) l);
    due_ids := ARRAY(
        SELECT x.execution_id FROM expiring x
        WHERE x.execution_id = ANY (due_ids) AND x.queue_id <> ALL (unavailable_ids));
    unavailable_ids := turnstile.lock_available_executions(due_ids, NULL);
    due_ids := ARRAY(SELECT c.id FROM unnest(due_ids) c(id) WHERE c.id <> ALL (unavailable_ids));

    DELETE FROM expiring x WHERE x.execution_id = ANY (due_ids);
    SELECT array_agg(e.id),
           array_agg(format('did not start within its time to live, which ended at %s',
                            to_char(e.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
    INTO due_ids, reasons
    FROM execution e WHERE e.id = ANY (due_ids);
    RETURN QUERY SELECT * FROM turnstile.end_unstarted(due_ids, 'expired', 'Expired', reasons);
END
$$;
