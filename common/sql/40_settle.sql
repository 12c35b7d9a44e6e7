-- blocked_slots: those of these executions that cannot be settled now, because their queue is in
-- `in_blocked_queue_ids` or another session holds their slot; and the queues of the latter. The caller has
-- locked the other queues.
CREATE FUNCTION turnstile.blocked_slots(
    in_execution_ids bigint[], in_blocked_queue_ids bigint[], OUT blocked_ids bigint[], OUT queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    free_ids bigint[];
BEGIN
    free_ids := ARRAY(
        SELECT s.execution_id FROM slot s
        WHERE s.execution_id = ANY (in_execution_ids) AND s.queue_id <> ALL (in_blocked_queue_ids)
        ORDER BY s.execution_id FOR UPDATE SKIP LOCKED);
    SELECT coalesce(array_agg(e.id), '{}'),
           coalesce(array_agg(DISTINCT e.queue_id) FILTER (WHERE e.queue_id <> ALL (in_blocked_queue_ids)),
                    '{}')
    INTO blocked_ids, queue_ids
    FROM unnest(in_execution_ids) c(id)
    JOIN execution e ON e.id = ANY (ARRAY[c.id])
    WHERE e.queue_id = ANY (in_blocked_queue_ids)
       OR (e.id <> ALL (free_ids)
           AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = e.id) IS NOT NULL);
END
$$;

-- settle_unpublished: settles outcomes of executions without a slot, or beside one: adds them to what the
-- settle of the slots found. Runs under the settings of its caller.
CREATE FUNCTION turnstile.settle_unpublished(
    in_execution_ids bigint[],
    in_attempts integer[],
    in_statuses text[],
    INOUT settled_ids bigint[],
    INOUT called_ids bigint[],
    INOUT changes turnstile.queue_change[],
    INOUT gate_changes turnstile.gate_change[]
)
LANGUAGE plpgsql
AS $$
BEGIN
    WITH completed AS MATERIALIZED (
        -- Only for a message of that very terminal status: messages about the slot of its last attempt may
        -- arrive late and repeatedly.
        DELETE FROM public.unpublished_completion u
        USING unnest(in_execution_ids, in_attempts, in_statuses) c(id, attempt, published_status)
        WHERE u.execution_id = ANY (ARRAY[c.id])
          AND (SELECT c.published_status = e.status::text OR in_statuses IS NULL AND c.attempt = 0
               FROM public.execution e WHERE e.id = u.execution_id AND e.attempt = c.attempt)
        RETURNING u.execution_id, u.queue_id, u.gate_ids, u.gate_units
    ),
    change AS (
        SELECT c.queue_id, c.held, c.completed FROM unnest(changes) c
        UNION ALL
        -- One that ended at a gate after its queue gives back its slot.
        SELECT c.queue_id, CASE WHEN c.gate_ids IS NULL THEN 0 ELSE -1 END, 1 FROM completed c
    )
    SELECT ARRAY(SELECT unnest(settled_ids) UNION SELECT c.execution_id FROM completed c),
           called_ids || ARRAY(
               SELECT c.execution_id FROM completed c
               JOIN public.execution e ON e.id = ANY (ARRAY[c.execution_id]) AND e.callback_url IS NOT NULL),
           (SELECT array_agg(ROW(n.queue_id, 0, n.held, NULL, 0, n.ended, NULL)::turnstile.queue_change)
            FROM (SELECT c.queue_id, sum(c.held) AS held, sum(c.completed) AS ended FROM change c
                  GROUP BY c.queue_id) n),
           (SELECT gate_changes || array_agg(ROW(u.gate_id, -u.units, 0)::turnstile.gate_change)
            FROM completed c CROSS JOIN unnest(c.gate_ids, c.gate_units) u(gate_id, units))
    INTO settled_ids, called_ids, changes, gate_changes;
END
$$;

