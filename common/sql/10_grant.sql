-- grant_locked: applies these changes to the states of the queues, and grants the free slots to the heads of
-- the queues.
--
-- The caller has locked the rows of `action_queue` in an EARLIER statement. Under READ COMMITTED the
-- statements below take newer snapshots than that lock, so they see every grant that committed before it. One
-- statement that locks and reads the state would read with a snapshot older than the lock, and exceed the
-- limit.
--
-- Keeps P1 (a new version of the state has a new number, so two decisions from the same version collide), P2
-- (heads in order of execution id), P9 (only the given queues). Grants at most 1,000 per queue and call;
-- `more_queue_ids` are queues that could take more. `in_changes` are about some of `in_queue_ids`, at most
-- one for each.
--
-- `in_arrival_places` are new executions, with the highest ids of their queues, which `in_changes` counts as
-- waiting: the first go straight into slots that no earlier execution takes, the others into `waiting`. A
-- queue where another priority than 3 has waited takes them all, grants nothing, and comes back in
-- `more_queue_ids`.
--
-- Executions of an action with more gates take their slot here and go on to these gates, which the caller has
-- locked (`lock_gates`): `in_gate_ids`. `in_gate_changes` are the units that were released there. Without
-- locked gates, the queues of such actions come back in `more_queue_ids`.
--
-- What starts takes a worker slot of its pool (15_pools.sql), whose rows are locked here, after everything
-- else. `in_worker_slot_changes` are worker slots that were released. Where a pool has fewer of them than its
-- executions could use, they go in turns, also to queues that are not given: these come back in
-- `more_queue_ids`. `in_lost_ids` are queues that other sessions hold or that were deleted: they lose their
-- turns, and the watchdog grants them. `in_tries`: a pool that another session holds is not waited for, and
-- nothing starts there.
CREATE FUNCTION turnstile.grant_locked(
    in_queue_ids bigint[],
    in_changes turnstile.queue_change[] DEFAULT '{}',
    in_arrival_queue_ids bigint[] DEFAULT '{}',
    in_arrival_places bigint[] DEFAULT '{}',
    in_gate_ids bigint[] DEFAULT NULL,
    in_gate_changes turnstile.gate_change[] DEFAULT NULL,
    in_worker_slot_changes turnstile.gate_change[] DEFAULT NULL,
    in_lost_ids bigint[] DEFAULT '{}',
    in_tries boolean DEFAULT true,
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
    has_arrivals boolean := cardinality(in_arrival_queue_ids) > 0;
    is_idle boolean;
    has_new boolean;
    pool_ids bigint[];
    wanted bigint[];
    open_ids bigint[] := '{}';
    full_ids bigint[];
    full_pool record;
    share record;
    shares jsonb := '{}';
    quota_ids bigint[] := '{}';
    quotas bigint[] := '{}';
    rest record;
    is_settle boolean := in_worker_slot_changes IS NOT NULL AND NOT in_tries;
BEGIN
    -- A settle changes its pools in any case: it locks them first, and reads them together with the queues.
    IF is_settle THEN
        open_ids := ARRAY(
            SELECT p.id FROM worker_pool p
            WHERE p.id = ANY (ARRAY(SELECT c.gate_id FROM unnest(in_worker_slot_changes) c))
            ORDER BY p.id FOR NO KEY UPDATE);
    END IF;
    -- Which worker slots could be used. The states are stable under the locks. `full_ids`: where not
    -- everything can start, or something waits already, the worker slots are shared.
    SELECT coalesce(sum(n.queues), 0) = 0, array_agg(n.pool_id) FILTER (WHERE n.wanted > 0 OR n.is_ready),
           array_agg(n.wanted) FILTER (WHERE n.wanted > 0 OR n.is_ready), coalesce(bool_or(n.is_new), false),
           array_agg(n.pool_id) FILTER (
               WHERE (n.wanted > 0 OR n.is_ready OR n.freed <> 0)
                 AND (v.depth > 0 OR v.capacity < v.held + n.freed + coalesce(n.wanted, 0)))
    INTO is_idle, pool_ids, wanted, has_new, full_ids
    FROM (
        SELECT m.pool_id, sum(m.queues) AS queues, bool_or(m.is_ready) AS is_ready,
               bool_or(m.is_new) AS is_new,
               sum(m.wanted) AS wanted, sum(m.freed) AS freed
        FROM (
            SELECT a.pool_id, 1 AS queues, q.ready_place IS NOT NULL AND NOT joins AS is_ready,
                   q.ready_place IS NULL OR q.paused OR NOT a.served OR q.heads IS NOT NULL
                   OR c.first_id IS NOT NULL
                   OR c.depth <> 0 OR q.held + coalesce(c.held, 0) >= q.max_concurrent AS is_new,
                   CASE WHEN a.served AND NOT joins THEN greatest(least(
                       q.depth + coalesce(c.depth, 0), q.max_concurrent - q.held - coalesce(c.held, 0), 1000),
                                                                  0) END AS wanted,
                   0::bigint AS freed
            FROM turnstile.current_queue q
            JOIN action a ON a.id = ANY (ARRAY[q.action_id])
            LEFT JOIN unnest(in_changes) c ON c.queue_id = q.id
            -- New executions behind one that waits for its turn change nothing in the pool.
            CROSS JOIN LATERAL (
                SELECT has_arrivals AND q.ready_place IS NOT NULL AND q.depth > 0 AND q.heads IS NULL
                       AND c.first_places IS NULL
            ) n(joins)
            WHERE q.id = ANY (in_queue_ids)
              AND (NOT q.paused AND q.depth + coalesce(c.depth, 0) > 0 OR q.ready_place IS NOT NULL)
            UNION ALL
            SELECT c.gate_id, 0, NULL, NULL, NULL, c.held FROM unnest(in_worker_slot_changes) c
        ) m GROUP BY m.pool_id
    ) n
    LEFT JOIN LATERAL (
        SELECT * FROM pool_state s WHERE s.pool_id = n.pool_id ORDER BY s.version DESC LIMIT 1
    ) v ON true;
    IF is_idle AND NOT has_arrivals AND in_lost_ids = '{}' THEN
        IF cardinality(in_changes) > 0 THEN
            PERFORM turnstile.change_queues(in_changes);
        END IF;
        IF in_worker_slot_changes IS NOT NULL AND in_tries THEN
            more_queue_ids := turnstile.release_worker_slots(in_worker_slot_changes, true);
        ELSIF in_worker_slot_changes IS NOT NULL THEN
            PERFORM turnstile.change_worker_slots(in_worker_slot_changes, open_ids);
            IF EXISTS (
                SELECT FROM unnest(open_ids) o(id)
                CROSS JOIN LATERAL (
                    SELECT s.depth FROM pool_state s WHERE s.pool_id = o.id ORDER BY s.version DESC LIMIT 1
                ) v
                WHERE v.depth > 0)
            THEN
                more_queue_ids := turnstile.queues_with_room(open_ids);
            END IF;
        END IF;
        IF in_gate_ids IS NOT NULL THEN
            granted := turnstile.pass_gates(in_gate_ids, in_gate_changes, NULL, decided_at);
        END IF;
        RETURN;
    END IF;

    -- What cannot be locked loses its turn.
    IF cardinality(in_lost_ids) > 0 THEN
        pool_ids := pool_ids || ARRAY(
            SELECT DISTINCT a.pool_id FROM ready_queue r JOIN action a ON a.id = ANY (ARRAY[r.action_id])
            WHERE r.queue_id = ANY (in_lost_ids) AND a.pool_id <> ALL (coalesce(pool_ids, '{}')));
        wanted := wanted || array_fill(0::bigint,
                                       ARRAY[cardinality(pool_ids) - coalesce(cardinality(wanted), 0)]);
    END IF;
    -- The pools that are not locked yet were read too early.
    IF in_worker_slot_changes IS NOT NULL AND in_tries OR NOT pool_ids <@ open_ids THEN
        IF in_tries OR open_ids <> '{}' THEN
            open_ids := turnstile.lock_pools(
                open_ids || pool_ids || ARRAY(SELECT c.gate_id FROM unnest(in_worker_slot_changes) c), true);
        ELSE
            -- A call costs as much as the statement.
            open_ids := ARRAY(
                SELECT p.id FROM worker_pool p WHERE p.id = ANY (pool_ids) ORDER BY p.id FOR NO KEY UPDATE);
        END IF;
        SELECT array_agg(p.id) INTO full_ids
        FROM turnstile.current_pool p
        LEFT JOIN unnest(pool_ids, wanted) w(id, executions) ON w.id = p.id
        LEFT JOIN unnest(in_worker_slot_changes) c ON c.gate_id = p.id
        WHERE p.id = ANY (open_ids)
          AND (p.depth > 0 OR p.capacity < p.held + coalesce(c.held, 0) + coalesce(w.executions, 0));
    END IF;
    IF full_ids IS NOT NULL AND NOT has_arrivals THEN
        FOR full_pool IN
            SELECT p.id, turnstile.room_of(p.capacity, p.held + coalesce(c.held, 0), p.lead) AS room
            FROM turnstile.current_pool p
            LEFT JOIN unnest(in_worker_slot_changes) c ON c.gate_id = p.id
            WHERE p.id = ANY (full_ids) ORDER BY p.id
        LOOP
            CONTINUE WHEN full_pool.room = 0;
            SELECT * INTO share FROM turnstile.share_worker_slots(
                full_pool.id, full_pool.room, in_queue_ids, in_changes, in_lost_ids, in_gate_ids IS NOT NULL);
            quota_ids := quota_ids || share.queue_ids;
            quotas := quotas || share.quotas;
            shares := shares || jsonb_build_object(full_pool.id, to_jsonb(share.charges));
        END LOOP;
    END IF;

    -- The common case in a full pool: no queue has a turn, so only the states change.
    IF is_settle AND quota_ids = '{}' AND pool_ids <@ full_ids THEN
        IF cardinality(in_changes) > 0 THEN
            PERFORM turnstile.change_queues(in_changes);
        END IF;
        PERFORM turnstile.change_worker_slots(in_worker_slot_changes, open_ids);
    ELSE
        WITH
        -- Stage 1: the states with the changes, and how many executions each queue may start.
        state AS MATERIALIZED (
            SELECT n.*, n.heads IS NOT NULL AND n.queue_id = ANY (in_arrival_queue_ids) AS is_mixing,
                   CASE WHEN n.paused OR n.is_closed OR NOT n.served OR n.route IS NOT NULL
                             AND in_gate_ids IS NULL
                             OR n.heads IS NOT NULL AND n.queue_id = ANY (in_arrival_queue_ids) THEN 0
                        -- A pool that is not locked.
                        WHEN n.pool_id <> ALL (open_ids) THEN 0
                        WHEN n.pool_id = ANY (full_ids)
                            THEN coalesce(quotas[array_position(quota_ids, n.queue_id)], 0)
                        ELSE greatest(least(n.depth, 1000, coalesce(n.max_concurrent - n.held, 1000)),
                                      0) END AS take
            FROM (
                SELECT q.id AS queue_id, q.action_id, q.max_concurrent, q.paused, q.version, a.route,
                       a.pool_id, a.served, q.ready_place,
                       a.route IS NOT NULL AND turnstile.is_closed(a.route, a.route_units) AS is_closed,
                       q.depth + coalesce(c.depth, 0) AS depth, q.held + coalesce(c.held, 0) AS held,
                       least(q.head_id, c.first_id) AS head_id,
                       turnstile.lower_heads(q.heads, c.first_places) AS heads,
                       q.total_enqueued + coalesce(c.enqueued, 0) AS total_enqueued,
                       q.total_completed + coalesce(c.completed, 0) AS total_completed,
                       c.queue_id IS NOT NULL AS is_changed
                FROM turnstile.current_queue q
                JOIN action a ON a.id = ANY (ARRAY[q.action_id])
                LEFT JOIN unnest(in_changes) c ON c.queue_id = q.id
                WHERE q.id = ANY (in_queue_ids)
            ) n
        ),
        pool AS MATERIALIZED (
            SELECT v.*, coalesce((SELECT c.held FROM unnest(in_worker_slot_changes) c WHERE c.gate_id = o.id),
                                 0) AS more_held
            FROM unnest(open_ids) o(id)
            CROSS JOIN LATERAL (
                SELECT * FROM pool_state s WHERE s.pool_id = o.id ORDER BY s.version DESC LIMIT 1
            ) v
        ),
        -- Stage 2: the heads of the queues. `head_id` lets the scan start behind the dead index entries of
        -- earlier grants.
        waiting_head AS MATERIALIZED (
            SELECT s.queue_id, s.action_id, s.route, s.pool_id, w.place,
                   turnstile.id_of_place(w.place) AS execution_id
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
            SELECT s.queue_id, s.action_id, s.route, s.pool_id, n.place,
                   row_number() OVER (PARTITION BY s.queue_id ORDER BY n.place)
                   <= s.take - coalesce((SELECT count(*) FROM waiting_head h WHERE h.queue_id = s.queue_id),
                                        0) AS starts
            FROM unnest(in_arrival_queue_ids, in_arrival_places) n(queue_id, place)
            JOIN state s ON s.queue_id = n.queue_id
        ),
        head AS MATERIALIZED (
            SELECT h.queue_id, h.action_id, h.route, h.pool_id, h.place, h.execution_id FROM waiting_head h
            UNION ALL
            SELECT n.queue_id, n.action_id, n.route, n.pool_id, n.place, n.place FROM arrival n WHERE n.starts
        ),
        -- Stage 3: from the queue into the slots. The next attempt follows those that the execution's row
        -- has.
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
            SELECT h.queue_id, h.action_id, h.route, h.pool_id, h.place, h.execution_id,
                   e.attempt + 1 AS attempt, e.traceparent,
                   extract(epoch FROM decided_at - e.queued_at)::double precision AS waited_seconds
            FROM head h
            JOIN execution e ON e.id = ANY (ARRAY[h.execution_id]) AND e.status = ANY (:sources_of_grant)
            ORDER BY h.execution_id
        ),
        new_slot AS (
            INSERT INTO slot (execution_id, queue_id, attempt, granted_at, offered_at, pool_id)
            SELECT s.execution_id, s.queue_id, s.attempt, decided_at, decided_at, s.pool_id FROM started s
            WHERE s.route IS NULL
        ),
        -- Stage 4: the next versions of the states.
        changed AS MATERIALIZED (
            SELECT s.*, coalesce(h.taken, 0) AS taken, h.last_id, coalesce(n.started, 0) AS started,
                   -- An empty queue forgets that other priorities waited.
                   CASE WHEN s.heads IS NULL OR s.depth = h.taken THEN NULL
                        WHEN h.taken IS NULL THEN s.heads
                        ELSE turnstile.raise_heads(
                            s.heads, ARRAY(SELECT t.place FROM head t
                                           WHERE t.queue_id = s.queue_id)) END AS next_heads
            FROM state s
            LEFT JOIN (
                SELECT h.queue_id, count(*) AS taken,
                       max(h.place) FILTER (WHERE h.place = h.execution_id) AS last_id
                FROM head h GROUP BY h.queue_id
            ) h ON h.queue_id = s.queue_id
            LEFT JOIN (SELECT n.queue_id, count(*) AS started FROM started n GROUP BY n.queue_id) n
                ON n.queue_id = s.queue_id
            WHERE s.is_changed OR h.taken > 0
        ),
        written AS (
            INSERT INTO queue_state (queue_id, version, depth, held, head_id, heads, total_enqueued,
                                     total_completed, granted_limit, updated_at, ready_place)
            SELECT c.queue_id, c.version + 1, c.depth - c.taken, c.held + c.started,
                   coalesce(c.last_id + 1, c.head_id), c.next_heads, c.total_enqueued, c.total_completed,
                   CASE WHEN c.started > 0 THEN c.max_concurrent END, decided_at, c.ready_place
            FROM changed c
        ),
        replaced AS (
            DELETE FROM queue_state v USING changed c
            WHERE v.queue_id = ANY (ARRAY[c.queue_id]) AND v.version BETWEEN c.version AND c.version
        ),
        -- Stage 5: the next versions of the states of the pools.
        pool_written AS (
            INSERT INTO pool_state (pool_id, version, capacity, places, lead, leaving, held, depth,
                                    virtual_times, total_released, granted_capacity, updated_at)
            SELECT p.pool_id, p.version + 1, p.capacity, p.places, p.lead, p.leaving,
                   greatest(p.held + p.more_held, 0) + n.started,
                   p.depth, p.virtual_times, p.total_released + greatest(-p.more_held, 0),
                   CASE WHEN n.started > 0 THEN p.capacity END, decided_at
            FROM pool p
            CROSS JOIN LATERAL (
                SELECT count(*) AS started FROM started s WHERE s.pool_id = p.pool_id AND s.route IS NULL
            ) n
            WHERE p.more_held <> 0 OR n.started > 0
            RETURNING pool_id, version - 1 AS version
        ),
        pool_replaced AS (
            DELETE FROM pool_state v USING pool_written p
            WHERE v.pool_id = ANY (ARRAY[p.pool_id]) AND v.version BETWEEN p.version AND p.version
        )
        SELECT
            (SELECT array_agg(ROW(s.execution_id, s.attempt, a.ref, a.pool, s.traceparent,
                                  s.waited_seconds)::turnstile.granted
                              ORDER BY s.execution_id)
             FROM started s JOIN action a ON a.id = ANY (ARRAY[s.action_id]) WHERE s.route IS NULL),
            (SELECT array_agg(s.queue_id) FROM state s
             WHERE s.take = 1000 OR s.is_mixing AND NOT s.paused OR s.route IS NOT NULL
               AND in_gate_ids IS NULL AND s.depth > 0 AND NOT s.paused),
            (SELECT array_agg(ROW(s.execution_id, s.action_id, s.queue_id, s.place, '{}', '{}',
                                  ARRAY[decided_at])::turnstile.passage ORDER BY s.place)
             FROM started s WHERE s.route IS NOT NULL)
        INTO granted, more_queue_ids, passages;
    END IF;
    IF in_gate_ids IS NOT NULL THEN
        granted := granted || turnstile.pass_gates(in_gate_ids, in_gate_changes, passages, decided_at);
    END IF;
    -- Nothing took a turn, and every queue has its own already. Without a change the watchdog asks, which
    -- repairs them.
    IF full_ids IS NULL
       OR NOT has_new AND shares = '{}' AND in_lost_ids = '{}' AND (has_arrivals OR in_changes <> '{}') THEN
        RETURN;
    END IF;

    FOR full_pool IN SELECT p.id FROM unnest(full_ids) p(id) ORDER BY p.id LOOP
        PERFORM turnstile.enter_turns(
            full_pool.id, in_queue_ids, in_lost_ids,
            ARRAY(SELECT c FROM jsonb_populate_recordset(
                NULL::turnstile.turn_charge, nullif(shares -> full_pool.id::text, 'null')) c));
    END LOOP;
    IF has_arrivals AND EXISTS (
        SELECT FROM turnstile.current_pool p
        WHERE p.id = ANY (full_ids) AND p.depth > 0 AND turnstile.room_of(p.capacity, p.held, p.lead) > 0)
    THEN
        -- They are in their queues now: the first share.
        SELECT g.granted, g.more_queue_ids INTO rest
        FROM turnstile.grant_locked(in_queue_ids, in_lost_ids => in_lost_ids, in_tries => in_tries) g;
        granted := granted || rest.granted;
        more_queue_ids := more_queue_ids || rest.more_queue_ids;
    ELSIF shares <> '{}' OR in_lost_ids <> '{}' THEN
        more_queue_ids := more_queue_ids || turnstile.queues_with_room(full_ids);
    END IF;
