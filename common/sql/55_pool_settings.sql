-- The settings of pools: their order, the weights of actions in it, and a pause. Each change is recorded with
-- its author in the transaction of the change.
--
-- Locks: the list of the pool, which is a gate, then the pool, as in a decision. A grant locks the pool too,
-- so a change waits for a grant and a grant for a change, each for milliseconds.

-- definition_of_pool: a pool as a flat definition, for comparing and for the log of changes.
CREATE FUNCTION turnstile.definition_of_pool(in_pool worker_pool)
RETURNS jsonb
LANGUAGE sql
STABLE
:settings
AS $$
    SELECT turnstile.written(jsonb_build_object(
        'fair', in_pool.fair, 'weights', in_pool.weights, 'paused', in_pool.paused))
$$;

-- pool_actions: how many actions a pool has, and the first of them as JSON: action_ref, weight, served.
CREATE FUNCTION turnstile.pool_actions(
    in_pool_id bigint, in_weights jsonb, in_limit integer, OUT actions bigint, OUT listed text
)
LANGUAGE sql
STABLE
AS $$
    SELECT count(*),
           jsonb_agg(jsonb_build_object('action_ref', n.ref, 'weight',
                                        coalesce((in_weights ->> n.ref)::integer, 1),
                                        'served', n.served)
                     ORDER BY n.rank) FILTER (WHERE n.rank <= in_limit)
    FROM (
        SELECT a.ref, a.served, row_number() OVER (ORDER BY a.ref COLLATE "C") AS rank
        FROM public.action a WHERE a.pool_id = in_pool_id AND a.deleted_at IS NULL
    ) n
$$;

-- put_pool: stores the settings of a pool, whose columns are the keys of `in_definition`, and creates it if
-- it is missing. The caller then calls `advance_gates`, and grants in the queues that are returned: what
-- waits there may start if the pool was resumed.
CREATE FUNCTION turnstile.put_pool(in_definition jsonb, in_caller jsonb DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    wanted worker_pool := jsonb_populate_record(NULL::worker_pool, in_definition);
    stored worker_pool;
    list_id bigint;
    old jsonb := '{}';
    new jsonb := turnstile.definition_of_pool(wanted);
BEGIN
    PERFORM turnstile.note_caller(in_caller);
    SELECT g.id INTO list_id FROM gate g WHERE g.kind = 'pool' AND g.name = wanted.name FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM worker_pool p WHERE p.name = wanted.name) THEN
        SELECT * INTO stored FROM worker_pool p WHERE p.name = wanted.name FOR NO KEY UPDATE;
        old := turnstile.definition_of_pool(stored);
    ELSE
        PERFORM turnstile.create_pools(ARRAY[wanted.name]);
        SELECT * INTO stored FROM worker_pool p WHERE p.name = wanted.name FOR NO KEY UPDATE;
    END IF;
    IF stored.id IS NULL THEN
        RAISE EXCEPTION 'the pool was deleted meanwhile'
            USING ERRCODE = 'serialization_failure', HINT = 'Repeat the statement.';
    END IF;
    IF old = new THEN
        RETURN;
    END IF;
    UPDATE worker_pool p
    SET paused = wanted.paused, fair = wanted.fair, weights = wanted.weights, updated_at = clock_timestamp()
    WHERE p.id = stored.id;
    PERFORM turnstile.pause_list(list_id, wanted.paused);
    WITH state AS MATERIALIZED (
        SELECT v.* FROM pool_state v WHERE v.pool_id = stored.id ORDER BY v.version DESC LIMIT 1
    ),
    written AS (
        INSERT INTO pool_state (pool_id, version, capacity, places, lead, leaving, held, depth, virtual_times,
                                total_released, updated_at)
        SELECT s.pool_id, s.version + 1,
               CASE WHEN wanted.paused OR stored.paused
                    THEN turnstile.capacity_of(wanted.paused, s.places, s.lead, s.leaving)
                    ELSE s.capacity END,
               s.places, s.lead, s.leaving, s.held, s.depth, s.virtual_times, s.total_released,
               clock_timestamp()
        FROM state s
    )
    DELETE FROM pool_state v USING state s
    WHERE v.pool_id = ANY (ARRAY[s.pool_id]) AND v.version BETWEEN s.version AND s.version;
    IF stored.fair <> wanted.fair THEN
        PERFORM turnstile.renew_turns(stored.id, list_id, wanted.fair);
    END IF;
    PERFORM turnstile.record_change('pool', wanted.name, old, new);
    IF NOT wanted.paused THEN
        RETURN QUERY
            SELECT q.id FROM unnest(turnstile.queues_with_room(ARRAY[stored.id])) q(id)
            UNION
            SELECT q.id FROM turnstile.queues_behind(list_id, 1000) q(id);
    END IF;
