-- Pools of workers as gates: an execution is granted only if the workers of its pool have capacity (P9, P14).
--
-- An execution passes its queue and its pool in one decision. While the pool is full it stays in its queue
-- and holds nothing. `ready_queue` has the queues that could start more, `pool_turn` the order of their
-- actions: start-time fair queueing by weight, for each priority on its own. The k-th execution of an action
-- has the tag start + (k - 1) * step, so a decision is one sort. By arrival the tag of an execution is its
-- id, or the virtual time if that is larger: what returns to its queue is first again. A pool in which
-- nothing waits needs neither.
--
-- A paused pool has the capacity 0, so a pause costs a decision nothing.
--
-- The row of a pool is its lock, taken after all queues and gates. A decision in which it is not available
-- grants nothing there; the watchdog does that, and recounts what could not be counted.

-- Functions without settings run under those of their callers: to set them costs more than most statements.
-- Those that return one value are not written in SQL: such a function is planned again by each statement that
-- calls it.

-- step_of: how far the tag of an action moves with each of its executions. All weights divide 720,720.
CREATE FUNCTION turnstile.step_of(in_weights jsonb, in_action_ref text)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
AS $$ SELECT 720720 / coalesce((in_weights ->> in_action_ref)::bigint, 1) $$;

-- capacity_of: the executions that a pool may hold: its worker slots (the column `places`), its lead, and the
-- slots of leaving workers.
CREATE FUNCTION turnstile.capacity_of(
    in_paused boolean, in_places integer, in_lead integer, in_leaving bigint
)
RETURNS integer
LANGUAGE sql
IMMUTABLE
AS $$ SELECT (CASE WHEN in_paused THEN 0 ELSE in_places + in_lead + in_leaving END)::integer $$;

-- lock_pools: locks these pools; returns those that it could lock. `in_tries`: waits for none for long.
CREATE FUNCTION turnstile.lock_pools(in_pool_ids bigint[], in_tries boolean)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    locked_ids bigint[];
    tries_left integer := 25;
BEGIN
    IF NOT in_tries THEN
        RETURN ARRAY(SELECT p.id FROM public.worker_pool p WHERE p.id = ANY (in_pool_ids) ORDER BY p.id
                     FOR NO KEY UPDATE);
    END IF;
    LOOP
        locked_ids := ARRAY(
            SELECT p.id FROM public.worker_pool p WHERE p.id = ANY (in_pool_ids) ORDER BY p.id
            FOR NO KEY UPDATE SKIP LOCKED);
        tries_left := tries_left - 1;
        EXIT WHEN tries_left = 0 OR NOT EXISTS (
            SELECT FROM public.worker_pool p WHERE p.id = ANY (in_pool_ids) AND p.id <> ALL (locked_ids));
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN locked_ids;
END
$$;