END
$$;

-- grant_plain: does what grant_locked does, where nothing waits for a worker slot, none has to be shared, no
-- queue has priorities and no action has gates, and fewer than 1,000 start per queue: most settles and
-- admissions. Otherwise `is_decided` is false, and nothing is changed.
--
-- The caller has locked the queues, as for grant_locked. `in_changes` has each of them once;
-- `in_worker_slot_changes` has each pool in which something may start, with the worker slots that were
-- released; these pools are locked here. Runs under the settings of its caller.
CREATE FUNCTION turnstile.grant_plain(
    in_changes turnstile.queue_change[],
    in_worker_slot_changes turnstile.gate_change[],
    OUT is_decided boolean,
    OUT granted turnstile.granted[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    decided_at timestamptz := clock_timestamp();
    pool_ids bigint[] := ARRAY(
        SELECT p.id FROM public.worker_pool p
        WHERE p.id = ANY (ARRAY(SELECT c.gate_id FROM unnest(in_worker_slot_changes) c))
        ORDER BY p.id FOR NO KEY UPDATE);
BEGIN
    WITH
    -- Stage 1: the states with the changes, and how many executions each queue may start.
    state AS MATERIALIZED (
        SELECT n.*, CASE WHEN n.paused OR NOT n.served THEN 0
                         ELSE greatest(least(n.depth, 1000, coalesce(n.max_concurrent - n.held, 1000)),
                                       0) END AS take
        FROM (
            SELECT q.id AS queue_id, q.max_concurrent, q.paused, q.version, q.depth + c.depth AS depth,
                   q.held + c.held AS held, q.head_id, q.total_enqueued + c.enqueued AS total_enqueued,
                   q.total_completed + c.completed AS total_completed, q.ready_place, q.heads IS NOT NULL
                   OR c.first_places IS NOT NULL
                   OR a.route IS NOT NULL AS is_special, a.ref, a.pool, a.pool_id, a.served
            FROM unnest(in_changes) c
            JOIN turnstile.current_queue q ON q.id = ANY (ARRAY[c.queue_id])
            JOIN public.action a ON a.id = ANY (ARRAY[q.action_id])
        ) n
    ),
    pool AS MATERIALIZED (
        SELECT v.*, c.held AS more_held,
               coalesce((SELECT sum(s.take) FROM state s WHERE s.pool_id = v.pool_id), 0) AS wanted
        FROM unnest(in_worker_slot_changes) c
        CROSS JOIN LATERAL (
            SELECT * FROM public.pool_state n WHERE n.pool_id = c.gate_id ORDER BY n.version DESC LIMIT 1
        ) v
    ),
    decision AS MATERIALIZED (
        SELECT NOT EXISTS (SELECT FROM pool p
                           WHERE p.depth > 0 OR p.capacity < p.held + p.more_held + p.wanted)
               AND NOT EXISTS (
                   SELECT FROM state s WHERE s.is_special OR s.take = 1000 OR s.take > 0
                     AND s.pool_id <> ALL (pool_ids)) AS is_made
    ),
    -- Stage 2: the heads of the queues. `head_id` lets the scan start behind the dead index entries of
    -- earlier grants. The next attempt follows those that the execution's row has.
    head AS MATERIALIZED (
        SELECT s.queue_id, s.ref, s.pool, s.pool_id, w.place, e.id AS execution_id, e.attempt + 1 AS attempt,
               e.traceparent,
               extract(epoch FROM decided_at - e.queued_at)::double precision AS waited_seconds
        FROM state s
        CROSS JOIN LATERAL (
            SELECT queued.place FROM public.waiting queued
            WHERE queued.line_id = s.queue_id AND queued.place >= s.head_id ORDER BY queued.place LIMIT s.take
        ) w
        LEFT JOIN public.execution e ON e.id = ANY (ARRAY[w.place]) AND e.status = ANY (:sources_of_grant)
        WHERE s.take > 0 AND (SELECT d.is_made FROM decision d)
        ORDER BY w.place
    ),
    -- Stage 3: from the queue into the slots.
    dequeued AS (
        -- The second column as bounds: with an array the planner may leave it out of the index condition.
        DELETE FROM public.waiting w USING head h
        WHERE w.line_id = ANY (ARRAY[h.queue_id]) AND w.place BETWEEN h.place AND h.place
    ),
    new_slot AS (
        INSERT INTO public.slot (execution_id, queue_id, attempt, granted_at, offered_at, pool_id)
        SELECT h.execution_id, h.queue_id, h.attempt, decided_at, decided_at, h.pool_id
        FROM head h WHERE h.execution_id IS NOT NULL
        RETURNING pool_id
    ),
    -- Stage 4: the next versions of the states of the queues and of the pools.
    changed AS MATERIALIZED (
        SELECT s.*, coalesce(h.taken, 0) AS taken, coalesce(h.started, 0) AS started, h.last_place
        FROM state s
        LEFT JOIN (
            SELECT n.queue_id, count(*) AS taken, count(n.execution_id) AS started, max(n.place) AS last_place
            FROM head n GROUP BY n.queue_id
        ) h ON h.queue_id = s.queue_id
        WHERE (SELECT d.is_made FROM decision d)
    ),
    written AS (
        INSERT INTO public.queue_state (queue_id, version, depth, held, head_id, total_enqueued,
                                        total_completed, granted_limit, updated_at, ready_place)
        SELECT c.queue_id, c.version + 1, c.depth - c.taken, c.held + c.started,
               coalesce(c.last_place + 1, c.head_id),
               c.total_enqueued, c.total_completed, CASE WHEN c.started > 0 THEN c.max_concurrent END,
               decided_at, c.ready_place
        FROM changed c
    ),
    replaced AS (
        DELETE FROM public.queue_state v USING changed c
        WHERE v.queue_id = ANY (ARRAY[c.queue_id]) AND v.version BETWEEN c.version AND c.version
    ),
    pool_written AS (
        INSERT INTO public.pool_state (pool_id, version, capacity, places, lead, leaving, held, depth,
                                       virtual_times, total_released, granted_capacity, updated_at)
        SELECT p.pool_id, p.version + 1, p.capacity, p.places, p.lead, p.leaving,
               greatest(p.held + p.more_held, 0) + n.started,
               p.depth, p.virtual_times, p.total_released - p.more_held,
               CASE WHEN n.started > 0 THEN p.capacity END, decided_at
        FROM pool p
        CROSS JOIN LATERAL (SELECT count(*) AS started FROM new_slot s WHERE s.pool_id = p.pool_id) n
        WHERE (p.more_held <> 0 OR n.started > 0) AND (SELECT d.is_made FROM decision d)
        RETURNING pool_id, version - 1 AS version
    ),
    pool_replaced AS (
        DELETE FROM public.pool_state v USING pool_written p
        WHERE v.pool_id = ANY (ARRAY[p.pool_id]) AND v.version BETWEEN p.version AND p.version
    )
    SELECT (SELECT d.is_made FROM decision d),
           array_agg(ROW(h.execution_id, h.attempt, h.ref, h.pool, h.traceparent,
                         h.waited_seconds)::turnstile.granted
                     ORDER BY h.execution_id)
    INTO is_decided, granted
    FROM head h WHERE h.execution_id IS NOT NULL;
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
        in_gate_ids => gate_ids, in_lost_ids => blocked_queue_ids || turnstile.missing_queues(in_queue_ids),
        in_tries => in_suspect_ids IS NULL) g;
    free_queue_ids := turnstile.free_suspects(in_suspect_ids, in_queue_ids, blocked_queue_ids);
END
$$;