END
$$;

-- renew_turns: after a change of the order of this pool, which the caller has locked together with its list:
-- what waits keeps its turns, with tags of the new order. By arrival these are ids; in the fair order all
-- actions start anew, at the same tag.
CREATE FUNCTION turnstile.renew_turns(in_pool_id bigint, in_list_id bigint, in_fair boolean)
RETURNS void
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    tags bigint[] := ARRAY(
        SELECT CASE WHEN in_fair THEN greatest(
                   v.tag,
                   (SELECT max(t.start_tag) FROM pool_turn t
                    WHERE t.pool_id = in_pool_id AND t.priority = v.priority),
                   (SELECT g.virtual_times[v.priority] FROM turnstile.current_gate g WHERE g.id = in_list_id),
                   (SELECT max(t.start_tag) FROM flow_turn t
                    WHERE t.gate_id = in_list_id AND t.priority = v.priority))
               ELSE 0 END
        FROM turnstile.current_pool p
        CROSS JOIN LATERAL unnest(p.virtual_times) WITH ORDINALITY v(tag, priority)
        WHERE p.id = in_pool_id ORDER BY v.priority);
    turns pool_turn[];
BEGIN
    WITH gone AS (DELETE FROM pool_turn t WHERE t.pool_id = in_pool_id RETURNING t.*)
    SELECT array_agg(g::pool_turn) FILTER (WHERE g.place IS NOT NULL) INTO turns FROM gone g;
    INSERT INTO pool_turn (action_id, priority, start_tag, pool_id, place)
    SELECT t.action_id, t.priority,
           CASE WHEN in_fair THEN tags[t.priority] ELSE turnstile.id_of_place(t.place) END, in_pool_id,
           t.place
    FROM unnest(turns) t;
    UPDATE pool_state v SET virtual_times = tags, updated_at = clock_timestamp()
    FROM turnstile.current_pool p
    WHERE p.id = in_pool_id AND v.pool_id = ANY (ARRAY[p.id]) AND v.version BETWEEN p.version AND p.version;
    IF in_list_id IS NULL OR NOT in_fair THEN
        -- By arrival the list of the pool does not read the tags of its turns.
        RETURN;
    END IF;
    UPDATE flow_turn t SET start_tag = tags[t.priority]
    WHERE t.gate_id = in_list_id AND t.start_tag <> tags[t.priority];
    UPDATE gate_state v SET virtual_times = tags, heads = NULL, updated_at = clock_timestamp()
    FROM turnstile.current_gate g
    WHERE g.id = in_list_id AND v.gate_id = ANY (ARRAY[g.id]) AND v.version BETWEEN g.version AND g.version;
END
$$;

-- waiting_for_workers: how many executions more workers would start, by pool; none of a paused one. They are
-- in queues that have turns in their pool or whose action no worker serves, and in the lists of the pools.
CREATE FUNCTION turnstile.waiting_for_workers()
RETURNS TABLE (pool_id bigint, executions bigint)
LANGUAGE sql
STABLE
AS $$
    SELECT w.pool_id, sum(w.executions)::bigint AS executions
    FROM (
        SELECT a.pool_id, greatest(least(q.depth, q.max_concurrent - q.held), 0) AS executions
        FROM (
            SELECT n.queue_id AS id FROM public.ready_queue n
            UNION
            SELECT k.id FROM public.action_queue k JOIN public.action u ON u.id = k.action_id AND NOT u.served
        ) c
        JOIN turnstile.current_queue q ON q.id = ANY (ARRAY[c.id])
        JOIN public.action a ON a.id = ANY (ARRAY[q.action_id])
        WHERE q.depth > 0 AND NOT q.paused
        UNION ALL
        SELECT a.pool_id, (SELECT count(*) FROM public.waiting w WHERE w.line_id = f.id)
        FROM public.gate g
        JOIN public.gate_flow f ON f.gate_id = g.id
        JOIN public.action a ON a.id = f.flow_id
        WHERE g.kind = 'pool'
          AND NOT EXISTS (SELECT FROM turnstile.starts_left(a.route, now()) l WHERE l.starts <= 0)
    ) w
    JOIN public.worker_pool p ON p.id = w.pool_id AND NOT p.paused
    GROUP BY w.pool_id
