-- Gates after the queue: totals, resources, and the lists of executions that wait for a rate or a worker slot
-- of their pool (docs/gates.md).
--
-- An execution that has its slot in the queue passes the gates of its route, in one global order: the gate of
-- its action, its resources by rank and name, the pool. At each it waits in a list until it is first and its
-- units are free, and it keeps the units until its settle. At the last gate it is granted.
--
-- The row of a gate is its lock. Gates are locked after the queues, in ascending id, and nothing locks a
-- queue after a gate. An execution that waits at a gate is moved, granted or removed only under the locks of
-- the gates; one that waits in its queue, only under the lock of the queue.

-- is_closed: whether no release of units can help at one of these gates.
CREATE FUNCTION turnstile.is_closed(in_route bigint[], in_units integer[])
RETURNS boolean
LANGUAGE sql
STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM unnest(in_route, in_units) r(gate_id, units)
        JOIN public.gate g ON g.id = ANY (ARRAY[r.gate_id])
        WHERE g.paused OR g.capacity < r.units)
$$;

-- has_to_return: whether an execution that waits at this gate has to return to its queue: no live worker
-- serves its action, its route is closed or has changed, or its queue is paused.
CREATE FUNCTION turnstile.has_to_return(
    in_served boolean, in_route bigint[], in_route_units integer[], in_queue_id bigint, in_gate_ids bigint[],
    in_gate_units integer[], in_gate_id bigint
)
RETURNS boolean
LANGUAGE sql
STABLE
AS $$
    SELECT NOT in_served
        OR in_route[1 : cardinality(in_gate_ids) + 1] IS DISTINCT FROM in_gate_ids || in_gate_id
        OR in_route_units[1 : cardinality(in_gate_ids)] IS DISTINCT FROM in_gate_units
        OR turnstile.is_closed(in_route, in_route_units)
        OR (SELECT q.paused OR coalesce(q.max_concurrent = 0, false) FROM public.action_queue q
            WHERE q.id = in_queue_id)
$$;