-- change_worker_slots: adds to the held worker slots of these pools, which the caller has locked.
CREATE FUNCTION turnstile.change_worker_slots(in_changes turnstile.gate_change[], in_locked_ids bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    WITH state AS MATERIALIZED (
        SELECT v.*, c.held AS more_held
        FROM (SELECT n.gate_id, sum(n.held)::bigint AS held FROM unnest(in_changes) n GROUP BY n.gate_id) c
        CROSS JOIN LATERAL (
            SELECT * FROM public.pool_state v WHERE v.pool_id = c.gate_id ORDER BY v.version DESC LIMIT 1
        ) v
        WHERE c.gate_id = ANY (in_locked_ids)
    ),
    written AS (
        INSERT INTO public.pool_state (pool_id, version, capacity, places, lead, leaving, held, depth,
                                       virtual_times, total_released, updated_at)
        SELECT s.pool_id, s.version + 1, s.capacity, s.places, s.lead, s.leaving,
               greatest(s.held + s.more_held, 0),
               s.depth, s.virtual_times, s.total_released + greatest(-s.more_held, 0), clock_timestamp()
        FROM state s
    )
    DELETE FROM public.pool_state v USING state s
    WHERE v.pool_id = ANY (ARRAY[s.pool_id]) AND v.version BETWEEN s.version AND s.version;
END
$$;

-- missing_queues: those of these queues that do not exist any more.
CREATE FUNCTION turnstile.missing_queues(in_queue_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
STABLE
AS $$
BEGIN
    RETURN (
        SELECT ARRAY(
            SELECT i.id FROM unnest(in_queue_ids) i(id)
            WHERE (SELECT q.id FROM public.action_queue q WHERE q.id = i.id) IS NULL));
END
$$;

-- release_worker_slots: locks the pools, takes back these worker slots, and returns queues that can use them.
CREATE FUNCTION turnstile.release_worker_slots(in_changes turnstile.gate_change[], in_tries boolean)
RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    locked_ids bigint[] := turnstile.lock_pools(ARRAY(SELECT c.gate_id FROM unnest(in_changes) c), in_tries);
BEGIN
    PERFORM turnstile.change_worker_slots(in_changes, locked_ids);
    RETURN turnstile.queues_with_room(locked_ids);
END
$$;

-- room_of: how many worker slots may be shared now. Up to half of the lead becomes free before the next
-- share: the workers still have work then, and one decision serves many executions.
CREATE FUNCTION turnstile.room_of(in_capacity integer, in_held bigint, in_lead integer)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN in_capacity IS NULL THEN 1000
                WHEN in_capacity - in_held > in_lead / 2 THEN in_capacity - in_held
                ELSE 0 END
$$;

-- next_ready: the next queues in these pools that can start an execution, in their turns.
CREATE FUNCTION turnstile.next_ready(in_pool_ids bigint[], in_limit bigint)
RETURNS SETOF bigint
LANGUAGE sql
STABLE
AS $$
    SELECT n.queue_id
    FROM turnstile.current_pool p
    CROSS JOIN LATERAL (SELECT turnstile.held_back(turnstile.scarce_actions(p.id, NULL)) AS action_ids) h
    CROSS JOIN LATERAL (
        SELECT r.queue_id
        FROM unnest(p.virtual_times) WITH ORDINALITY v(tag, priority)
        CROSS JOIN LATERAL (
            SELECT * FROM public.pool_turn f
            WHERE f.pool_id = p.id AND f.priority = v.priority AND f.place IS NOT NULL
              AND f.start_tag >= v.tag
              AND f.action_id <> ALL (h.action_ids)
            ORDER BY f.start_tag, f.place LIMIT in_limit
        ) t
        CROSS JOIN LATERAL (
            SELECT turnstile.step_of(p.weights, a.ref) AS step FROM public.action a
            WHERE a.id = ANY (ARRAY[t.action_id])
        ) s
        CROSS JOIN LATERAL (
            SELECT r.queue_id, r.place, row_number() OVER (ORDER BY r.place) - 1 AS rank
            FROM (
                SELECT * FROM public.ready_queue n
                WHERE n.action_id = t.action_id AND n.place >= t.place
                  AND n.place < (t.priority - 2)::bigint << 58
                ORDER BY n.place LIMIT in_limit
            ) r
        ) r
        ORDER BY t.priority, CASE WHEN p.fair THEN t.start_tag + r.rank * s.step END, r.place LIMIT in_limit
    ) n
    WHERE p.id = ANY (in_pool_ids) AND p.depth > 0
$$;

-- queues_with_room: the next queues of those of these pools that have free worker slots.
CREATE FUNCTION turnstile.queues_with_room(in_pool_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
STABLE
AS $$
BEGIN
    RETURN (
        SELECT array_agg(n.queue_id)
        FROM turnstile.current_pool p
        CROSS JOIN LATERAL (
            SELECT r.id AS queue_id
            FROM turnstile.next_ready(ARRAY[p.id],
                                      least(turnstile.room_of(p.capacity, p.held, p.lead), 50)) r(id)
        ) n
        WHERE p.id = ANY (in_pool_ids) AND p.depth > 0 AND turnstile.room_of(p.capacity, p.held, p.lead) > 0);
END
$$;

-- share_worker_slots: how many executions each of these queues, which the caller has locked, may start with
-- this number of worker slots of their pool, in the turns of its actions. The decision stops at the turn of
-- a queue that is not locked.
--
-- `in_lost_ids` are queues that other sessions hold or that were deleted: they are passed over.
-- `in_has_gates`: also queues whose actions have gates, which the caller has locked.
CREATE FUNCTION turnstile.share_worker_slots(
    in_pool_id bigint, in_room bigint, in_queue_ids bigint[], in_changes turnstile.queue_change[],
    in_lost_ids bigint[], in_has_gates boolean,
    OUT queue_ids bigint[], OUT quotas bigint[], OUT charges turnstile.turn_charge[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    -- Above this the decision continues in another transaction.
    read_max bigint := greatest(20000 / greatest(cardinality(in_queue_ids), 1), 8);
    scarce turnstile.scarce_action[] := turnstile.scarce_actions(in_pool_id, in_changes);
    held_back_ids bigint[] := turnstile.held_back(scarce);
BEGIN
    WITH pool AS MATERIALIZED (
        SELECT * FROM turnstile.current_pool p WHERE p.id = in_pool_id
    ),
    own AS MATERIALIZED (
        SELECT q.id AS queue_id, q.action_id, least(q.head_id, c.first_id) AS head_id,
               turnstile.lower_heads(q.heads, c.first_places) AS heads, a.route IS NOT NULL
               AND NOT in_has_gates AS is_foreign,
               turnstile.step_of(p.weights, a.ref) AS step,
               greatest(least(q.depth + coalesce(c.depth, 0), q.max_concurrent - q.held - coalesce(c.held, 0),
                              in_room, read_max + 1,
                              (SELECT min(n.room) FROM unnest(scarce) n WHERE n.action_id = q.action_id)),
                        0) AS startable
        FROM turnstile.current_queue q
        JOIN public.action a ON a.id = ANY (ARRAY[q.action_id])
        CROSS JOIN pool p
        LEFT JOIN unnest(in_changes) c ON c.queue_id = q.id
        WHERE q.id = ANY (in_queue_ids) AND a.pool_id = in_pool_id AND a.served AND NOT q.paused
          AND (a.route IS NULL OR NOT turnstile.is_closed(a.route, a.route_units))
    ),
    -- Up to which tag executions can get a worker slot, if all have the same priority: no more are read.
    own_flow AS MATERIALIZED (
        SELECT o.action_id, o.startable, o.step,
               greatest((
                   SELECT f.start_tag FROM public.pool_turn f
                   WHERE f.action_id = o.action_id AND f.priority = 3
                   ORDER BY f.start_tag DESC LIMIT 1), (SELECT p.virtual_times[3] FROM pool p)) AS start_tag
        FROM (SELECT n.action_id, n.step, sum(n.startable) AS startable FROM own n
              GROUP BY n.action_id, n.step) o
        WHERE (SELECT p.fair FROM pool p) AND NOT EXISTS (SELECT FROM own n WHERE n.heads IS NOT NULL)
          AND (SELECT count(DISTINCT n.action_id) FROM own n) BETWEEN 2 AND 40
    ),
    reach AS MATERIALIZED (
        SELECT b.tag + ceil((in_room - b.taken) / nullif(b.pace, 0)) AS tag
        FROM (
            SELECT n.tag, sum(least(greatest(n.tag - f.start_tag, 0) / f.step, f.startable)) AS taken,
                   sum(1.0 / f.step) FILTER (
                       WHERE f.start_tag <= n.tag AND n.tag < f.start_tag + f.startable * f.step) AS pace
            FROM (
                SELECT f.start_tag::numeric AS tag FROM own_flow f
                UNION
                SELECT f.start_tag + f.startable * f.step FROM own_flow f
            ) n
            CROSS JOIN own_flow f
            GROUP BY n.tag
        ) b
        WHERE b.taken < in_room
        ORDER BY b.tag DESC LIMIT 1
    ),
    known AS MATERIALIZED (
        SELECT o.action_id, o.queue_id, w.place,
               o.is_foreign
               OR row_number() OVER (PARTITION BY o.queue_id ORDER BY w.place) > read_max AS is_foreign
        FROM own o
        CROSS JOIN LATERAL (
            SELECT least(o.startable, (
                       SELECT CASE WHEN r.tag IS NOT NULL
                                       THEN greatest(ceil((r.tag - f.start_tag) / f.step), 0) END
                       FROM reach r CROSS JOIN own_flow f WHERE f.action_id = o.action_id
                   ))::bigint AS readable
        ) l
        CROSS JOIN LATERAL (
            (SELECT queued.place FROM public.waiting queued
             WHERE queued.line_id = o.queue_id AND queued.place >= o.head_id AND o.heads IS NULL
             ORDER BY queued.place LIMIT l.readable)
            UNION ALL
            SELECT f.place FROM turnstile.first_waiting(o.queue_id, o.head_id, o.heads, o.startable) f
            WHERE o.heads IS NOT NULL
        ) w
        WHERE o.startable > 0
        UNION ALL
        -- The first queue of each action that is not locked here.
        SELECT t.action_id, NULL, r.place, true
        FROM pool p
        CROSS JOIN LATERAL unnest(p.virtual_times) WITH ORDINALITY v(tag, priority)
        CROSS JOIN LATERAL (
            SELECT * FROM public.pool_turn f
            WHERE f.pool_id = in_pool_id AND f.priority = v.priority AND f.place IS NOT NULL
              AND f.start_tag >= v.tag
              AND f.action_id <> ALL (held_back_ids)
            ORDER BY f.start_tag, f.place LIMIT in_room + 1
        ) t
        CROSS JOIN LATERAL (
            SELECT n.place FROM public.ready_queue n
            WHERE n.action_id = t.action_id AND n.place >= t.place
              AND n.place < (t.priority - 2)::bigint << 58
              AND n.queue_id <> ALL (in_queue_ids) AND n.queue_id <> ALL (in_lost_ids)
            ORDER BY n.place LIMIT 1
        ) r
        WHERE p.depth > 0
    ),
    flow AS MATERIALIZED (
        SELECT n.action_id, n.priority, p.fair, p.virtual_times[n.priority] AS virtual_time,
               greatest(t.start_tag, p.virtual_times[n.priority]) AS start_tag,
               turnstile.step_of(p.weights, a.ref) AS step
        FROM (SELECT DISTINCT k.action_id, turnstile.priority_of_place(k.place) AS priority FROM known k) n
        JOIN public.action a ON a.id = ANY (ARRAY[n.action_id])
        CROSS JOIN pool p
        LEFT JOIN LATERAL (
            SELECT f.start_tag FROM public.pool_turn f
            WHERE f.action_id = n.action_id AND f.priority = n.priority
              AND f.start_tag >= p.virtual_times[n.priority]
            ORDER BY f.start_tag DESC LIMIT 1
        ) t ON true
    ),
    ranked AS MATERIALIZED (
        SELECT k.*, f.priority,
               CASE WHEN f.fair
                    THEN f.start_tag + (row_number() OVER (PARTITION BY k.action_id,
                                                           f.priority ORDER BY k.place) - 1) * f.step
                    ELSE greatest(turnstile.id_of_place(k.place), f.virtual_time) END AS tag
        FROM known k
        JOIN flow f ON f.action_id = k.action_id AND f.priority = turnstile.priority_of_place(k.place)
    ),
    -- What the workers of its action have no room for is passed over.
    crowded AS MATERIALIZED (
        SELECT o.place FROM (
            SELECT r.place, n.room,
                   row_number() OVER (PARTITION BY n.set_number ORDER BY r.priority, r.tag, r.place) AS rank
            FROM ranked r JOIN unnest(scarce) n ON n.action_id = r.action_id
        ) o WHERE o.rank > o.room
    ),
    chosen AS MATERIALIZED (
        SELECT * FROM (
            SELECT r.*, row_number() OVER turn AS position, bool_or(r.is_foreign) OVER turn AS is_behind
            FROM ranked r WHERE r.place NOT IN (SELECT c.place FROM crowded c)
            WINDOW turn AS (ORDER BY r.priority, r.tag, r.place ROWS UNBOUNDED PRECEDING)
        ) o
        WHERE o.position <= in_room AND NOT o.is_behind
    )
    SELECT (SELECT array_agg(n.queue_id ORDER BY n.queue_id)
            FROM (SELECT DISTINCT c.queue_id FROM chosen c) n),
           (SELECT array_agg(n.taken ORDER BY n.queue_id)
            FROM (SELECT c.queue_id, count(*) AS taken FROM chosen c GROUP BY c.queue_id) n),
           (SELECT array_agg(ROW(n.action_id, n.priority, n.last_tag)::turnstile.turn_charge)
            FROM (SELECT c.action_id, c.priority, max(c.tag) AS last_tag FROM chosen c GROUP BY 1, 2) n)
    INTO queue_ids, quotas, charges;
    IF scarce IS NOT NULL THEN
        PERFORM turnstile.take_rooms(in_pool_id, scarce, queue_ids, quotas);
    END IF;
END
$$;

-- enter_turns: after a decision in a pool where not everything could start: notes which of these queues,
-- which the caller has locked, could start more, and when their actions have their next turns.
CREATE FUNCTION turnstile.enter_turns(
    in_pool_id bigint, in_queue_ids bigint[], in_lost_ids bigint[], in_charges turnstile.turn_charge[]
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    touched turnstile.turn_charge[];
    lost turnstile.turn_charge[];
    more_depth bigint;
    lost_depth bigint;
    next_times bigint[];
BEGIN
    WITH queues AS MATERIALIZED (
        SELECT q.id AS queue_id, q.action_id, q.version, q.ready_place AS old_place, w.place AS new_place
        FROM turnstile.current_queue q
        JOIN public.action a ON a.id = ANY (ARRAY[q.action_id]) AND a.pool_id = in_pool_id
        LEFT JOIN LATERAL (
            SELECT f.place FROM turnstile.first_waiting(q.id, q.head_id, q.heads, 1) f
        ) w ON q.depth > 0 AND NOT q.paused AND (q.max_concurrent IS NULL OR q.max_concurrent > q.held)
            AND a.served
               AND (a.route IS NULL OR NOT turnstile.is_closed(a.route, a.route_units))
        WHERE q.id = ANY (in_queue_ids)
    ),
    gone AS (
        DELETE FROM public.ready_queue r USING queues l
        WHERE r.action_id = ANY (ARRAY[l.action_id]) AND r.place BETWEEN l.old_place AND l.old_place
          AND l.old_place IS DISTINCT FROM l.new_place
        RETURNING r.place
    ),
    come AS (
        INSERT INTO public.ready_queue (action_id, place, queue_id)
        SELECT l.action_id, l.new_place, l.queue_id FROM queues l WHERE l.new_place IS NOT NULL
        ON CONFLICT DO NOTHING
        RETURNING place
    ),
    noted AS (
        UPDATE public.queue_state v SET ready_place = l.new_place FROM queues l
        WHERE v.queue_id = ANY (ARRAY[l.queue_id]) AND v.version BETWEEN l.version AND l.version
          AND l.old_place IS DISTINCT FROM l.new_place
    )
    SELECT (SELECT count(*) FROM come) - (SELECT count(*) FROM gone),
           (SELECT array_agg(ROW(n.action_id, turnstile.priority_of_place(n.place),
                                 n.place)::turnstile.turn_charge)
            FROM (
                SELECT l.action_id, l.new_place AS place FROM queues l WHERE l.new_place IS NOT NULL
                UNION
                SELECT l.action_id, l.old_place FROM queues l WHERE l.old_place IS NOT NULL
            ) n)
    INTO more_depth, touched;
    lost_depth := 0;
    IF cardinality(in_lost_ids) > 0 THEN
        WITH gone AS (
            DELETE FROM public.ready_queue r USING public.action a
            WHERE r.queue_id = ANY (in_lost_ids) AND a.id = r.action_id AND a.pool_id = in_pool_id
            RETURNING r.action_id, r.place
        )
        SELECT count(*),
               array_agg(ROW(g.action_id, turnstile.priority_of_place(g.place),
                             g.place)::turnstile.turn_charge)
        INTO lost_depth, lost FROM gone g;
    END IF;

    -- The turns, at the first places that are left.
    SELECT array_agg(greatest(v.tag,
                              (SELECT max(c.tag) FROM unnest(in_charges) c WHERE c.priority = v.priority))
                     ORDER BY v.priority)
    INTO next_times
    FROM turnstile.current_pool p CROSS JOIN LATERAL unnest(p.virtual_times) WITH ORDINALITY v(tag, priority)
    WHERE p.id = in_pool_id;
    WITH flow AS MATERIALIZED (
        SELECT n.action_id, n.priority, t.start_tag AS old_tag, t.place AS old_place, r.place,
               CASE WHEN p.fair
                    THEN greatest(t.start_tag, n.charged_tag + turnstile.step_of(p.weights, a.ref),
                                  next_times[n.priority])
                    ELSE greatest(turnstile.id_of_place(r.place), next_times[n.priority]) END AS new_tag
        FROM (
            SELECT m.action_id, m.priority, min(m.place) AS place, max(m.charged_tag) AS charged_tag
            FROM (
                SELECT c.action_id, c.priority, c.tag AS place, NULL::bigint AS charged_tag
                FROM unnest(touched || lost) c
                UNION ALL
                SELECT c.action_id, c.priority, NULL, c.tag FROM unnest(in_charges) c
            ) m GROUP BY m.action_id, m.priority
        ) n
        JOIN public.action a ON a.id = ANY (ARRAY[n.action_id])
        CROSS JOIN (SELECT p.* FROM turnstile.current_pool p WHERE p.id = in_pool_id) p
        LEFT JOIN LATERAL (
            SELECT f.start_tag, f.place FROM public.pool_turn f
            WHERE f.action_id = n.action_id AND f.priority = n.priority
              AND f.start_tag >= p.virtual_times[n.priority]
            ORDER BY f.start_tag DESC LIMIT 1
        ) t ON true
        LEFT JOIN LATERAL (
            SELECT q.place FROM public.ready_queue q
            WHERE q.action_id = n.action_id AND q.place >= least(n.place, t.place)
              AND q.place < (n.priority - 2)::bigint << 58
            ORDER BY q.place LIMIT 1
        ) r ON true
    ),
    kept AS (
        UPDATE public.pool_turn t SET place = f.place, pool_id = in_pool_id FROM flow f
        WHERE t.action_id = ANY (ARRAY[f.action_id]) AND t.priority = f.priority AND t.start_tag = f.old_tag
          AND f.new_tag = f.old_tag AND t.place IS DISTINCT FROM f.place
    ),
    spent AS (
        DELETE FROM public.pool_turn t USING flow f
        WHERE t.action_id = ANY (ARRAY[f.action_id]) AND t.priority = f.priority AND t.start_tag = f.old_tag
          AND f.new_tag <> f.old_tag
    ),
    following AS (
        INSERT INTO public.pool_turn (action_id, priority, start_tag, pool_id, place)
        SELECT f.action_id, f.priority, f.new_tag, in_pool_id, f.place FROM flow f
        -- An idle action needs no turn from the virtual time on.
        WHERE f.new_tag IS DISTINCT FROM f.old_tag
          AND (f.place IS NOT NULL OR f.new_tag > next_times[f.priority])
    )
    UPDATE public.pool_state v
    SET depth = greatest(v.depth + more_depth - lost_depth, 0), virtual_times = next_times,
        updated_at = clock_timestamp()
    FROM turnstile.current_pool p
    WHERE p.id = in_pool_id AND v.pool_id = ANY (ARRAY[p.id]) AND v.version BETWEEN p.version AND p.version
      AND (more_depth <> lost_depth OR cardinality(in_charges) > 0);
    IF more_depth > 0 THEN
        UPDATE public.worker_pool p SET waits = true WHERE p.id = in_pool_id AND NOT p.waits;
    END IF;
END
$$;

-- is_served: whether a live worker of its pool can run this action.
CREATE FUNCTION turnstile.is_served(in_action public.action)
RETURNS boolean
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    SELECT EXISTS (
        SELECT FROM turnstile.current_worker w
        WHERE in_action.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
          AND w.draining_at IS NULL AND w.lease_expires_at > clock_timestamp()
          AND (in_action.runner <> 'python' OR in_action.entrypoint IS NOT NULL OR w.served_refs IS NULL
               OR in_action.ref = ANY (w.served_refs)))
$$;

-- worker_slots_of: the concurrency of the live workers of a pool that are not draining, and their number.
CREATE FUNCTION turnstile.worker_slots_of(in_pool text)
RETURNS TABLE (places integer, processes integer)
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    SELECT coalesce(sum(w.concurrency), 0)::integer, count(*)::integer
    FROM turnstile.current_worker w
    WHERE in_pool = ANY (w.pools[1:100]) AND w.lost_at IS NULL AND w.stopped_at IS NULL
      AND w.draining_at IS NULL AND w.lease_expires_at > clock_timestamp()
$$;

-- create_pools: creates the pools with these names that are missing. A new pool has its capacity at once; in
-- a system without an executor that counts workers, no limit.
CREATE FUNCTION turnstile.create_pools(in_names text[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
BEGIN
    INSERT INTO worker_pool (name)
    SELECT n.name FROM unnest(in_names) n(name)
    WHERE (SELECT p.id FROM worker_pool p WHERE p.name = n.name) IS NULL
    ORDER BY 1
    ON CONFLICT DO NOTHING;
    INSERT INTO pool_state (pool_id, version, capacity, places, lead, leaving, held, depth, virtual_times,
                            total_released, updated_at)
    SELECT p.id, 1,
           CASE WHEN EXISTS (SELECT FROM turnstile.current_pool c WHERE c.capacity IS NOT NULL)
                THEN n.places + n.processes END,
           n.places, n.processes, 0, 0, 0, '{0,0,0,0,0}', 0, clock_timestamp()
    FROM worker_pool p
    CROSS JOIN LATERAL turnstile.worker_slots_of(p.name) n
    WHERE p.name = ANY (in_names)
      AND (SELECT v.pool_id FROM pool_state v WHERE v.pool_id = p.id LIMIT 1) IS NULL
    ON CONFLICT DO NOTHING;
END
$$;

-- assign_pools: gives actions that were stored their pools. The caller has locked the actions.
CREATE FUNCTION turnstile.assign_pools(in_action_ids bigint[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    moved_ids bigint[];
    unserved_ids bigint[];
    held_ids bigint[];
BEGIN
    PERFORM turnstile.create_pools(ARRAY(SELECT DISTINCT a.pool FROM action a
                                         WHERE a.id = ANY (in_action_ids)));

    moved_ids := ARRAY(
        SELECT a.id FROM action a JOIN worker_pool p ON p.name = a.pool
        WHERE a.id = ANY (in_action_ids) AND a.pool_id <> p.id);
    IF cardinality(moved_ids) > 0 THEN
        PERFORM 1 FROM worker_pool p
        WHERE p.id = ANY (ARRAY(SELECT a.pool_id FROM action a WHERE a.id = ANY (moved_ids)))
        ORDER BY p.id FOR NO KEY UPDATE;
        -- The queues enter the turns of their new pool when they are granted.
        DELETE FROM pool_turn t WHERE t.action_id = ANY (moved_ids);
        WITH gone AS (DELETE FROM ready_queue r WHERE r.action_id = ANY (moved_ids) RETURNING r.action_id),
        counted AS (
            SELECT a.pool_id, count(*) AS queues FROM gone g JOIN action a ON a.id = g.action_id
            GROUP BY a.pool_id
        )
        UPDATE pool_state v SET depth = greatest(v.depth - c.queues, 0), updated_at = clock_timestamp()
        FROM counted c JOIN turnstile.current_pool p ON p.id = c.pool_id
        WHERE v.pool_id = ANY (ARRAY[p.id]) AND v.version BETWEEN p.version AND p.version;
    END IF;
    unserved_ids := ARRAY(
        SELECT a.id FROM action a JOIN turnstile.current_pool p ON p.name = a.pool
        WHERE a.id = ANY (in_action_ids) AND p.capacity IS NOT NULL AND NOT turnstile.is_served(a));
    held_ids := turnstile.leave_gates(ARRAY(SELECT a.id FROM action a
                                            WHERE a.id = ANY (unserved_ids) AND a.served));
    UPDATE action a SET pool_id = p.id, served = a.id <> ALL (unserved_ids) OR a.id = ANY (held_ids)
    FROM worker_pool p
    WHERE a.id = ANY (in_action_ids) AND p.name = a.pool;
END
$$;

-- mark_served: marks which actions a live worker serves now. Returns the actions that have one again.
CREATE FUNCTION turnstile.mark_served()
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    served_ids bigint[];
    unserved_ids bigint[];
    held_ids bigint[];
BEGIN
    -- Rows that another session holds are corrected by the next call. A worker's account writes its own row,
    -- so its pools and actions are read up to a bound.
    WITH live AS MATERIALIZED (
        SELECT w.pools[1:100] AS pools, w.served_refs[1:10000] AS refs, w.served_refs IS NULL AS serves_all
        FROM turnstile.current_worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
          AND w.lease_expires_at > clock_timestamp()
    ),
    manned AS MATERIALIZED (
        SELECT p.pool, bool_or(l.serves_all) AS serves_all
        FROM live l CROSS JOIN LATERAL unnest(l.pools) p(pool) GROUP BY p.pool
    ),
    listed AS MATERIALIZED (
        SELECT DISTINCT p.pool, r.ref
        FROM live l CROSS JOIN LATERAL unnest(l.pools) p(pool) CROSS JOIN LATERAL unnest(l.refs) r(ref)
    ),
    wrong AS MATERIALIZED (
        SELECT a.id, NOT a.served AS is_served
        FROM action a
        LEFT JOIN manned m ON m.pool = a.pool
        LEFT JOIN listed s ON s.pool = a.pool AND s.ref = a.ref
        WHERE a.deleted_at IS NULL
          AND a.served IS DISTINCT FROM (
              m.pool IS NOT NULL
              AND (m.serves_all OR a.runner <> 'python' OR a.entrypoint IS NOT NULL OR s.ref IS NOT NULL))
    ),
    locked AS (
        SELECT a.id, w.is_served FROM wrong w JOIN action a ON a.id = w.id ORDER BY a.id
        FOR NO KEY UPDATE OF a SKIP LOCKED
    )
    SELECT array_agg(l.id) FILTER (WHERE l.is_served), array_agg(l.id) FILTER (WHERE NOT l.is_served)
    INTO served_ids, unserved_ids FROM locked l;
    IF unserved_ids IS NOT NULL THEN
        held_ids := turnstile.leave_gates(unserved_ids);
    END IF;
    UPDATE action a SET served = NOT a.served
    WHERE a.id = ANY (served_ids || unserved_ids) AND a.id <> ALL (coalesce(held_ids, '{}'));
    RETURN served_ids;
END
$$;

-- refresh_pools: brings the capacities of the pools, and which actions are served, to what the workers are
-- now. Returns queues that may go on. `workers` names the workers that were counted, and `in_workers` those
-- of the last call: for the same workers, and without `in_recounts`, only the leads are set. `totals` are the
-- worker slots that each pool took back so far, its lead, and whether something waits for one or more than
-- half of them are taken, by id.
--
-- `in_recounts`: also counts the held worker slots again, and those of leaving workers, and repairs what
-- lacks a turn.
CREATE FUNCTION turnstile.refresh_pools(
    in_workers text, in_pool_ids bigint[], in_leads integer[], in_recounts boolean,
    OUT workers text, OUT totals jsonb, OUT more_queue_ids bigint[], OUT repaired integer
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    is_complete boolean;
    served_ids bigint[];
    busy_ids bigint[];
    locked_ids bigint[];
    excesses turnstile.gate_change[];
BEGIN
    repaired := 0;
    -- A pool with a capacity says that an executor counts workers, so that a new pool has a limit at once.
    IF NOT EXISTS (SELECT FROM worker_pool) THEN
        PERFORM turnstile.create_pools(ARRAY['default']);
    END IF;
    workers := (
        SELECT coalesce(md5(string_agg(w.id, ',' ORDER BY w.id)), '') FROM turnstile.current_worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
          AND w.lease_expires_at > clock_timestamp());
    -- While workers leave, the end of each of their runs makes the pool smaller.
    is_complete := in_recounts OR workers IS DISTINCT FROM in_workers
        OR EXISTS (SELECT FROM turnstile.current_pool p WHERE p.capacity IS NULL OR p.leaving > 0);
    IF is_complete THEN
        served_ids := turnstile.mark_served();
    END IF;

    busy_ids := turnstile.pools_with_busy_sets();
    -- The common case: the same workers, at the same pace.
    IF is_complete OR cardinality(in_pool_ids || busy_ids) > 0 THEN
        locked_ids := turnstile.lock_pools(
            CASE WHEN is_complete THEN ARRAY(SELECT p.id FROM worker_pool p) ELSE in_pool_ids || busy_ids END,
            true);
    END IF;
    IF cardinality(locked_ids) > 0 THEN
        PERFORM turnstile.raise_turns(locked_ids);
        IF is_complete THEN
            PERFORM turnstile.find_worker_sets(locked_ids);
        END IF;
        excesses := turnstile.count_worker_sets(locked_ids);
        WITH slots AS MATERIALIZED (
            SELECT s.pool_id, count(*) AS held,
                   count(*) FILTER (
                       WHERE s.finished_at IS NULL
                         AND CASE WHEN s.worker_id IS NULL THEN NOT a.served
                                  ELSE (w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
                                        AND w.lease_expires_at > clock_timestamp()) IS NOT TRUE END
                   ) AS leaving
            FROM turnstile.live_slot s
            LEFT JOIN turnstile.current_worker w ON w.id = s.worker_id
            JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
            JOIN action a ON a.id = ANY (ARRAY[q.action_id])
            WHERE is_complete AND s.pool_id IS NOT NULL
            GROUP BY s.pool_id
        ),
        pool AS MATERIALIZED (
            SELECT p.*, n.places AS new_places,
                   CASE WHEN n.places = 0 THEN 0 ELSE n.wanted END AS new_lead,
                   -- What its workers cannot take yet takes nothing from others.
                   CASE WHEN is_complete THEN coalesce(o.leaving, 0) ELSE p.leaving END
                   + CASE WHEN is_complete OR p.leaving = 0 THEN coalesce(x.held, 0)
                          ELSE 0 END AS new_leaving,
                   p.depth + coalesce(x.depth, 0) AS new_depth,
                   CASE WHEN is_complete THEN coalesce(o.held, 0) ELSE p.held END AS new_held
            FROM turnstile.current_pool p
            CROSS JOIN LATERAL (
                SELECT l.places, greatest(l.processes, coalesce((
                           SELECT i.lead FROM unnest(in_pool_ids, in_leads) i(id, lead) WHERE i.id = p.id),
                                                                p.lead))::integer AS wanted
                FROM turnstile.worker_slots_of(p.name) l
            ) n
            LEFT JOIN slots o ON o.pool_id = p.id
            LEFT JOIN unnest(excesses) x ON x.gate_id = p.id
            WHERE p.id = ANY (locked_ids)
        ),
        changed AS MATERIALIZED (
            SELECT * FROM pool p
            WHERE p.capacity IS NULL OR p.held <> p.new_held
               OR (p.places, p.lead, p.leaving, p.depth) <> (p.new_places, p.new_lead, p.new_leaving,
                                                             p.new_depth)
        ),
        written AS (
            INSERT INTO pool_state (pool_id, version, capacity, places, lead, leaving, held, depth,
                                    virtual_times, total_released, updated_at)
            SELECT c.id, c.version + 1,
                   turnstile.capacity_of(c.paused, c.new_places, c.new_lead, c.new_leaving), c.new_places,
                   c.new_lead, c.new_leaving,
                   c.new_held, c.new_depth, c.virtual_times, c.total_released, clock_timestamp()
            FROM changed c
        ),
        replaced AS (
            DELETE FROM pool_state v USING changed c
            WHERE v.pool_id = ANY (ARRAY[c.id]) AND v.version BETWEEN c.version AND c.version
        )
        SELECT count(*) FILTER (WHERE c.held <> c.new_held) INTO repaired FROM changed c;
    END IF;

    IF in_recounts THEN
        DELETE FROM pool_turn t USING turnstile.current_pool p
        WHERE p.id = ANY (locked_ids) AND t.pool_id = p.id AND t.place IS NULL
          AND t.start_tag <= p.virtual_times[t.priority];
    END IF;
    totals := (
        SELECT jsonb_object_agg(p.id,
                                jsonb_build_array(p.total_released, p.lead, p.depth > 0
                                                  OR (p.held * 2 > p.capacity) IS TRUE))
        FROM turnstile.current_pool p);
    IF cardinality(locked_ids) > 0 THEN
        more_queue_ids := turnstile.queues_with_room(locked_ids) ;
    END IF;
    IF served_ids IS NULL THEN
        RETURN;
    END IF;
    more_queue_ids := more_queue_ids || ARRAY(
        SELECT q.id
        FROM action_queue n
        JOIN turnstile.current_queue q ON q.id = n.id
        WHERE n.action_id = ANY (served_ids) AND q.depth > 0 AND NOT q.paused
        ORDER BY q.id LIMIT 1000);
END
$$;