$$;

-- pool_sources: where executions wait only for a worker slot of this pool: queues with a turn, of which
-- `startable` executions could start, and the flows of the pool's list that lack no start of a rate.
CREATE FUNCTION turnstile.pool_sources(in_pool_id bigint)
RETURNS TABLE (
    action_id bigint, line_id bigint, in_list boolean, first_place bigint, head_id bigint, heads bigint[],
    startable bigint)
LANGUAGE sql
STABLE
AS $$
    SELECT a.id, q.id, false, r.place, q.head_id, q.heads,
           greatest(least(q.depth, q.max_concurrent - q.held), 0)
    FROM public.action a
    JOIN public.ready_queue r ON r.action_id = a.id
    JOIN turnstile.current_queue q ON q.id = ANY (ARRAY[r.queue_id])
    WHERE a.pool_id = in_pool_id AND a.served AND NOT q.paused
    UNION ALL
    SELECT f.flow_id, f.id, true, NULL, 0,
           ARRAY[turnstile.place_of(1, 0), turnstile.place_of(2, 0), NULL, turnstile.place_of(4, 0),
                 turnstile.place_of(5, 0)],
           (SELECT count(*) FROM public.waiting w WHERE w.line_id = f.id)
    FROM public.worker_pool p
    JOIN public.gate g ON g.kind = 'pool' AND g.name = p.name
    JOIN public.gate_flow f ON f.gate_id = g.id
    JOIN public.action a ON a.id = f.flow_id AND a.served
    WHERE p.id = in_pool_id
      AND NOT EXISTS (SELECT FROM turnstile.starts_left(a.route, clock_timestamp()) l WHERE l.starts <= 0)
$$;

-- pool_line: the first executions that wait only for a worker slot of this pool, in the order in which they
-- will start if nothing else arrives.
CREATE FUNCTION turnstile.pool_line(in_pool_id bigint, in_limit bigint)
RETURNS TABLE (rank bigint, execution_id bigint, priority integer)
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    WITH pool AS MATERIALIZED (
        SELECT * FROM turnstile.current_pool p WHERE p.id = in_pool_id
    ),
    source AS MATERIALIZED (
        -- The first queues of an action have its first executions.
        SELECT * FROM (
            SELECT s.*, row_number() OVER (PARTITION BY s.action_id,
                                           s.in_list ORDER BY s.first_place) AS source_rank
            FROM turnstile.pool_sources(in_pool_id) s WHERE s.startable > 0
        ) n WHERE n.source_rank <= in_limit
    ),
    entry AS MATERIALIZED (
        SELECT s.action_id, s.line_id, s.in_list, w.place, turnstile.priority_of_place(w.place) AS priority
        FROM source s CROSS JOIN LATERAL turnstile.first_waiting(s.line_id, s.head_id, s.heads,
                                                                 least(s.startable, in_limit)) w
    ),
    flow AS MATERIALIZED (
        SELECT n.action_id, n.in_list, n.priority, turnstile.step_of(p.weights, a.ref) AS step,
               greatest(p.virtual_times[n.priority], CASE
                   WHEN n.in_list THEN (
                       SELECT max(t.start_tag) FROM flow_turn t
                       WHERE t.line_id = n.line_id AND t.priority = n.priority AND t.place IS NOT NULL)
                   ELSE (
                       SELECT max(t.start_tag) FROM pool_turn t
                       WHERE t.action_id = n.action_id AND t.priority = n.priority)
               END) AS start_tag
        FROM (
            SELECT e.action_id, e.in_list, e.priority, max(e.line_id) AS line_id FROM entry e GROUP BY 1, 2, 3
        ) n
        JOIN action a ON a.id = n.action_id
        CROSS JOIN pool p
    ),
    ranked AS (
        SELECT e.place, e.priority,
               CASE WHEN (SELECT p.fair FROM pool p) THEN f.start_tag + f.step * (
                   row_number() OVER (PARTITION BY e.action_id, e.in_list,
                                      e.priority ORDER BY e.place) - 1) END AS tag
        FROM entry e
        JOIN flow f ON f.action_id = e.action_id AND f.in_list = e.in_list AND f.priority = e.priority
    )
    SELECT row_number() OVER (ORDER BY r.priority, r.tag, r.place), turnstile.id_of_place(r.place), r.priority
    FROM ranked r ORDER BY r.priority, r.tag, r.place LIMIT in_limit
$$;
