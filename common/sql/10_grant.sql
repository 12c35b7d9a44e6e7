-- grant_locked: applies these changes to the states of the queues, and grants the free slots to the heads of the queues.
--
-- The caller has locked the rows of `action_queue` in an EARLIER statement. Under READ COMMITTED the statements below
-- take newer snapshots than that lock, so they see every grant that committed before it. One statement that locks and
-- reads the state would read with a snapshot older than the lock, and exceed the limit.
--
-- Keeps P1 (a new version of the state has a new number, so two decisions from the same version collide), P2 (heads in
-- order of execution id), P9 (only the given queues). Grants at most 1,000 per queue and call; `more_queue_ids` are
-- queues that could take more. `in_changes` are about some of `in_queue_ids`, at most one for each.
--
-- `in_arrival_places` are new executions, with the highest ids of their queues, which `in_changes` counts as waiting: the
-- first go straight into slots that no earlier execution takes, the others into `waiting`. A queue where another priority
-- than 3 has waited takes them all, grants nothing, and comes back in `more_queue_ids`.
--
-- Executions of an action with more gates take their slot here and go on to these gates, which the caller has locked
-- (`lock_gates`): `in_gate_ids`. `in_gate_changes` are the units that were released there. Without locked gates, the
-- queues of such actions come back in `more_queue_ids`.
CREATE FUNCTION turnstile.grant_locked(
    in_queue_ids bigint[],
    in_changes turnstile.queue_change[] DEFAULT '{}',
    in_arrival_queue_ids bigint[] DEFAULT '{}',
    in_arrival_places bigint[] DEFAULT '{}',
    in_gate_ids bigint[] DEFAULT NULL,
    in_gate_changes turnstile.gate_change[] DEFAULT NULL,
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    -- Read after the lock was taken, so it increases from grant to grant of one queue.
    decided_at timestamptz := clock_timestamp();
    passages turnstile.passage[];
BEGIN
    -- The common case: nothing waits. Also, what follows is planned only once an execution exists: for an empty
    -- table, an index with the id in second place looks as good as the primary key.
    IF NOT EXISTS (SELECT FROM unnest(in_changes) c WHERE c.depth > 0)
       AND NOT EXISTS (SELECT FROM turnstile.current_queue q
                       WHERE q.id = ANY (in_queue_ids) AND NOT q.paused AND q.depth > 0)
    THEN
        IF cardinality(in_changes) > 0 THEN
            PERFORM turnstile.change_queues(in_changes);
        END IF;
        IF in_gate_ids IS NOT NULL THEN
            granted := turnstile.pass_gates(in_gate_ids, in_gate_changes, NULL, decided_at);
        END IF;
        RETURN;
    END IF;

    WITH
    -- Stage 1: the states with the changes, and how many executions each queue may start.
    state AS MATERIALIZED (
        SELECT n.*, n.heads IS NOT NULL AND n.queue_id = ANY (in_arrival_queue_ids) AS is_mixing,
               CASE WHEN n.paused OR n.is_closed OR n.route IS NOT NULL AND in_gate_ids IS NULL
                         OR n.heads IS NOT NULL AND n.queue_id = ANY (in_arrival_queue_ids) THEN 0
                    ELSE greatest(least(n.depth, 1000, coalesce(n.max_concurrent - n.held, 1000)), 0) END AS take
        FROM (
            SELECT q.id AS queue_id, q.action_id, q.max_concurrent, q.paused, q.version, a.route,
                   a.route IS NOT NULL AND turnstile.is_closed(a.route, a.route_units) AS is_closed,
                   q.depth + coalesce(c.depth, 0) AS depth, q.held + coalesce(c.held, 0) AS held,
                   least(q.head_id, c.first_id) AS head_id, turnstile.lower_heads(q.heads, c.first_places) AS heads,
                   q.total_enqueued + coalesce(c.enqueued, 0) AS total_enqueued,
                   q.total_completed + coalesce(c.completed, 0) AS total_completed,
                   c.queue_id IS NOT NULL AS is_changed
            FROM turnstile.current_queue q
            JOIN action a ON a.id = ANY (ARRAY[q.action_id])
            LEFT JOIN unnest(in_changes) c ON c.queue_id = q.id
            WHERE q.id = ANY (in_queue_ids)
        ) n
    ),
    -- Stage 2: the heads of the queues. `head_id` lets the scan start behind the dead index entries of earlier grants.
    waiting_head AS MATERIALIZED (
        SELECT s.queue_id, s.action_id, s.route, w.place, turnstile.id_of_place(w.place) AS execution_id
        FROM state s
        CROSS JOIN LATERAL (
            (SELECT queued.place FROM waiting queued
             WHERE queued.line_id = s.queue_id AND queued.place >= s.head_id AND s.heads IS NULL
             ORDER BY queued.place LIMIT s.take)
            UNION ALL
            SELECT f.place FROM turnstile.first_waiting(s.queue_id, s.head_id, s.heads, s.take) f
            WHERE s.heads IS NOT NULL
        ) w
        WHERE s.take > 0
    ),
    arrival AS MATERIALIZED (
        SELECT s.queue_id, s.action_id, s.route, n.place,
               row_number() OVER (PARTITION BY s.queue_id ORDER BY n.place)
               <= s.take - coalesce((SELECT count(*) FROM waiting_head h WHERE h.queue_id = s.queue_id), 0) AS starts
        FROM unnest(in_arrival_queue_ids, in_arrival_places) n(queue_id, place)
        JOIN state s ON s.queue_id = n.queue_id
    ),
    head AS MATERIALIZED (
        SELECT h.queue_id, h.action_id, h.route, h.place, h.execution_id FROM waiting_head h
        UNION ALL
        SELECT n.queue_id, n.action_id, n.route, n.place, n.place FROM arrival n WHERE n.starts
    ),
    -- Stage 3: from the queue into the slots. The next attempt follows those that the execution's row has.
    dequeued AS (
        -- The second column as bounds: with an array the planner may leave it out of the index condition.
        DELETE FROM waiting w USING waiting_head h
        WHERE w.line_id = ANY (ARRAY[h.queue_id]) AND w.place BETWEEN h.place AND h.place
    ),
    enqueued AS (
        INSERT INTO waiting (line_id, place)
        SELECT n.queue_id, n.place FROM arrival n WHERE NOT n.starts
    ),
    started AS MATERIALIZED (
        SELECT h.queue_id, h.action_id, h.route, h.place, h.execution_id, e.attempt + 1 AS attempt, e.traceparent,
               extract(epoch FROM decided_at - e.queued_at)::double precision AS waited_seconds
        FROM head h
        JOIN execution e ON e.id = ANY (ARRAY[h.execution_id]) AND e.status = ANY (:sources_of_grant)
        ORDER BY h.execution_id
    ),
    new_slot AS (
        INSERT INTO slot (execution_id, queue_id, attempt, granted_at, offered_at)
        SELECT s.execution_id, s.queue_id, s.attempt, decided_at, decided_at FROM started s WHERE s.route IS NULL
    ),
    -- Stage 4: the next versions of the states.
    changed AS MATERIALIZED (
        SELECT s.*, coalesce(h.taken, 0) AS taken, h.last_id, coalesce(n.started, 0) AS started,
               -- An empty queue forgets that other priorities waited.
               CASE WHEN s.heads IS NULL OR s.depth = h.taken THEN NULL
                    WHEN h.taken IS NULL THEN s.heads
                    ELSE turnstile.raise_heads(
                        s.heads, ARRAY(SELECT t.place FROM head t WHERE t.queue_id = s.queue_id)) END AS next_heads
        FROM state s
        LEFT JOIN (
            SELECT h.queue_id, count(*) AS taken,
                   max(h.place) FILTER (WHERE h.place = h.execution_id) AS last_id
            FROM head h GROUP BY h.queue_id
        ) h ON h.queue_id = s.queue_id
        LEFT JOIN (SELECT n.queue_id, count(*) AS started FROM started n GROUP BY n.queue_id) n ON n.queue_id = s.queue_id
        WHERE s.is_changed OR h.taken > 0
    ),
    written AS (
        INSERT INTO queue_state (queue_id, version, depth, held, head_id, heads, total_enqueued, total_completed,
                                 granted_limit, updated_at)
        SELECT c.queue_id, c.version + 1, c.depth - c.taken, c.held + c.started,
               coalesce(c.last_id + 1, c.head_id), c.next_heads, c.total_enqueued, c.total_completed, CASE WHEN c.started > 0 THEN c.max_concurrent END, decided_at
        FROM changed c
    ),
    replaced AS (
        DELETE FROM queue_state v USING changed c
        WHERE v.queue_id = ANY (ARRAY[c.queue_id]) AND v.version BETWEEN c.version AND c.version
    )
    SELECT
        (SELECT array_agg(ROW(s.execution_id, s.attempt, a.ref, a.pool, s.traceparent,
                              s.waited_seconds)::turnstile.granted
                          ORDER BY s.execution_id)
         FROM started s JOIN action a ON a.id = ANY (ARRAY[s.action_id]) WHERE s.route IS NULL),
        (SELECT array_agg(s.queue_id) FROM state s
         WHERE s.take = 1000 OR s.is_mixing AND NOT s.paused OR s.route IS NOT NULL AND in_gate_ids IS NULL AND s.depth > 0 AND NOT s.paused),
        (SELECT array_agg(ROW(s.execution_id, s.action_id, s.queue_id, s.place, '{}', '{}',
                              ARRAY[decided_at])::turnstile.passage ORDER BY s.place)
         FROM started s WHERE s.route IS NOT NULL)
    INTO granted, more_queue_ids, passages;
    IF in_gate_ids IS NOT NULL THEN
        granted := granted || turnstile.pass_gates(in_gate_ids, in_gate_changes, passages, decided_at);
    END IF;
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
    gate_ids bigint[];
BEGIN
    blocked_queue_ids := turnstile.lock_queues(in_queue_ids, in_wait_ms, in_suspect_ids);
    SELECT l.gate_ids, blocked_queue_ids || l.busy_queue_ids INTO gate_ids, blocked_queue_ids
    FROM turnstile.lock_gates(in_queue_ids, blocked_queue_ids, NULL, in_suspect_ids) l;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
    FROM turnstile.grant_locked(
        ARRAY(SELECT q.id FROM unnest(in_queue_ids) q(id) WHERE q.id <> ALL (blocked_queue_ids)),
        in_gate_ids => gate_ids) g;
    free_queue_ids := turnstile.free_suspects(in_suspect_ids, in_queue_ids, blocked_queue_ids);
END
$$;