-- close_routes: after a pause or a lower limit of these queues, which the caller has locked: their executions
-- that wait at later gates return (`advance_gates`), and pass nothing until then. Locks the gates.
CREATE FUNCTION turnstile.close_routes(in_queue_ids bigint[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    closed_ids bigint[] := ARRAY(
        SELECT DISTINCT r.gate_id
        FROM action_queue q
        JOIN action a ON a.id = ANY (ARRAY[q.action_id]) AND a.route IS NOT NULL
        CROSS JOIN unnest(a.route) r(gate_id)
        WHERE q.id = ANY (in_queue_ids) AND (q.paused OR q.max_concurrent = 0)
          AND EXISTS (SELECT FROM waiting w WHERE w.queue_id = q.id));
BEGIN
    IF cardinality(closed_ids) > 0 THEN
        PERFORM 1 FROM gate g WHERE g.id = ANY (closed_ids) ORDER BY g.id FOR NO KEY UPDATE;
        PERFORM turnstile.start_return(closed_ids);
    END IF;
END
$$;

-- start_return: notes that executions have to return from these gates, which the caller has locked. A gate
-- that has just closed keeps its note, because executions have to return from its neighbours too.
CREATE FUNCTION turnstile.start_return(in_gate_ids bigint[])
RETURNS void
LANGUAGE sql
AS $$
    UPDATE public.gate g SET returning_from = -9223372036854775807
    WHERE g.id = ANY (in_gate_ids) AND g.returning_from IS DISTINCT FROM -9223372036854775808
$$;

-- leave_gates: these actions, which the caller has locked, lose their last worker: their executions return
-- from their gates. Returns the actions of which another session holds a gate: they have to count as served
-- until the next check.
CREATE FUNCTION turnstile.leave_gates(in_action_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    locked_ids bigint[] := ARRAY(
        SELECT g.id FROM gate g
        WHERE g.id = ANY (ARRAY(SELECT r.id FROM action a CROSS JOIN unnest(a.route) r(id)
                                WHERE a.id = ANY (in_action_ids)))
        ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED);
    held_ids bigint[] := ARRAY(
        SELECT a.id FROM action a
        WHERE a.id = ANY (in_action_ids) AND NOT coalesce(a.route, '{}') <@ locked_ids);
BEGIN
    PERFORM turnstile.start_return(ARRAY(
        SELECT r.id FROM action a CROSS JOIN unnest(a.route) r(id)
        WHERE a.id = ANY (in_action_ids) AND a.id <> ALL (held_ids)));
    RETURN held_ids;
END
$$;

-- lock_gates: locks the gates that a release by these queues or executions concerns: those of their routes,
-- those that the executions hold or wait at, and all gates of the actions that pass any of them. Returns null
-- if there are none.
--
-- The caller has locked the queues, and skips `in_blocked_queue_ids`. If a gate of a suspect queue (see
-- `lock_queues`) is held by another session, the queues that need it are returned as blocked.
CREATE FUNCTION turnstile.lock_gates(
    in_queue_ids bigint[],
    in_blocked_queue_ids bigint[] DEFAULT '{}',
    in_execution_ids bigint[] DEFAULT NULL,
    in_suspect_ids bigint[] DEFAULT '{}',
    OUT gate_ids bigint[],
    OUT busy_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    concerned_ids bigint[];
    wanted_ids bigint[];
    locked_ids bigint[];
    tries_left integer := CASE WHEN in_suspect_ids IS NULL THEN 5 ELSE 1 END;
BEGIN
    busy_queue_ids := '{}';
    IF NOT EXISTS (SELECT FROM gate) THEN
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT n.queue_id), array_agg(DISTINCT n.gate_id) INTO concerned_ids, wanted_ids
    FROM (
        SELECT q.id AS queue_id, r.gate_id
        FROM action_queue q
        JOIN action a ON a.id = ANY (ARRAY[q.action_id]) AND a.route IS NOT NULL
        CROSS JOIN unnest(a.route) r(gate_id)
        WHERE q.id = ANY (in_queue_ids)
        UNION ALL
        SELECT h.queue_id, h.gate_id FROM turnstile.gates_of(in_execution_ids) h
    ) n
    WHERE n.queue_id <> ALL (in_blocked_queue_ids);
    IF wanted_ids IS NULL THEN
        RETURN;
    END IF;
    wanted_ids := turnstile.neighbouring_gates(wanted_ids);

    IF in_suspect_ids IS NULL OR in_suspect_ids && concerned_ids THEN
        LOOP
            locked_ids := ARRAY(
                SELECT g.id FROM gate g WHERE g.id = ANY (wanted_ids) ORDER BY g.id
                FOR NO KEY UPDATE SKIP LOCKED);
            tries_left := tries_left - 1;
            EXIT WHEN tries_left = 0 OR cardinality(locked_ids) = cardinality(wanted_ids);
            PERFORM pg_sleep(0.01);
        END LOOP;
        IF EXISTS (SELECT FROM gate g WHERE g.id = ANY (wanted_ids) AND g.id <> ALL (locked_ids)) THEN
            busy_queue_ids := concerned_ids;
            RETURN;
        END IF;
    ELSE
        locked_ids := ARRAY(SELECT g.id FROM gate g WHERE g.id = ANY (wanted_ids) ORDER BY g.id
                            FOR NO KEY UPDATE);
    END IF;
    -- A change of definitions came first.
    IF EXISTS (
           SELECT FROM action_queue q JOIN action a ON a.id = ANY (ARRAY[q.action_id])
           -- Only what grants in these queues needs their routes.
           WHERE q.id = ANY (in_queue_ids) AND q.id = ANY (concerned_ids)
             AND NOT coalesce(a.route, '{}') <@ locked_ids)
       -- Read by execution before it is filtered: read by queue, it costs a scan of the queue for each
       -- execution.
       OR EXISTS (SELECT FROM (SELECT * FROM turnstile.gates_of(in_execution_ids) OFFSET 0) h
                  WHERE h.queue_id = ANY (concerned_ids) AND h.gate_id <> ALL (locked_ids))
    THEN
        RAISE EXCEPTION 'the gates of an action changed before they were locked'
            USING ERRCODE = 'serialization_failure', HINT = 'Repeat the statement.';
    END IF;
    gate_ids := locked_ids;
END
$$;

-- gates_of: the gates where these executions hold units or wait.
CREATE FUNCTION turnstile.gates_of(in_execution_ids bigint[])
RETURNS TABLE (queue_id bigint, gate_id bigint)
LANGUAGE sql
STABLE
AS $$
    SELECT s.queue_id, g.id FROM public.slot s CROSS JOIN unnest(s.gate_ids) g(id)
    WHERE s.execution_id = ANY (in_execution_ids)
    UNION ALL
    SELECT u.queue_id, g.id FROM public.unpublished_completion u CROSS JOIN unnest(u.gate_ids) g(id)
    WHERE u.execution_id = ANY (in_execution_ids)
    UNION ALL
    SELECT w.queue_id, g.id
    FROM public.execution e
    CROSS JOIN LATERAL (
        -- One by one: a join would read all that wait at later gates while these are few, or seem to be.
        SELECT n.queue_id, n.line_id, n.gate_ids FROM public.waiting n
        WHERE n.queue_id = e.queue_id
          AND n.place BETWEEN turnstile.place_of(e.priority, e.id) AND turnstile.place_of(e.priority, e.id)
        OFFSET 0
    ) w
    CROSS JOIN LATERAL (
        SELECT unnest(w.gate_ids)
        UNION ALL
        SELECT coalesce((SELECT f.gate_id FROM public.gate_flow f WHERE f.id = w.line_id), w.line_id)
    ) g(id)
    WHERE e.id = ANY (in_execution_ids)
$$;

-- neighbouring_gates: these gates, and all gates of the actions that pass one of them. A list of a pool has
-- no neighbours but the rates of all its actions, any of which a decision there may need.
CREATE FUNCTION turnstile.neighbouring_gates(in_gate_ids bigint[])
RETURNS bigint[]
LANGUAGE sql
STABLE
AS $$
    WITH near AS MATERIALIZED (
        SELECT g.id FROM unnest(in_gate_ids) g(id)
        UNION
        SELECT r.gate_id FROM public.action a CROSS JOIN unnest(a.route) r(gate_id)
        WHERE a.route IS NOT NULL
          AND a.route && ARRAY(SELECT g.id FROM public.gate g
                               WHERE g.id = ANY (in_gate_ids) AND g.kind <> 'pool')
    ),
    pool AS MATERIALIZED (
        SELECT g.id FROM near n JOIN public.gate g ON g.id = ANY (ARRAY[n.id]) WHERE g.kind = 'pool'
    )
    SELECT ARRAY(
        SELECT n.id FROM near n
        UNION
        SELECT r.gate_id FROM public.action a CROSS JOIN unnest(a.route) r(gate_id)
        JOIN public.gate g ON g.id = ANY (ARRAY[r.gate_id]) AND g.rate_starts IS NOT NULL
        WHERE a.route IS NOT NULL AND EXISTS (SELECT FROM pool p WHERE p.id = ANY (a.route)))
$$;

-- weight_of: the weight of a flow: of a key at the gate of an action, of an action at a resource.
CREATE FUNCTION turnstile.weight_of(in_gate_id bigint, in_action_id bigint, in_queue_id bigint)
RETURNS integer
LANGUAGE sql
STABLE
AS $$
    SELECT coalesce(
        CASE g.kind
        WHEN 'action' THEN (
            SELECT k.weight FROM public.action_queue q
            JOIN public.key_override k ON k.action_id = q.action_id AND k.concurrency_key = q.concurrency_key
            WHERE q.id = in_queue_id)
        WHEN 'resource' THEN (
            SELECT (u.use ->> 'weight')::integer FROM public.action a
            CROSS JOIN jsonb_array_elements(a.uses) u(use)
            WHERE a.id = in_action_id AND u.use ->> 'resource' = g.name)
        END, 1)
    FROM public.gate g WHERE g.id = in_gate_id
$$;

-- sum_changes: one change per gate.
CREATE FUNCTION turnstile.sum_changes(in_changes turnstile.gate_change[])
RETURNS turnstile.gate_change[]
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT array_agg(ROW(n.gate_id, n.held, n.depth)::turnstile.gate_change)
    FROM (
        SELECT c.gate_id, sum(c.held)::bigint AS held, sum(c.depth)::bigint AS depth
        FROM unnest(in_changes) c GROUP BY c.gate_id
    ) n
$$;

-- is_plain_line: whether this gate is the list of a pool, on a route without a rate.
CREATE FUNCTION turnstile.is_plain_line(in_gate_id bigint, in_route bigint[])
RETURNS boolean
LANGUAGE sql
STABLE
AS $$
    SELECT EXISTS (SELECT FROM public.gate g WHERE g.id = in_gate_id AND g.kind = 'pool')
       AND NOT EXISTS (SELECT FROM public.gate g WHERE g.id = ANY (in_route) AND g.rate_starts IS NOT NULL)
$$;

-- arrived_at_queue: when an execution that was queued at this instant last arrived in its queue: it may have
-- returned there from a later gate.
CREATE FUNCTION turnstile.arrived_at_queue(in_execution_id bigint, in_queued_at timestamptz)
RETURNS timestamptz
LANGUAGE sql
STABLE
AS $$
    SELECT greatest(in_queued_at,
                    (SELECT r.returned_at FROM public.gate_return r WHERE r.execution_id = in_execution_id))
$$;

-- gates_history: what an attempt held, for the history of its execution. Null for a slot without gates. The
-- list of the pool is a step only for who took a start of a rate there.
CREATE FUNCTION turnstile.gates_history(
    in_execution_id bigint, in_queued_at timestamptz, in_gate_ids bigint[], in_gate_units integer[],
    in_passed_ats timestamptz[]
)
RETURNS jsonb
LANGUAGE sql
STABLE
AS $$
    SELECT CASE WHEN in_gate_ids IS NOT NULL THEN (
        SELECT jsonb_agg(jsonb_build_object(
                   'gate', CASE WHEN p.rank = 1 THEN 'queue' ELSE (
                       SELECT CASE g.kind WHEN 'action' THEN 'total'
                                   WHEN 'resource' THEN 'resource ' || g.name
                                          ELSE 'rate' END
                       FROM public.gate g WHERE g.id = in_gate_ids[p.rank - 1]) END,
                   'units', CASE WHEN p.rank = 1 THEN 1 ELSE in_gate_units[p.rank - 1] END,
                   'arrived_at', CASE WHEN p.rank = 1
                                      THEN turnstile.arrived_at_queue(in_execution_id, in_queued_at)
                                      ELSE in_passed_ats[p.rank - 1] END,
                   'passed_at', p.at) ORDER BY p.rank)
        FROM unnest(in_passed_ats) WITH ORDINALITY p(at, rank)
        WHERE p.rank = 1 OR NOT turnstile.is_plain_line(in_gate_ids[p.rank - 1], in_gate_ids)) END
$$;

-- change_gates: writes the next versions of the states of these gates, which the caller has locked.
CREATE FUNCTION turnstile.change_gates(in_changes turnstile.gate_change[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    WITH state AS MATERIALIZED (
        SELECT v.*, c.held AS more_held, c.depth AS more_depth
        FROM unnest(turnstile.sum_changes(in_changes)) c
        CROSS JOIN LATERAL (
            SELECT * FROM gate_state v WHERE v.gate_id = c.gate_id ORDER BY v.version DESC LIMIT 1
        ) v
    ),
    written AS (
        INSERT INTO gate_state (gate_id, version, held, depth, head_id, heads, virtual_times, starts_taken,
                                updated_at)
        SELECT s.gate_id, s.version + 1, s.held + s.more_held, s.depth + s.more_depth, s.head_id, s.heads,
               s.virtual_times, s.starts_taken, clock_timestamp()
        FROM state s
    )
    DELETE FROM gate_state v USING state s
    WHERE v.gate_id = ANY (ARRAY[s.gate_id]) AND v.version BETWEEN s.version AND s.version;
END
$$;

-- pass_gates: applies these changes, lets these executions go on from their queues, and lets everything pass
-- that can: from the first gate to the last, at each in its order. One round is enough: passing a gate
-- releases nothing.
--
-- The caller has locked the gates in an earlier statement. Returns what passed its last gate.
CREATE FUNCTION turnstile.pass_gates(
    in_gate_ids bigint[],
    in_changes turnstile.gate_change[],
    in_passages turnstile.passage[],
    in_now timestamptz
)
RETURNS turnstile.granted[]
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    gate record;
    moving turnstile.passage[] := coalesce(in_passages, '{}');
    arrived turnstile.passage[];
    passed turnstile.passage[];
    ended turnstile.passage[] := '{}';
    next_state gate_state;
    result record;
    has_changed boolean;
    -- Nothing passes where a pause or a lower capacity has closed a route and its executions have not
    -- returned yet.
    are_returning boolean := EXISTS (
        SELECT FROM gate g WHERE g.id = ANY (in_gate_ids) AND (g.paused OR g.returning_from IS NOT NULL));
    granted turnstile.granted[];
    worker_slot_changes turnstile.gate_change[];
    free turnstile.free_place;
BEGIN
    FOR gate IN
        SELECT g.* FROM turnstile.current_gate g WHERE g.id = ANY (in_gate_ids)
        ORDER BY array_position(ARRAY['action', 'resource', 'pool'], g.kind), g.rank NULLS LAST, g.name
    LOOP
        SELECT coalesce(array_agg(m) FILTER (WHERE is_here), '{}'),
               coalesce(array_agg(m) FILTER (WHERE NOT is_here), '{}')
        INTO arrived, moving
        FROM unnest(moving) m
        JOIN action a ON a.id = ANY (ARRAY[m.action_id])
        CROSS JOIN LATERAL (SELECT a.route[cardinality(m.gate_ids) + 1] = gate.id) here(is_here);

        SELECT gate.id, gate.version + 1, gate.held + coalesce(sum(c.held), 0),
               gate.depth + coalesce(sum(c.depth), 0) + cardinality(arrived), gate.head_id, gate.heads,
               gate.virtual_times, gate.starts_taken, NULL, in_now
        INTO next_state
        FROM unnest(in_changes) c WHERE c.gate_id = gate.id;
        has_changed := cardinality(arrived) > 0 OR next_state.held <> gate.held
            OR next_state.depth <> gate.depth;
        CONTINUE WHEN NOT has_changed AND gate.depth = 0;
        passed := '{}';
        free := CASE WHEN gate.kind = 'pool' AND next_state.depth > 0
                         THEN turnstile.free_worker_slots(gate.name, ended) END;
        IF gate.kind = 'pool' AND gate.depth = 0 AND free.rival_tag IS NULL
            AND free.places >= cardinality(arrived)
           AND NOT EXISTS (
               SELECT FROM unnest(arrived) m JOIN action a ON a.id = ANY (ARRAY[m.action_id])
               JOIN gate g ON g.id = ANY (a.route) AND g.rate_starts IS NOT NULL)
        THEN
            -- The common case: nothing waits, and each has a worker slot.
            passed := ARRAY(
                SELECT ROW(m.execution_id, m.action_id, m.queue_id, m.place, m.gate_ids || gate.id,
                           m.gate_units || 1,
                           m.passed_ats || in_now)::turnstile.passage
                FROM unnest(arrived) m);
            next_state.held := next_state.held + cardinality(passed);
            next_state.depth := next_state.depth - cardinality(passed);
        ELSIF cardinality(arrived) > 0 THEN
            SELECT e.* INTO next_state
            FROM turnstile.enter_lines(gate.fair, gate.kind, next_state, arrived) e;
        END IF;
        IF next_state.depth > 0 AND NOT gate.paused
           AND (gate.kind = 'pool' OR gate.capacity IS NULL OR gate.capacity > next_state.held)
        THEN
            IF gate.kind = 'pool' THEN
                SELECT p.state, p.passed INTO result
                FROM turnstile.pass_pool(
                    next_state, in_now, in_gate_ids, free) p;
            ELSIF gate.fair THEN
                SELECT p.state, p.passed INTO result
                FROM turnstile.pass_in_turns(gate.capacity, next_state, in_now, are_returning, in_gate_ids) p;
            ELSE
                SELECT p.state, p.passed INTO result
                FROM turnstile.pass_by_arrival(gate.capacity, next_state, in_now, are_returning,
                                               in_gate_ids) p;
            END IF;
            next_state := result.state;
            passed := coalesce(result.passed, '{}');
        END IF;
        CONTINUE WHEN NOT has_changed AND coalesce(cardinality(passed), 0) = 0;
        INSERT INTO gate_state SELECT next_state.*;
        DELETE FROM gate_state v
        WHERE v.gate_id = gate.id AND v.version BETWEEN gate.version AND gate.version;
        SELECT ended || coalesce(array_agg(p) FILTER (WHERE is_last), '{}'),
               moving || coalesce(array_agg(p) FILTER (WHERE NOT is_last), '{}')
        INTO ended, moving
        FROM unnest(passed) p
        JOIN action a ON a.id = ANY (ARRAY[p.action_id])
        CROSS JOIN LATERAL (SELECT cardinality(a.route) = cardinality(p.gate_ids)) last(is_last);
    END LOOP;
    IF cardinality(moving) > 0 THEN
        RAISE EXCEPTION 'the gates of an action changed before they were locked'
            USING ERRCODE = 'serialization_failure', HINT = 'Repeat the statement.';
    END IF;
    IF cardinality(ended) = 0 THEN
        RETURN NULL;
    END IF;
    WITH started AS MATERIALIZED (
        SELECT p.*, e.attempt + 1 AS attempt, e.traceparent, a.ref, a.pool, a.pool_id,
               extract(epoch FROM in_now - e.queued_at)::double precision AS waited_seconds
        FROM unnest(ended) p
        JOIN execution e ON e.id = ANY (ARRAY[p.execution_id])
        JOIN action a ON a.id = ANY (ARRAY[p.action_id])
        ORDER BY p.place
    ),
    new_slot AS (
        INSERT INTO slot (execution_id, queue_id, attempt, granted_at, offered_at, gate_ids, gate_units,
                          passed_ats, pool_id)
        SELECT s.execution_id, s.queue_id, s.attempt, in_now, in_now, s.gate_ids, s.gate_units, s.passed_ats,
               s.pool_id
        FROM started s
    )
    SELECT array_agg(ROW(s.execution_id, s.attempt, s.ref, s.pool, s.traceparent,
                         s.waited_seconds)::turnstile.granted
                     ORDER BY s.place),
           array_agg(ROW(s.pool_id, 1, 0)::turnstile.gate_change) FILTER (WHERE s.pool_id IS NOT NULL)
    INTO granted, worker_slot_changes FROM started s;
    -- They have taken worker slots of their pool in its list.
    IF worker_slot_changes IS NOT NULL THEN
        PERFORM turnstile.change_worker_slots(worker_slot_changes, turnstile.lock_pools(
            ARRAY(SELECT c.gate_id FROM unnest(worker_slot_changes) c), true));
    END IF;
    RETURN granted;
END
$$;

-- enter_lines: puts these executions into the lists of a gate, and lowers the bounds where its lists are read
-- from.
CREATE FUNCTION turnstile.enter_lines(
    in_fair boolean, in_kind text, in_state gate_state, in_arrived turnstile.passage[]
)
RETURNS gate_state
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    has_turns boolean := in_fair OR in_kind = 'pool';
    places bigint[] := ARRAY(SELECT m.place FROM unnest(in_arrived) m);
BEGIN
    IF has_turns THEN
        INSERT INTO gate_flow (gate_id, flow_id)
        SELECT DISTINCT in_state.gate_id, CASE in_kind WHEN 'action' THEN m.queue_id ELSE m.action_id END
        FROM unnest(in_arrived) m
        ON CONFLICT DO NOTHING;
    ELSE
        in_state.head_id := least(in_state.head_id, (SELECT min(p) FROM unnest(places) p
                                                      WHERE turnstile.priority_of_place(p) = 3));
        in_state.heads := turnstile.lower_heads(in_state.heads, turnstile.first_places(places));
    END IF;
    INSERT INTO waiting (line_id, place, queue_id, gate_ids, gate_units, passed_ats)
    SELECT CASE WHEN has_turns THEN f.id ELSE in_state.gate_id END, m.place, m.queue_id, m.gate_ids,
           m.gate_units, m.passed_ats
    FROM unnest(in_arrived) m
    LEFT JOIN gate_flow f ON has_turns AND f.gate_id = in_state.gate_id
        AND f.flow_id = CASE in_kind WHEN 'action' THEN m.queue_id ELSE m.action_id END;
    IF has_turns THEN
        WITH arrival AS (
            SELECT f.id AS line_id, turnstile.priority_of_place(m.place) AS priority, min(m.place) AS place
            FROM unnest(in_arrived) m
            JOIN gate_flow f ON f.gate_id = in_state.gate_id
                AND f.flow_id = CASE in_kind WHEN 'action' THEN m.queue_id ELSE m.action_id END
            GROUP BY f.id, turnstile.priority_of_place(m.place)
        ),
        turn AS MATERIALIZED (
            SELECT n.*, t.start_tag, t.place AS first_place
            FROM arrival n
            LEFT JOIN LATERAL (
                SELECT c.start_tag, c.place FROM flow_turn c
                WHERE c.line_id = n.line_id AND c.priority = n.priority
                  AND c.start_tag >= coalesce(in_state.heads[n.priority], in_state.virtual_times[n.priority])
                ORDER BY c.start_tag DESC LIMIT 1
            ) t ON true
        ),
        moved AS (
            UPDATE flow_turn c SET place = t.place FROM turn t
            WHERE c.line_id = ANY (ARRAY[t.line_id]) AND c.priority = t.priority AND c.start_tag = t.start_tag
              AND (c.place IS NULL OR c.place > t.place)
        )
        INSERT INTO flow_turn (gate_id, line_id, priority, start_tag, place)
        SELECT in_state.gate_id, t.line_id, t.priority, in_state.virtual_times[t.priority], t.place
        FROM turn t WHERE t.start_tag IS NULL;
    END IF;
    RETURN in_state;
END
$$;

-- pass_by_arrival: lets the first executions in the list pass, as long as their units fit.
CREATE FUNCTION turnstile.pass_by_arrival(
    in_capacity integer, in_state gate_state, in_now timestamptz, in_returning boolean, in_gate_ids bigint[],
    OUT state gate_state, OUT passed turnstile.passage[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    free bigint := coalesce(in_capacity - in_state.held, 1000);
    acquired bigint;
    places bigint[];
BEGIN
    state := in_state;
    WITH head AS MATERIALIZED (
        SELECT w.*, turnstile.id_of_place(w.place) AS execution_id
        FROM turnstile.first_waiting(in_state.gate_id, in_state.head_id, in_state.heads, least(free, 1000)) w
    ),
    fitting AS MATERIALIZED (
        -- An execution that has to return holds up the list until it has returned. So does one that needs a
        -- gate that is not locked here. The statement that gave it this gate, or the watchdog, locks the gate
        -- and lets it pass.
        SELECT h.*, e.action_id, n.units,
               sum(coalesce(n.units, 1000000000)) OVER (ORDER BY h.place) AS units_up_to
        FROM head h
        JOIN execution e ON e.id = ANY (ARRAY[h.execution_id])
        JOIN action a ON a.id = ANY (ARRAY[e.action_id])
        CROSS JOIN LATERAL (
            SELECT CASE WHEN a.route <@ in_gate_ids
                             AND (NOT in_returning OR NOT turnstile.has_to_return(
                                      a.served, a.route, a.route_units, h.queue_id, h.gate_ids, h.gate_units,
                                      in_state.gate_id))
                        THEN a.route_units[array_position(a.route, in_state.gate_id)] END
        ) n(units)
    ),
    gone AS (
        DELETE FROM waiting w USING fitting f
        WHERE w.line_id = ANY (ARRAY[in_state.gate_id]) AND w.place BETWEEN f.place AND f.place
          AND (f.units_up_to <= free OR in_capacity IS NULL AND f.units IS NOT NULL)
        RETURNING w.place
    )
    SELECT array_agg(ROW(f.execution_id, f.action_id, f.queue_id, f.place, f.gate_ids || in_state.gate_id,
                         f.gate_units || f.units, f.passed_ats || in_now)::turnstile.passage
                     ORDER BY f.place),
           sum(f.units), array_agg(f.place)
    INTO passed, acquired, places
    FROM gone g JOIN fitting f ON f.place = g.place;
    IF passed IS NOT NULL THEN
        state.held := state.held + acquired;
        state.depth := state.depth - cardinality(passed);
        state.granted_capacity := in_capacity;
        state.head_id := greatest(state.head_id, (SELECT max(p) + 1 FROM unnest(places) p
                                                  WHERE turnstile.priority_of_place(p) = 3));
        state.heads := CASE WHEN state.heads IS NOT NULL THEN turnstile.raise_heads(state.heads, places) END;
    END IF;
END
$$;

-- first_turn: the flow that is first at a gate: by priority, start tag, place.
CREATE FUNCTION turnstile.first_turn(in_state gate_state)
RETURNS flow_turn
LANGUAGE sql
STABLE
AS $$
    SELECT t.*
    FROM unnest(in_state.virtual_times) WITH ORDINALITY v(tag, priority)
    CROSS JOIN LATERAL (
        SELECT * FROM public.flow_turn f
        WHERE f.gate_id = in_state.gate_id AND f.priority = v.priority AND f.place IS NOT NULL
          AND f.start_tag >= v.tag
        ORDER BY f.start_tag, f.place LIMIT 1
    ) t
    ORDER BY t.priority LIMIT 1
$$;

-- pass_in_turns: lets executions pass one after another, each of the flow whose turn it is, as long as their
-- units fit (start-time fair queueing). Virtual time becomes the start tag of the execution that passes; the
-- next start tag of its flow is its finish tag.
CREATE FUNCTION turnstile.pass_in_turns(
    in_capacity integer, in_state gate_state, in_now timestamptz, in_returning boolean, in_gate_ids bigint[],
    OUT state gate_state, OUT passed turnstile.passage[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    turns record;
BEGIN
    state := in_state;
    passed := '{}';
    WHILE state.depth > 0 AND cardinality(passed) < 1000 AND coalesce(state.held < in_capacity, true) LOOP
        SELECT t.* INTO turns
        FROM turnstile.take_turns(
            state, in_capacity - state.held, 1000 - cardinality(passed), in_now, in_returning, in_gate_ids) t;
        EXIT WHEN turns.passed IS NULL;
        passed := passed || turns.passed;
        state.virtual_times[turns.priority] := turns.last_tag;
        state.held := state.held + turns.units;
        state.depth := state.depth - cardinality(turns.passed);
        state.granted_capacity := in_capacity;
    END LOOP;
END
$$;

-- take_turns: lets the next executions pass, at most one of each flow. The first execution of a flow is among
-- them if no flow before it would have its second turn first. Null if the very first does not fit into
-- `in_free` (null: no limit).
CREATE FUNCTION turnstile.take_turns(
    in_state gate_state, in_free bigint, in_limit integer, in_now timestamptz, in_returning boolean,
    in_gate_ids bigint[],
    OUT priority integer, OUT passed turnstile.passage[], OUT units bigint, OUT last_tag bigint
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    priority := (turnstile.first_turn(in_state)).priority;
    WITH head AS MATERIALIZED (
        SELECT f.line_id, f.start_tag, f.place FROM flow_turn f
        WHERE f.gate_id = in_state.gate_id AND f.priority = take_turns.priority AND f.place IS NOT NULL
          AND f.start_tag >= in_state.virtual_times[take_turns.priority]
        ORDER BY f.start_tag, f.place LIMIT least(in_free, in_limit)
    ),
    known AS MATERIALIZED (
        SELECT h.line_id, h.start_tag, w.*, e.id AS execution_id, e.action_id, n.units,
               h.start_tag + n.units * 720720::bigint / turnstile.weight_of(in_state.gate_id, e.action_id,
                                                                            w.queue_id)
                   AS finish_tag
        FROM head h
        CROSS JOIN LATERAL (
            SELECT w.place, w.queue_id, w.gate_ids, w.gate_units, w.passed_ats
            FROM waiting w WHERE w.line_id = h.line_id AND w.place BETWEEN h.place AND h.place
        ) w
        JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(h.place)])
        JOIN action a ON a.id = ANY (ARRAY[e.action_id])
        CROSS JOIN LATERAL (
            -- An execution that has to return, or needs a gate that is not locked here, holds up the list, as
            -- in pass_by_arrival.
            SELECT CASE WHEN a.route <@ in_gate_ids
                             AND (NOT in_returning OR NOT turnstile.has_to_return(
                                      a.served, a.route, a.route_units, w.queue_id, w.gate_ids, w.gate_units,
                                      in_state.gate_id))
                        THEN a.route_units[array_position(a.route, in_state.gate_id)] END AS units
        ) n
    ),
    fitting AS MATERIALIZED (
        SELECT f.* FROM (
            SELECT o.*, bool_and(o.units IS NOT NULL AND coalesce(o.units_up_to <= in_free, true)
                                 AND coalesce(o.start_tag < o.second_turn, true))
                        OVER (ORDER BY o.start_tag, o.place) AS passes
            FROM (
                SELECT k.*, sum(coalesce(k.units, 1000000000))
                           OVER (ORDER BY k.start_tag, k.place) AS units_up_to,
                       min(k.finish_tag) OVER (
                           ORDER BY k.start_tag, k.place
                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS second_turn
                FROM known k
            ) o
        ) f WHERE f.passes
    ),
    gone AS (
        DELETE FROM waiting w USING fitting f
        WHERE w.line_id = ANY (ARRAY[f.line_id]) AND w.place BETWEEN f.place AND f.place
    ),
    spent AS (
        DELETE FROM flow_turn t USING fitting f
        WHERE t.line_id = ANY (ARRAY[f.line_id]) AND t.priority = take_turns.priority
          AND t.start_tag BETWEEN f.start_tag AND f.start_tag
    ),
    following AS (
        INSERT INTO flow_turn (gate_id, line_id, priority, start_tag, place)
        SELECT in_state.gate_id, f.line_id, take_turns.priority, f.finish_tag,
               (SELECT w.place FROM waiting w
                WHERE w.line_id = f.line_id AND w.place > f.place
                  AND w.place < ((take_turns.priority - 2)::bigint << 58)
                ORDER BY w.place LIMIT 1)
        FROM fitting f
    )
    SELECT array_agg(ROW(f.execution_id, f.action_id, f.queue_id, f.place, f.gate_ids || in_state.gate_id,
                         f.gate_units || f.units, f.passed_ats || in_now)::turnstile.passage
                     ORDER BY f.start_tag, f.place),
           sum(f.units), max(f.start_tag)
    INTO passed, units, last_tag
    FROM fitting f;
END
$$;

-- units_at: how many units the first execution of this flow takes at its gate; null if it has to return to
-- its queue, or if a rate of its route is not among these gates, which are locked.
CREATE FUNCTION turnstile.units_at(in_turn flow_turn, in_returning boolean, in_gate_ids bigint[])
RETURNS integer
LANGUAGE sql
STABLE
AS $$
    SELECT CASE WHEN NOT EXISTS (
                         SELECT FROM public.gate g
                         WHERE g.id = ANY (a.route) AND g.rate_starts IS NOT NULL
                           AND g.id <> ALL (in_gate_ids))
                     AND (NOT in_returning OR NOT turnstile.has_to_return(
                    a.served, a.route, a.route_units, w.queue_id, w.gate_ids, w.gate_units, in_turn.gate_id))
                THEN a.route_units[array_position(a.route, in_turn.gate_id)] END
    FROM public.waiting w
    JOIN public.execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(w.place)])
    JOIN public.action a ON a.id = ANY (ARRAY[e.action_id])
    WHERE w.line_id = in_turn.line_id AND w.place BETWEEN in_turn.place AND in_turn.place
$$;

-- take_from_flow: removes the first executions of a flow, at most `in_count`, from the list of a pool. The
-- first one has this start tag, each later one a tag that is larger by `in_step`.
CREATE FUNCTION turnstile.take_from_flow(
    in_turn flow_turn, in_start_tag bigint, in_step bigint, in_units integer, in_count bigint,
    in_now timestamptz
)
RETURNS turnstile.passage[]
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    passed turnstile.passage[];
BEGIN
    WITH head AS MATERIALIZED (
        SELECT w.*, row_number() OVER (ORDER BY w.place) AS rank
        FROM (
            SELECT * FROM waiting n
            WHERE n.line_id = in_turn.line_id AND n.place >= in_turn.place
              AND n.place < ((in_turn.priority - 2)::bigint << 58)
            ORDER BY n.place LIMIT in_count + 1
        ) w
    ),
    gone AS (
        DELETE FROM waiting w USING head h
        WHERE w.line_id = ANY (ARRAY[h.line_id]) AND w.place BETWEEN h.place AND h.place
          AND h.rank <= in_count
    ),
    spent AS (
        DELETE FROM flow_turn t
        WHERE t.line_id = in_turn.line_id AND t.priority = in_turn.priority
          AND t.start_tag BETWEEN in_turn.start_tag AND in_turn.start_tag
    ),
    following AS (
        INSERT INTO flow_turn (gate_id, line_id, priority, start_tag, place)
        SELECT in_turn.gate_id, in_turn.line_id, in_turn.priority,
               in_start_tag + (SELECT count(*) FROM head h WHERE h.rank <= in_count) * in_step,
               (SELECT h.place FROM head h WHERE h.rank > in_count)
    )
    SELECT array_agg(ROW(e.id, e.action_id, e.queue_id, h.place, h.gate_ids || in_turn.gate_id,
                         h.gate_units || in_units,
                         h.passed_ats || in_now)::turnstile.passage ORDER BY h.place)
    INTO passed
    FROM head h JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(h.place)])
    WHERE h.rank <= in_count;
    RETURN passed;
END
$$;

-- first_start: the number of the first start of a rate after an instant, of those from `in_first` to
-- `in_last`; `in_last` + 1 if there is none. A binary search: starts are numbered in the order of their
-- instants, and the lowest numbers are deleted first.
CREATE FUNCTION turnstile.first_start(
    in_gate_id bigint, in_first bigint, in_last bigint, in_after timestamptz
)
RETURNS bigint
LANGUAGE plpgsql
STABLE STRICT
:settings_for_index_lookups
AS $$
DECLARE
    lowest bigint := in_first;
    highest bigint := in_last + 1;
    middle bigint;
BEGIN
    WHILE lowest < highest LOOP
        middle := (lowest + highest) / 2;
        IF EXISTS (SELECT FROM rate_start s
                   WHERE s.gate_id = in_gate_id AND s.number = middle AND s.granted_at > in_after)
        THEN
            highest := middle;
        ELSE
            lowest := middle + 1;
        END IF;
    END LOOP;
    RETURN lowest;
END
$$;

-- starts_left: how many starts each of these rates allows now (P13). The window slides: a start counts until
-- `per` seconds after it.
CREATE FUNCTION turnstile.starts_left(in_gate_ids bigint[], in_now timestamptz)
RETURNS TABLE (gate_id bigint, starts bigint, next_at timestamptz)
LANGUAGE sql
STABLE
AS $$
    SELECT g.id, CASE WHEN oldest.number IS NULL THEN g.rate_starts
                      ELSE g.rate_starts - (g.starts_taken - oldest.number + 1) END,
           oldest.granted_at + make_interval(secs => g.rate_per_seconds)
    FROM turnstile.current_gate g
    LEFT JOIN LATERAL (
        -- The newest start, if it counts: most rates are idle.
        SELECT s.number FROM public.rate_start s
        WHERE s.gate_id = g.id AND s.number = g.starts_taken
          AND s.granted_at > in_now - make_interval(secs => g.rate_per_seconds)
        LIMIT 1
    ) newest ON true
    LEFT JOIN LATERAL (
        SELECT s.number, s.granted_at FROM public.rate_start s
        WHERE s.gate_id = g.id AND s.number = turnstile.first_start(
                  g.id, greatest(g.starts_taken - g.rate_starts, 0) + 1, newest.number,
                  in_now - make_interval(secs => g.rate_per_seconds))
        LIMIT 1
    ) oldest ON true
    WHERE g.id = ANY (in_gate_ids) AND g.rate_starts IS NOT NULL
$$;

-- free_worker_slots: how many executions may start in this pool, which this locks, after those that have
-- passed their last gates in this decision. 0 if another session holds its row. `rival`: the first turn of
-- the plain actions that wait for a worker slot; what precedes it may take one in advance, because a settle
-- of a plain action shares what it frees without looking into the list.
CREATE FUNCTION turnstile.free_worker_slots(in_pool text, in_ended turnstile.passage[])
RETURNS turnstile.free_place
LANGUAGE plpgsql
AS $$
DECLARE
    locked_ids bigint[] := turnstile.lock_pools(ARRAY(SELECT p.id FROM public.worker_pool p
                                                      WHERE p.name = in_pool), true);
    free turnstile.free_place;
    is_paused boolean;
BEGIN
    SELECT p.id, CASE WHEN p.capacity IS NULL THEN 1000
                      ELSE p.capacity - p.held - (
                        SELECT count(*) FROM unnest(in_ended) e JOIN public.action a
                            ON a.id = ANY (ARRAY[e.action_id])
                        WHERE a.pool_id = p.id) END,
           p.virtual_times, p.fair, p.weights, p.paused
    INTO free.pool_id, free.places, free.virtual_times, free.fair, free.weights, is_paused
    FROM turnstile.current_pool p WHERE p.id = ANY (locked_ids);
    IF NOT FOUND THEN
        free.places := 0;
        RETURN free;
    END IF;
    SELECT t.priority, CASE WHEN free.fair THEN t.start_tag ELSE 0 END, t.place
    INTO free.rival_priority, free.rival_tag, free.rival_place
    FROM unnest(free.virtual_times) WITH ORDINALITY v(tag, priority)
    CROSS JOIN LATERAL (
        SELECT n.* FROM public.pool_turn n JOIN public.action a ON a.id = ANY (ARRAY[n.action_id])
        WHERE n.pool_id = free.pool_id AND n.priority = v.priority AND n.place IS NOT NULL
          AND n.start_tag >= v.tag
          AND a.route IS NULL
        ORDER BY n.start_tag, n.place LIMIT 1
    ) t
    ORDER BY t.priority LIMIT 1;
    IF free.rival_priority IS NOT NULL AND NOT is_paused THEN
        free.places := free.places + 1;
    END IF;
    RETURN free;
END
$$;

-- pause_list: pauses or resumes the list of a pool, which the caller has locked. What waits there returns to
-- its queue, so that it keeps no units from other pools.
CREATE FUNCTION turnstile.pause_list(in_gate_id bigint, in_paused boolean)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE public.gate g
    SET paused = in_paused, updated_at = clock_timestamp(),
        returning_from = CASE WHEN in_paused THEN -9223372036854775808 ELSE g.returning_from END
    WHERE g.id = in_gate_id AND g.paused <> in_paused
$$;

-- pass_pool: grants executions that wait for a worker slot and for their rates, at most as many as there are
-- free ones. Turns between actions, as at a fair gate, also with the plain actions of the pool: virtual time
-- is that of the pool. But an execution for which a rate has no start is passed over, with all later ones of
-- its action. Starts are taken in the order of the route, and kept by the execution that takes them first:
-- otherwise one that needs two rates could lose a start of one of them each time that it waits for the other.
CREATE FUNCTION turnstile.pass_pool(
    in_state gate_state, in_now timestamptz, in_gate_ids bigint[], in_free turnstile.free_place,
    OUT state gate_state, OUT passed turnstile.passage[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    left_by_gate jsonb;
    -- Gates before this one may have closed that are not locked here.
    are_returning boolean := EXISTS (
        SELECT FROM action a JOIN gate g ON g.id = ANY (a.route)
        WHERE a.route IS NOT NULL AND in_state.gate_id = ANY (a.route)
          AND (g.paused OR g.returning_from IS NOT NULL));
    kept jsonb;
    taken jsonb := '{}';
    candidate record;
    found_turn flow_turn;
    found_units integer;
    found_rates bigint[];
    passed_over bigint[];
    held_back_ids bigint[] := turnstile.held_back(turnstile.scarce_actions(in_free.pool_id, NULL));
    rate_id bigint;
    is_free boolean;
    count_at_once bigint;
    passed_at_once turnstile.passage[];
BEGIN
    state := in_state;
    passed := '{}';
    state.virtual_times := ARRAY(
        SELECT greatest(v.tag, n.tag)
        FROM unnest(state.virtual_times) WITH ORDINALITY v(tag, priority)
        LEFT JOIN unnest(in_free.virtual_times) WITH ORDINALITY n(tag, priority) ON n.priority = v.priority
        ORDER BY v.priority);
    SELECT coalesce(jsonb_object_agg(l.gate_id, l.starts), '{}') INTO left_by_gate
    FROM turnstile.starts_left(ARRAY(
        SELECT DISTINCT r.id FROM action a CROSS JOIN unnest(a.route) r(id)
        WHERE a.route IS NOT NULL AND in_state.gate_id = ANY (a.route)), in_now) l;
    WHILE state.depth > 0 AND cardinality(passed) < least(1000, in_free.places) LOOP
        kept := left_by_gate;
        passed_over := held_back_ids;
        found_turn := NULL;
        FOR candidate IN
            SELECT t.turn, (t.turn).priority, (t.turn).place,
                   CASE WHEN in_free.fair
                            THEN greatest((t.turn).start_tag, state.virtual_times[(t.turn).priority])
                        ELSE 0 END AS tag,
                   turnstile.step_of(in_free.weights, a.ref) AS step, f.flow_id AS action_id,
                   count(*) OVER () AS flows,
                   ARRAY(SELECT r.id FROM unnest(a.route) WITH ORDINALITY r(id, rank)
                         WHERE left_by_gate ? r.id::text ORDER BY r.rank) AS rate_ids
            FROM (
                SELECT c AS turn FROM unnest(coalesce(state.heads, '{0,0,0,0,0}'))
                     WITH ORDINALITY h(tag, priority)
                CROSS JOIN LATERAL (
                    SELECT * FROM flow_turn n
                    WHERE n.gate_id = in_state.gate_id AND n.priority = h.priority AND n.place IS NOT NULL
                      AND n.start_tag >= h.tag
                ) c
            ) t
            JOIN gate_flow f ON f.id = (t.turn).line_id
            JOIN action a ON a.id = f.flow_id
            ORDER BY 2, 4, 3
        LOOP
            EXIT WHEN (candidate.priority, candidate.tag, candidate.place)
                      > (in_free.rival_priority, in_free.rival_tag, in_free.rival_place);
            CONTINUE WHEN candidate.action_id = ANY (passed_over);
            -- What has to return keeps no start from others.
            found_turn := candidate.turn;
            found_units := turnstile.units_at(found_turn, are_returning, in_gate_ids);
            is_free := found_units IS NOT NULL;
            FOREACH rate_id IN ARRAY candidate.rate_ids LOOP
                EXIT WHEN NOT is_free;
                is_free := (kept ->> rate_id::text)::bigint > 0;
                EXIT WHEN NOT is_free;
                kept := jsonb_set(kept, ARRAY[rate_id::text], to_jsonb((kept ->> rate_id::text)::bigint - 1));
            END LOOP;
            IF is_free THEN
                found_rates := candidate.rate_ids;
                -- A flow that waits alone takes all its turns at once.
                count_at_once := CASE WHEN candidate.flows > 1 OR are_returning
                                           OR in_free.rival_tag IS NOT NULL THEN 1 ELSE least(
                                               least(1000, in_free.places) - cardinality(passed),
                                               (SELECT min((left_by_gate ->> r.id::text)::bigint)
                                                FROM unnest(found_rates) r(id))) END;
                EXIT;
            END IF;
            found_turn := NULL;
            passed_over := passed_over || candidate.action_id;
        END LOOP;
        EXIT WHEN found_turn.line_id IS NULL;
        state.virtual_times[found_turn.priority] :=
            greatest(found_turn.start_tag, state.virtual_times[found_turn.priority]);
        passed_at_once := turnstile.take_from_flow(
            found_turn, state.virtual_times[found_turn.priority], candidate.step, found_units, count_at_once,
            in_now);
        passed := passed || passed_at_once;
        count_at_once := cardinality(passed_at_once);
        state.virtual_times[found_turn.priority] :=
            state.virtual_times[found_turn.priority] + (count_at_once - 1) * candidate.step;
        state.held := state.held + found_units * count_at_once;
        state.depth := state.depth - count_at_once;
        FOREACH rate_id IN ARRAY found_rates LOOP
            left_by_gate := jsonb_set(
                left_by_gate, ARRAY[rate_id::text],
                to_jsonb((left_by_gate ->> rate_id::text)::bigint - count_at_once));
            taken := jsonb_set(
                taken, ARRAY[rate_id::text],
                to_jsonb(coalesce((taken ->> rate_id::text)::bigint, 0) + count_at_once));
        END LOOP;
    END LOOP;
    IF cardinality(passed) > 0 THEN
        -- Never past a turn of what waits in a queue.
        UPDATE pool_state v
        SET virtual_times = ARRAY(
            SELECT greatest(n.tag, least(t.tag, (
                SELECT f.start_tag FROM pool_turn f
                WHERE f.pool_id = in_free.pool_id AND f.priority = n.priority AND f.place IS NOT NULL
                  AND f.start_tag >= n.tag
                ORDER BY f.start_tag LIMIT 1)))
            FROM unnest(in_free.virtual_times) WITH ORDINALITY n(tag, priority)
            JOIN unnest(state.virtual_times) WITH ORDINALITY t(tag, priority) ON t.priority = n.priority
            ORDER BY n.priority)
        FROM turnstile.current_pool p
        WHERE p.id = in_free.pool_id AND p.fair AND v.pool_id = ANY (ARRAY[p.id])
          AND v.version BETWEEN p.version AND p.version;
        WITH newest AS MATERIALIZED (
            SELECT v.*, n.starts,
                   (SELECT r.granted_at FROM rate_start r
                    WHERE r.gate_id = v.gate_id AND r.number = v.starts_taken) AS newest_at
            FROM jsonb_each_text(taken) k(gate_id, starts)
            CROSS JOIN LATERAL (SELECT k.gate_id::bigint AS id, k.starts::bigint AS starts) n
            CROSS JOIN LATERAL (SELECT * FROM gate_state s WHERE s.gate_id = n.id ORDER BY s.version DESC
                                LIMIT 1) v
        ),
        written AS (
            INSERT INTO gate_state
            SELECT n.gate_id, n.version + 1, n.held, n.depth, n.head_id, n.heads, n.virtual_times,
                   n.starts_taken + n.starts, n.granted_capacity, in_now
            FROM newest n
        ),
        replaced AS (
            DELETE FROM gate_state v USING newest n
            WHERE v.gate_id = ANY (ARRAY[n.gate_id]) AND v.version BETWEEN n.version AND n.version
        )
        -- In the order of time, also if the clock was set back since the start before.
        INSERT INTO rate_start (gate_id, number, granted_at)
        SELECT n.gate_id, n.starts_taken + i, greatest(in_now, n.newest_at)
        FROM newest n CROSS JOIN generate_series(1, n.starts) i;
    END IF;
    -- Turns are read from here on: from the virtual time, where flows may arrive, or from the tag of a flow
    -- that was passed over and still waits before it.
    state.heads := ARRAY(
        SELECT least((SELECT t.start_tag FROM flow_turn t
                      WHERE t.gate_id = in_state.gate_id AND t.priority = h.priority AND t.place IS NOT NULL
                        AND t.start_tag >= h.tag
                      ORDER BY t.start_tag LIMIT 1), state.virtual_times[h.priority])
        FROM unnest(coalesce(state.heads, '{0,0,0,0,0}')) WITH ORDINALITY h(tag, priority)
        ORDER BY h.priority);
END
$$;

-- leave_lines: after rows were removed from the lists of gates: returns the changes of depth, and updates the
-- turns of flows that lost their first execution. The caller has locked the gates and has deleted these rows
-- of `waiting` in an earlier statement.
CREATE FUNCTION turnstile.leave_lines(in_line_ids bigint[], in_places bigint[])
RETURNS turnstile.gate_change[]
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    UPDATE flow_turn t
    SET place = (
        SELECT w.place FROM waiting w
        WHERE w.line_id = n.line_id AND w.place > n.place AND w.place < ((n.priority - 2)::bigint << 58)
        ORDER BY w.place LIMIT 1)
    FROM (
        SELECT l.line_id, turnstile.priority_of_place(l.place) AS priority, min(l.place) AS place
        FROM unnest(in_line_ids, in_places) l(line_id, place)
        GROUP BY l.line_id, turnstile.priority_of_place(l.place)
    ) n
    JOIN gate_flow f ON f.id = ANY (ARRAY[n.line_id])
    JOIN turnstile.current_gate g ON g.id = f.gate_id
    WHERE t.line_id = ANY (ARRAY[n.line_id]) AND t.priority = n.priority AND t.place = n.place
      AND t.start_tag >= coalesce(g.heads[n.priority], g.virtual_times[n.priority]);
    RETURN (
        SELECT array_agg(ROW(coalesce(f.gate_id, l.line_id), 0, -1)::turnstile.gate_change)
        FROM unnest(in_line_ids) l(line_id)
        LEFT JOIN gate_flow f ON f.id = ANY (ARRAY[l.line_id]));
END
$$;

-- advance_gates: does what no release of units triggers. Executions at closed or changed gates return to
-- their queues, in slices; then everything passes that can. Called after a change of gates, and by the
-- watchdog (P7). `remaining`: call it again.
--
-- Gates and queues that other sessions hold are skipped.
CREATE FUNCTION turnstile.advance_gates(
    in_limit integer, OUT granted turnstile.granted[], OUT more_queue_ids bigint[], OUT remaining boolean
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    closed gate;
    returned record;
    candidate record;
    locked_ids bigint[];
BEGIN
    remaining := false;
    FOR closed IN SELECT g.* FROM gate g WHERE g.returning_from IS NOT NULL ORDER BY g.id LOOP
        IF closed.returning_from = -9223372036854775808 THEN
            -- It has just closed. Executions that need it wait at the other gates of their routes too.
            locked_ids := turnstile.try_gates(ARRAY(
                SELECT closed.id
                UNION
                SELECT r.gate_id FROM action a CROSS JOIN unnest(a.route) r(gate_id)
                WHERE closed.id = ANY (a.route)));
            CONTINUE WHEN locked_ids IS NULL;
            UPDATE gate g SET returning_from = -9223372036854775807 WHERE g.id = closed.id;
            PERFORM turnstile.start_return(locked_ids);
            remaining := true;
            RETURN;
        END IF;
        -- What it has locked is released before the next gate: that one's queues come before these gates.
        BEGIN
            SELECT * INTO returned FROM turnstile.return_to_queues(closed, in_limit);
            IF returned.is_held THEN
                RAISE EXCEPTION 'other sessions hold what gate % needs', closed.id
                USING ERRCODE = 'lock_not_available';
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        granted := returned.granted;
        more_queue_ids := returned.more_queue_ids;
        remaining := returned.has_moved;
        RETURN;
    END LOOP;
    FOR candidate IN
        SELECT g.id FROM turnstile.current_gate g
        -- The lists for rates are read by pass_rates.
        WHERE g.kind <> 'pool' AND g.depth > 0 AND NOT g.paused
          AND (g.capacity IS NULL OR g.held < g.capacity)
        ORDER BY g.id
    LOOP
        locked_ids := turnstile.try_gates(turnstile.neighbouring_gates(ARRAY[candidate.id]));
        CONTINUE WHEN locked_ids IS NULL;
        granted := granted || turnstile.pass_gates(locked_ids, NULL, NULL, clock_timestamp());
    END LOOP;
END
$$;

-- try_gates: locks these gates without waiting; null if another session holds one of them.
CREATE FUNCTION turnstile.try_gates(in_gate_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    locked_ids bigint[] := ARRAY(
        SELECT g.id FROM gate g WHERE g.id = ANY (in_gate_ids) ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED);
BEGIN
    RETURN CASE WHEN NOT EXISTS (SELECT FROM gate g
                                 WHERE g.id = ANY (in_gate_ids) AND g.id <> ALL (locked_ids))
                THEN locked_ids END;
END
$$;

-- return_to_queues: of the next executions at a gate, returns those that have to (see `has_to_return`): they
-- release their units and are in their queues at their old positions. `is_held`: other sessions hold what
-- this needs, and nothing was done; `has_moved`: all of the slice was done.
CREATE FUNCTION turnstile.return_to_queues(
    in_gate gate, in_limit integer,
    OUT granted turnstile.granted[], OUT more_queue_ids bigint[], OUT has_moved boolean, OUT is_held boolean
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    has_turns boolean := in_gate.fair OR in_gate.kind = 'pool';
    slice record;
    queue_ids bigint[];
    blocked_ids bigint[];
    gate_ids bigint[];
    line_ids bigint[];
    places bigint[];
    changes turnstile.queue_change[];
    gate_changes turnstile.gate_change[];
BEGIN
    -- By arrival: rows from the bound on. In the list of a flow, what has returned may have arrived again
    -- before what has to return, so the whole list is read.
    WITH listed AS (
        SELECT in_gate.id AS id WHERE NOT has_turns
        UNION ALL
        SELECT f.id FROM gate_flow f
        WHERE has_turns AND f.gate_id = in_gate.id AND f.id >= in_gate.returning_from
    ),
    seen AS MATERIALIZED (
        SELECT n.* FROM listed l CROSS JOIN LATERAL (
            SELECT w.line_id, w.place, w.queue_id, e.id AS execution_id, leaves
            FROM waiting w
            JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(w.place)])
            JOIN action a ON a.id = ANY (ARRAY[e.action_id])
            CROSS JOIN LATERAL turnstile.has_to_return(
                a.served, a.route, a.route_units, w.queue_id, w.gate_ids, w.gate_units, in_gate.id) leaves
            WHERE w.line_id = l.id AND (leaves OR NOT has_turns)
              AND w.place >= CASE WHEN has_turns THEN -9223372036854775808 ELSE in_gate.returning_from END
            ORDER BY w.place LIMIT in_limit
        ) n
        ORDER BY n.line_id, n.place LIMIT in_limit
    )
    SELECT array_agg(s.execution_id) FILTER (WHERE s.leaves) AS ids,
           array_agg(DISTINCT s.queue_id) FILTER (WHERE s.leaves) AS queue_ids,
           CASE WHEN count(*) < in_limit THEN NULL
                WHEN has_turns THEN max(s.line_id)
                ELSE max(s.place) + 1 END AS next_from
    INTO slice FROM seen s;

    queue_ids := coalesce(slice.queue_ids, '{}');
    blocked_ids := turnstile.lock_available_queues(queue_ids);
    SELECT l.gate_ids, blocked_ids || l.busy_queue_ids INTO gate_ids, blocked_ids
    FROM turnstile.lock_gates(queue_ids, blocked_ids, slice.ids, NULL) l;
    IF gate_ids IS NULL THEN
        gate_ids := turnstile.try_gates(ARRAY[in_gate.id]);
    END IF;
    has_moved := gate_ids IS NOT NULL AND cardinality(blocked_ids) = 0;
    -- Held by another session: the watchdog continues here.
    is_held := gate_ids IS NULL;
    IF is_held THEN
        RETURN;
    END IF;
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (blocked_ids));

    WITH gone AS (
        DELETE FROM waiting w
        USING execution e, action a
        WHERE e.id = ANY (slice.ids) AND a.id = ANY (ARRAY[e.action_id]) AND e.queue_id = ANY (queue_ids)
          AND w.queue_id = ANY (ARRAY[e.queue_id])
          AND w.place BETWEEN turnstile.place_of(e.priority, e.id) AND turnstile.place_of(e.priority, e.id)
          -- Checked again under the locks.
          AND coalesce((SELECT f.gate_id FROM gate_flow f WHERE f.id = w.line_id), w.line_id) = in_gate.id
          AND turnstile.has_to_return(
              a.served, a.route, a.route_units, w.queue_id, w.gate_ids, w.gate_units, in_gate.id)
        RETURNING w.*
    ),
    back AS (
        INSERT INTO waiting (line_id, place) SELECT g.queue_id, g.place FROM gone g
    ),
    noted AS (
        INSERT INTO gate_return (execution_id, returned_at)
        SELECT turnstile.id_of_place(g.place), clock_timestamp() FROM gone g
        ON CONFLICT (execution_id) DO UPDATE SET returned_at = excluded.returned_at
    )
    SELECT array_agg(g.line_id), array_agg(g.place),
           (SELECT array_agg(ROW(n.queue_id, n.returned, -n.returned, n.first_id, 0, 0,
                                 n.first_places)::turnstile.queue_change)
            FROM (
                SELECT g.queue_id, count(*) AS returned,
                       turnstile.first_places(array_agg(g.place)) AS first_places,
                       min(g.place) FILTER (WHERE turnstile.priority_of_place(g.place) = 3) AS first_id
                FROM gone g GROUP BY g.queue_id
            ) n),
           (SELECT array_agg(ROW(u.gate_id, -u.units, 0)::turnstile.gate_change)
            FROM gone g CROSS JOIN unnest(g.gate_ids, g.gate_units) u(gate_id, units))
    INTO line_ids, places, changes, gate_changes FROM gone g;
    is_held := NOT has_moved AND places IS NULL;
    PERFORM turnstile.change_gates(gate_changes || turnstile.leave_lines(line_ids, places));
    IF cardinality(blocked_ids) = 0 THEN
        UPDATE gate g SET returning_from = slice.next_from WHERE g.id = in_gate.id;
    END IF;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
    FROM turnstile.grant_locked(queue_ids, coalesce(changes, '{}'), in_gate_ids => gate_ids) g;
END
$$;

-- queues_behind: queues with waiting executions of the actions that pass this gate, for a grant after it has
-- opened.
CREATE FUNCTION turnstile.queues_behind(in_gate_id bigint, in_limit integer)
RETURNS SETOF bigint
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    SELECT q.id
    FROM action a
    JOIN action_queue n ON n.action_id = ANY (ARRAY[a.id])
    JOIN turnstile.current_queue q ON q.id = n.id
    WHERE a.route IS NOT NULL AND in_gate_id = ANY (a.route) AND q.depth > 0 AND NOT q.paused
    ORDER BY q.id LIMIT in_limit
$$;

-- pass_rates: grants what waits for a rate and is due, or for a worker slot of its pool and can have one.
-- `next_seconds`: when a rate that is used up has its next start, or when to look for worker slots again;
-- null: not before the next tick. `has_rates`: whether any action has gates.
CREATE FUNCTION turnstile.pass_rates(
    OUT granted turnstile.granted[], OUT more_queue_ids bigint[], OUT next_seconds double precision,
    OUT has_rates boolean
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    pool record;
    locked_ids bigint[];
    now_at timestamptz;
BEGIN
    has_rates := false;
    FOR pool IN SELECT g.id, g.depth FROM turnstile.current_gate g WHERE g.kind = 'pool' ORDER BY g.id LOOP
        has_rates := true;
        IF pool.depth > 0 THEN
            locked_ids := turnstile.try_gates(turnstile.neighbouring_gates(ARRAY[pool.id]));
            -- Another executor decides just now.
            next_seconds := CASE WHEN locked_ids IS NULL THEN 0.01 ELSE next_seconds END;
            CONTINUE WHEN locked_ids IS NULL;
            granted := granted || turnstile.pass_gates(locked_ids, NULL, NULL, clock_timestamp());
        END IF;
        -- A worker slot may become free in a transaction that does not lock these gates.
        IF EXISTS (
            SELECT FROM turnstile.current_gate g JOIN turnstile.current_pool p ON p.name = g.name
            WHERE g.id = pool.id AND g.depth > 0 AND (p.depth > 0 OR p.held >= p.capacity))
        THEN
            next_seconds := least(next_seconds, 0.05);
        END IF;
        now_at := clock_timestamp();
        next_seconds := least(next_seconds, (
            SELECT greatest(extract(epoch FROM min(l.next_at) - now_at), 0)::double precision
            FROM turnstile.starts_left(turnstile.neighbouring_gates(ARRAY[pool.id]), now_at) l
            WHERE l.starts <= 0));
    END LOOP;
END
$$;

-- tidy_gates: deletes rows that gates no longer need: turns of idle flows before the virtual time, starts
-- that have left their window, gates of actions and pools that no route passes. At most `in_limit` turns of
-- each gate and priority, and ten times as many starts of each rate.
--
-- Turns are deleted under the locks of their gates: an arrival that found the turn of an idle flow would
-- update a row that is gone, and the flow would have no turn. Gates that other sessions hold are skipped.
--
-- Under an old snapshot it must not read what it has deleted. Turns are read from the bound in `gate_window`:
-- later than that, no turn becomes idle, because neither virtual times nor the bounds in `gate_state.heads`
-- move back. The first start that is left is found by its number.
CREATE FUNCTION turnstile.tidy_gates(in_limit integer)
RETURNS void
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    locked_ids bigint[] := ARRAY(
        SELECT g.id FROM gate g WHERE g.fair OR g.kind = 'pool' ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED);
BEGIN
    WITH bound AS MATERIALIZED (
        SELECT g.id AS gate_id, coalesce(w.version, 0) AS version, v.priority, v.tag,
               least(v.tag, g.heads[v.priority]) AS next_tag,
               coalesce(w.first_tags[v.priority], 0) AS first_tag
        FROM turnstile.current_gate g
        CROSS JOIN LATERAL unnest(g.virtual_times) WITH ORDINALITY v(tag, priority)
        LEFT JOIN LATERAL (
            SELECT * FROM gate_window n WHERE n.gate_id = g.id ORDER BY n.version DESC LIMIT 1
        ) w ON true
        WHERE g.id = ANY (locked_ids)
    ),
    idle AS MATERIALIZED (
        SELECT b.gate_id, t.line_id, t.priority, t.start_tag
        FROM bound b
        CROSS JOIN LATERAL (
            SELECT * FROM flow_turn n
            WHERE n.gate_id = b.gate_id AND n.priority = b.priority AND n.place IS NULL
              AND n.start_tag >= b.first_tag AND n.start_tag <= b.tag
            ORDER BY n.start_tag LIMIT in_limit
        ) t
    ),
    gone AS (
        DELETE FROM flow_turn t USING idle i
        WHERE t.line_id = ANY (ARRAY[i.line_id]) AND t.priority = i.priority
          AND t.start_tag BETWEEN i.start_tag AND i.start_tag
          AND t.place IS NULL
    ),
    moved AS MATERIALIZED (
        SELECT b.gate_id, b.version, array_agg(n.next_tag ORDER BY b.priority) AS first_tags
        FROM bound b
        CROSS JOIN LATERAL (
            -- Where the limit was reached, more may have the tag of the last one.
            SELECT greatest(b.first_tag, CASE WHEN count(*) < in_limit THEN b.next_tag
                                              ELSE least(b.next_tag, max(i.start_tag)) END) AS next_tag
            FROM idle i WHERE i.gate_id = b.gate_id AND i.priority = b.priority
        ) n
        GROUP BY b.gate_id, b.version HAVING bool_or(n.next_tag > b.first_tag)
    ),
    written AS (
        INSERT INTO gate_window (gate_id, version, first_tags)
        SELECT m.gate_id, m.version + 1, m.first_tags FROM moved m
    )
    DELETE FROM gate_window w USING moved m
    WHERE w.gate_id = ANY (ARRAY[m.gate_id]) AND w.version BETWEEN m.version AND m.version;
    -- The list of a pool may have been created while its pool was paused or resumed.
    PERFORM turnstile.pause_list(g.id, p.paused)
    FROM gate g JOIN worker_pool p ON p.name = g.name
    WHERE g.id = ANY (locked_ids) AND g.kind = 'pool' AND g.paused <> p.paused;
    WITH expired AS MATERIALIZED (
        SELECT g.id AS gate_id, turnstile.first_start(g.id, 1, g.starts_taken, '-infinity') AS first_number,
               -- A decision counts starts up to an instant that it read before: it may be as old as its
               -- statement. A minute is more than any statement may take.
               turnstile.first_start(
                   g.id, 1, g.starts_taken,
                   clock_timestamp() - make_interval(secs => 60 + coalesce(g.rate_per_seconds, 0))
               ) AS kept_number
        FROM turnstile.current_gate g
        -- Without the newest one, there is none.
        WHERE (SELECT n.number FROM rate_start n
               WHERE n.gate_id = g.id AND n.number = g.starts_taken) IS NOT NULL
    )
    DELETE FROM rate_start s USING expired x
    WHERE s.gate_id = ANY (ARRAY[x.gate_id]) AND s.number >= x.first_number
      AND s.number < least(x.kept_number, x.first_number + 10 * in_limit);
    -- Locked in a statement of their own: a change of an action may have named them since.
    locked_ids := ARRAY(
        SELECT g.id FROM gate g
        WHERE g.kind <> 'resource'
          AND NOT EXISTS (SELECT FROM action a WHERE a.route IS NOT NULL AND g.id = ANY (a.route))
        ORDER BY g.id FOR UPDATE SKIP LOCKED);
    WITH unused AS MATERIALIZED (
        SELECT g.id FROM gate g
        WHERE g.id = ANY (locked_ids)
          AND NOT EXISTS (SELECT FROM action a WHERE a.route IS NOT NULL AND g.id = ANY (a.route))
          AND (SELECT s.held + s.depth FROM gate_state s WHERE s.gate_id = g.id ORDER BY s.version DESC
               LIMIT 1) = 0
    ),
    states AS (DELETE FROM gate_state s USING unused u WHERE s.gate_id = ANY (ARRAY[u.id])),
    flows AS (DELETE FROM gate_flow f USING unused u WHERE f.gate_id = ANY (ARRAY[u.id])),
    turns AS (DELETE FROM flow_turn t USING unused u WHERE t.gate_id = ANY (ARRAY[u.id])),
    windows AS (DELETE FROM gate_window w USING unused u WHERE w.gate_id = ANY (ARRAY[u.id])),
    starts AS (DELETE FROM rate_start s USING unused u WHERE s.gate_id = ANY (ARRAY[u.id]))
    DELETE FROM gate g USING unused u WHERE g.id = ANY (ARRAY[u.id]);
END
$$;

-- forget_heads: before a change of the order of these gates, which the caller has locked and at which nothing
-- waits: in the order of arrival `heads` are bounds of order keys, in the fair order they would be bounds of
-- start tags.
CREATE FUNCTION turnstile.forget_heads(in_gate_ids bigint[])
RETURNS void
LANGUAGE sql
AS $$
    UPDATE public.gate_state v SET heads = NULL
    FROM turnstile.current_gate g
    WHERE g.id = ANY (in_gate_ids)
      AND v.gate_id = ANY (ARRAY[g.id]) AND v.version BETWEEN g.version AND g.version
      AND v.heads IS NOT NULL
$$;

-- reroute: after a change of what these actions use: their gates, and the routes through them. Executions
-- that wait at a gate of an old route return to their queues (`advance_gates`).
CREATE FUNCTION turnstile.reroute(in_action_ids bigint[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    returning_ids bigint[] := '{}';
BEGIN
    LOOP
        PERFORM turnstile.create_gates(in_action_ids);
        returning_ids := ARRAY(
            SELECT DISTINCT r.id FROM action a CROSS JOIN unnest(a.route) r(id)
            CROSS JOIN LATERAL turnstile.route_of(a) n
            WHERE a.id = ANY (in_action_ids)
              AND (a.route, a.route_units) IS DISTINCT FROM (n.gate_ids, n.units));
        PERFORM 1 FROM gate g
        WHERE g.id = ANY (returning_ids) OR g.action_id = ANY (in_action_ids)
           OR g.kind = 'pool'
          AND g.name = ANY (ARRAY(SELECT a.pool FROM action a WHERE a.id = ANY (in_action_ids)))
        ORDER BY g.id FOR NO KEY UPDATE;
        -- One that nothing used may have been deleted before it was locked.
        EXIT WHEN NOT turnstile.create_gates(in_action_ids);
    END LOOP;
    IF EXISTS (SELECT FROM turnstile.current_gate g JOIN action a ON a.id = g.action_id
               WHERE a.id = ANY (in_action_ids) AND g.fair <> a.fair AND g.depth > 0)
    THEN
        RAISE EXCEPTION 'order: executions wait for this action''s total; pause the action, change the'
                        ' order, resume it'
            USING ERRCODE = 'object_in_use';
    END IF;
    PERFORM turnstile.forget_heads(ARRAY(
        SELECT g.id FROM gate g JOIN action a ON a.id = g.action_id
        WHERE a.id = ANY (in_action_ids) AND g.fair <> a.fair));
    UPDATE gate g
    SET capacity = a.max_concurrent_total, fair = a.fair, rate_starts = a.rate_starts,
        rate_per_seconds = a.rate_per_seconds, updated_at = clock_timestamp(),
        returning_from = CASE WHEN a.max_concurrent_total = 0 THEN -9223372036854775808
                              ELSE g.returning_from END
    FROM action a
    WHERE g.action_id = a.id AND a.id = ANY (in_action_ids)
      AND (g.capacity, g.fair, g.rate_starts, g.rate_per_seconds)
          IS DISTINCT FROM (a.max_concurrent_total, a.fair, a.rate_starts, a.rate_per_seconds);
    PERFORM turnstile.start_return(returning_ids);
    UPDATE action a SET route = n.gate_ids, route_units = n.units
    FROM action b CROSS JOIN LATERAL turnstile.route_of(b) n
    WHERE a.id = ANY (in_action_ids) AND b.id = a.id
      AND (a.route, a.route_units) IS DISTINCT FROM (n.gate_ids, n.units);
END
$$;

-- create_gates: the gates of these actions, and the lists of their pools, as far as they are missing. Returns
-- whether one was.
CREATE FUNCTION turnstile.create_gates(in_action_ids bigint[])
RETURNS boolean
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
BEGIN
    INSERT INTO gate (kind, name, action_id)
    SELECT 'action', a.id::text, a.id FROM action a
    WHERE a.id = ANY (in_action_ids) AND a.deleted_at IS NULL
      AND (a.max_concurrent_total IS NOT NULL OR a.rate_starts IS NOT NULL)
    ON CONFLICT DO NOTHING;
    INSERT INTO gate (kind, name, fair, paused)
    SELECT DISTINCT 'pool', a.pool, true,
           EXISTS (SELECT FROM worker_pool p WHERE p.name = a.pool AND p.paused) FROM action a
    WHERE a.id = ANY (in_action_ids) AND a.deleted_at IS NULL AND turnstile.has_gates(a)
    ON CONFLICT DO NOTHING;
    INSERT INTO gate_state (gate_id, version, held, depth, head_id, virtual_times, starts_taken, updated_at)
    SELECT g.id, 1, 0, 0, 0, '{0,0,0,0,0}', 0, clock_timestamp() FROM gate g
    WHERE NOT EXISTS (SELECT FROM gate_state s WHERE s.gate_id = g.id);
    RETURN FOUND;
END
$$;

-- has_gates: whether an action has gates after its queue, beside its pool.
CREATE FUNCTION turnstile.has_gates(in_action action)
RETURNS boolean
LANGUAGE sql
STABLE
AS $$
    SELECT in_action.rate_starts IS NOT NULL OR in_action.max_concurrent_total IS NOT NULL OR EXISTS (
        SELECT FROM jsonb_array_elements(in_action.uses) u(use)
        JOIN public.gate g ON g.kind = 'resource' AND g.name = u.use ->> 'resource')
$$;

-- route_of: the gates that an action passes, in the global order, with the units that it takes there. Null:
-- none.
CREATE FUNCTION turnstile.route_of(in_action action, OUT gate_ids bigint[], OUT units integer[])
LANGUAGE sql
STABLE
AS $$
    SELECT array_agg(g.id ORDER BY array_position(ARRAY['action', 'resource', 'pool'], g.kind),
                         g.rank NULLS LAST, g.name),
           array_agg(n.units ORDER BY array_position(ARRAY['action', 'resource', 'pool'], g.kind),
                         g.rank NULLS LAST, g.name)
    FROM (
        SELECT g.id, 1 AS units FROM public.gate g
        WHERE g.kind = 'action' AND g.name = in_action.id::text
          AND (in_action.max_concurrent_total IS NOT NULL OR in_action.rate_starts IS NOT NULL)
        UNION ALL
        SELECT g.id, (u.use ->> 'units')::integer FROM jsonb_array_elements(in_action.uses) u(use)
        JOIN public.gate g ON g.kind = 'resource' AND g.name = u.use ->> 'resource'
        UNION ALL
        SELECT g.id, 1 FROM public.gate g
        WHERE g.kind = 'pool' AND g.name = in_action.pool AND turnstile.has_gates(in_action)
    ) n
    JOIN public.gate g ON g.id = n.id
    WHERE in_action.deleted_at IS NULL
$$;

-- Routes of an earlier version do not end in the list of their pool.
DO $$
BEGIN
    PERFORM turnstile.reroute(ARRAY(
        SELECT a.id FROM public.action a
        WHERE a.route IS NOT NULL AND NOT EXISTS (
            SELECT FROM public.gate g WHERE g.id = ANY (a.route) AND g.kind = 'pool')
        ORDER BY a.id));
END
$$;