-- settle: frees the slots of finished attempts, once each, and grants them to the next executions.
--
-- Keeps P4: a completion deletes the slot row of exactly its attempt, or nothing, however often, late or
-- early it arrives. `early_ids` are completions whose finish is not committed yet, `unknown_ids` those of
-- unknown executions, `blocked_ids` those whose queue or slot another session holds for longer than
-- `in_wait_ms` (see `lock_queues`): none of these may be acknowledged as done.
--
-- `in_statuses` are the terminal statuses that the messages report, null where a message reports none (an
-- attempt that waits for its retry, or was handed back). Services of the previous version do not pass it.
-- Then a completion counts as published only if no attempt came before it, so that no other message can have
-- the same name.
CREATE FUNCTION turnstile.settle(
    in_execution_ids bigint[],
    in_attempts integer[],
    in_wait_ms integer DEFAULT NULL,
    in_suspect_ids bigint[] DEFAULT '{}',
    in_statuses text[] DEFAULT NULL,
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
:settings_for_index_order
AS $$
DECLARE
    queue_ids bigint[];
    gate_ids bigint[];
    gate_changes turnstile.gate_change[];
    worker_slot_changes turnstile.gate_change[];
    called_ids bigint[];
    has_turns boolean := false;
    has_waiting boolean;
    has_gates boolean;
    has_unpublished boolean;
    room bigint;
    pool_ids bigint[];
    lost_ids bigint[] := '{}';
    changes turnstile.queue_change[];
    is_decided boolean;
    settled_at timestamptz;
BEGIN
    -- Most installations have no gates, and a call costs more than the test. What holds units there was
    -- granted before.
    SELECT ARRAY(SELECT DISTINCT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids)),
           EXISTS (SELECT FROM worker_pool p WHERE p.waits), EXISTS (SELECT FROM gate)
    INTO queue_ids, has_waiting, has_gates;
    -- The worker slots that become free may be the turn of other queues.
    IF has_waiting THEN
        SELECT max(turnstile.room_of(p.capacity, p.held - cardinality(in_execution_ids), p.lead)) INTO room
        FROM turnstile.current_pool p WHERE p.depth > 0;
    END IF;
    IF room > 0 THEN
        -- Two statements: with a subquery as its argument the function would be planned again by each call.
        pool_ids := ARRAY(SELECT DISTINCT s.pool_id FROM slot s
                          WHERE s.execution_id = ANY (in_execution_ids));
        queue_ids := queue_ids || ARRAY(
            SELECT r.id FROM turnstile.next_ready(pool_ids, least(room, 50)) r(id)
            WHERE r.id <> ALL (queue_ids));
        has_turns := true;
    END IF;
    blocked_queue_ids := turnstile.lock_queues(queue_ids, in_wait_ms, in_suspect_ids);
    IF has_turns THEN
        lost_ids := turnstile.missing_queues(queue_ids);
    END IF;
    IF has_gates THEN
        SELECT l.gate_ids, blocked_queue_ids || l.busy_queue_ids INTO gate_ids, blocked_queue_ids
        FROM turnstile.lock_gates(queue_ids, blocked_queue_ids, in_execution_ids, in_suspect_ids) l;
    END IF;
    IF in_suspect_ids IS NULL OR in_suspect_ids && queue_ids THEN
        queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (blocked_queue_ids));
        SELECT s.blocked_ids, blocked_queue_ids || s.queue_ids INTO blocked_ids, blocked_queue_ids
        FROM turnstile.blocked_slots(in_execution_ids, blocked_queue_ids) s;
        SELECT coalesce(array_agg(c.id), '{}'), coalesce(array_agg(c.attempt), '{}'),
               CASE WHEN in_statuses IS NOT NULL THEN coalesce(array_agg(c.published_status), '{}') END
        INTO in_execution_ids, in_attempts, in_statuses
        FROM unnest(in_execution_ids, in_attempts, in_statuses) c(id, attempt, published_status)
        WHERE c.id <> ALL (blocked_ids);
        free_queue_ids := turnstile.free_suspects(in_suspect_ids, queue_ids, '{}');
    END IF;
    settled_at := clock_timestamp();

    -- Slots of finished attempts.
    WITH freed AS (
        DELETE FROM slot s USING unnest(in_execution_ids, in_attempts) c(id, attempt)
        WHERE s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt AND s.finished_at IS NOT NULL
        RETURNING s.execution_id, s.queue_id, s.gate_ids, s.gate_units, s.pool_id
    ),
    settled AS MATERIALIZED (
        -- An attempt that waits for its retry frees its slot, but its execution is not terminal. One that
        -- became terminal while it waited is settled when its own completion arrives.
        SELECT f.*, e.callback_url, u.execution_id IS NOT NULL AS is_unpublished,
               e.completed_at IS NOT NULL AND u.execution_id IS NULL AS is_ended
        FROM freed f
        JOIN execution e ON e.id = ANY (ARRAY[f.execution_id])
        LEFT JOIN unpublished_completion u ON u.execution_id = ANY (ARRAY[f.execution_id])
    )
    SELECT array_agg(s.execution_id),
           array_agg(s.execution_id) FILTER (WHERE s.is_ended AND s.callback_url IS NOT NULL),
           coalesce(bool_or(s.is_unpublished), false),
           (SELECT array_agg(ROW(n.queue_id, 0, -n.freed, NULL, 0, n.ended, NULL)::turnstile.queue_change)
            FROM (
                SELECT f.queue_id, count(*) AS freed, count(*) FILTER (WHERE f.is_ended) AS ended
                FROM settled f GROUP BY f.queue_id
            ) n),
           CASE WHEN has_gates THEN (
               SELECT array_agg(ROW(u.gate_id, -u.units, 0)::turnstile.gate_change)
               FROM settled f CROSS JOIN unnest(f.gate_ids, f.gate_units) u(gate_id, units)) END,
           (SELECT array_agg(ROW(n.pool_id, -n.places, 0)::turnstile.gate_change)
            FROM (
                SELECT f.pool_id, count(*) AS places FROM settled f WHERE f.pool_id IS NOT NULL
                GROUP BY f.pool_id
            ) n)
    INTO settled_ids, called_ids, has_unpublished, changes, gate_changes, worker_slot_changes
    FROM settled s;
    IF has_unpublished OR cardinality(in_execution_ids) > coalesce(cardinality(settled_ids), 0) THEN
        SELECT * INTO settled_ids, called_ids, changes, gate_changes
        FROM turnstile.settle_unpublished(
            in_execution_ids, in_attempts, in_statuses, settled_ids, called_ids, changes, gate_changes);
    END IF;
    settled_count := coalesce(cardinality(settled_ids), 0);

    -- The common case: no callback. A separate statement costs only those with one.
    callback_count := coalesce(cardinality(called_ids), 0);
    IF callback_count > 0 THEN
        PERFORM turnstile.enqueue_webhooks(called_ids, settled_at);
    ELSE
        -- The hand-over does not wait for the disk. Whatever builds on this settle, the claim of what is
        -- granted below, waits for it, and for everything before it in the same log. A settle that a crash of
        -- the server undoes leaves a slot whose completion the watchdog publishes again. A webhook would be
        -- sent twice, under two ids.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    -- If every completion settled something, none was early or unknown.
    IF settled_count < cardinality(in_execution_ids) THEN
        SELECT array_agg(c.id) FILTER (WHERE e.id IS NOT NULL), array_agg(c.id) FILTER (WHERE e.id IS NULL)
        INTO early_ids, unknown_ids
        FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
        LEFT JOIN execution e ON e.id = ANY (ARRAY[c.id])
        LEFT JOIN slot s ON s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt
        -- A terminal execution has no later attempt.
        WHERE e.id IS NULL OR (c.attempt > e.attempt AND e.completed_at IS NULL)
          OR s.execution_id IS NOT NULL;
    END IF;

    -- The common case: no worker slots are shared, no queue is blocked, and every message has changed its
    -- queue. One that settles nothing may be of an attempt that was handed back, whose slot is free already:
    -- its queue is granted, too.
    IF worker_slot_changes IS NOT NULL AND room IS NULL AND NOT has_gates AND blocked_queue_ids = '{}'
        AND in_suspect_ids IS NOT NULL AND settled_count = cardinality(in_execution_ids) THEN
        SELECT g.is_decided, g.granted INTO is_decided, granted
        FROM turnstile.grant_plain(changes, worker_slot_changes) g;
    END IF;
    IF is_decided IS NOT TRUE THEN
        SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
        FROM turnstile.grant_locked(
            queue_ids, coalesce(changes, '{}'), in_gate_ids => gate_ids, in_gate_changes => gate_changes,
            in_worker_slot_changes => worker_slot_changes, in_lost_ids => blocked_queue_ids || lost_ids,
            in_tries => in_suspect_ids IS NULL) g;
    END IF;
END
$$;
