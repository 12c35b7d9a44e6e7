-- Sets of workers: the live workers of a pool that serve an action, where other workers of the pool do not
-- (docs/gates.md).
--
-- Executions that only the workers of a set can run hold at most the capacity of these workers and the lead
-- of the pool. An action belongs to the set of its workers and to each set that contains it. A pool whose
-- workers serve the same actions has no sets, and a grant there costs the same as without them.
--
-- `worker_set_state` has one row per pool, the newest version: the actions of each set, and its room.
-- `refresh_pools` counts the room several times per second, and `share_worker_slots` keeps it between two
-- counts. It is null until all workers of the set are busy. While a set has a room, `pool_state.depth` is
-- one higher, so that each grant in the pool shares its worker slots.

-- current_worker_sets: the newest versions.
CREATE VIEW turnstile.current_worker_sets AS
SELECT p.id AS pool_id, s.version, s.action_ids, s.set_numbers, s.are_own, s.places, s.rooms, s.is_scarce
FROM public.worker_pool p
CROSS JOIN LATERAL (
    SELECT * FROM public.worker_set_state v WHERE v.pool_id = p.id ORDER BY v.version DESC LIMIT 1
) s;

-- replace_worker_sets: writes the next versions of these rows.
CREATE FUNCTION turnstile.replace_worker_sets(in_states worker_set_state[])
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO public.worker_set_state (pool_id, version, action_ids, set_numbers, are_own, places, rooms,
                                         is_scarce)
    SELECT s.pool_id, s.version + 1, s.action_ids, s.set_numbers, s.are_own, s.places, s.rooms, s.is_scarce
    FROM unnest(in_states) s;
    DELETE FROM public.worker_set_state v USING unnest(in_states) s
    WHERE v.pool_id = ANY (ARRAY[s.pool_id]) AND v.version BETWEEN s.version AND s.version;
$$;

-- raise_turns: while an action is held back, virtual time passes its turns in these pools, which the caller
-- has locked. Its next turn is now.
CREATE FUNCTION turnstile.raise_turns(in_pool_ids bigint[])
RETURNS void
LANGUAGE sql
AS $$
    WITH late AS MATERIALIZED (
        SELECT t.*, p.virtual_times[t.priority] AS next_tag
        FROM turnstile.current_worker_sets s
        JOIN turnstile.current_pool p ON p.id = s.pool_id
        CROSS JOIN LATERAL (SELECT DISTINCT a.id FROM unnest(s.action_ids) a(id)) a
        CROSS JOIN generate_series(1, 5) n(priority)
        CROSS JOIN LATERAL (
            SELECT * FROM public.pool_turn o
            WHERE o.action_id = a.id AND o.priority = n.priority ORDER BY o.start_tag DESC LIMIT 1
        ) t
        WHERE s.pool_id = ANY (in_pool_ids) AND s.is_scarce AND t.place IS NOT NULL
          AND t.start_tag < p.virtual_times[t.priority]
    ),
    gone AS (
        DELETE FROM public.pool_turn t USING late l
        WHERE t.action_id = ANY (ARRAY[l.action_id]) AND t.priority = l.priority AND t.start_tag = l.start_tag
    )
    INSERT INTO public.pool_turn (action_id, priority, start_tag, pool_id, place)
    SELECT l.action_id, l.priority, l.next_tag, l.pool_id, l.place FROM late l
$$;

-- find_worker_sets: brings the sets of these pools, which the caller has locked, to what the live workers
-- serve.
CREATE FUNCTION turnstile.find_worker_sets(in_pool_ids bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    states worker_set_state[];
BEGIN
    WITH live AS MATERIALIZED (
        SELECT w.id, w.concurrency, w.pools[1:100] AS pools, w.served_refs[1:10000] AS refs
        FROM turnstile.current_worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
          AND w.lease_expires_at > clock_timestamp()
    ),
    mixed AS MATERIALIZED (
        SELECT p.id AS pool_id, p.name, count(*) AS workers
        FROM public.worker_pool p JOIN live l ON p.name = ANY (l.pools)
        WHERE p.id = ANY (in_pool_ids)
        GROUP BY p.id HAVING count(DISTINCT coalesce(l.refs::text, '')) > 1
    ),
    listed AS MATERIALIZED (
        SELECT DISTINCT m.pool_id, l.id AS worker_id, r.ref
        FROM mixed m JOIN live l ON m.name = ANY (l.pools) CROSS JOIN LATERAL unnest(l.refs) r(ref)
    ),
    serving AS (
        SELECT a.id AS action_id, a.pool_id, s.worker_id
        FROM public.action a JOIN listed s ON s.pool_id = a.pool_id AND s.ref = a.ref
        WHERE a.deleted_at IS NULL AND a.runner = 'python' AND a.entrypoint IS NULL
        UNION ALL
        SELECT a.id, a.pool_id, l.id
        FROM mixed m
        JOIN live l ON m.name = ANY (l.pools) AND l.refs IS NULL
        JOIN public.action a ON a.pool_id = m.pool_id
        WHERE a.deleted_at IS NULL AND a.runner = 'python' AND a.entrypoint IS NULL
    ),
    able AS MATERIALIZED (
        SELECT s.action_id, s.pool_id, array_agg(s.worker_id ORDER BY s.worker_id) AS worker_ids
        FROM serving s JOIN mixed m ON m.pool_id = s.pool_id
        GROUP BY s.action_id, s.pool_id, m.workers
        HAVING count(*) < m.workers
    ),
    numbered AS MATERIALIZED (
        SELECT n.*, row_number() OVER (PARTITION BY n.pool_id ORDER BY n.worker_ids)::integer AS number,
               (SELECT sum(l.concurrency) FROM live l WHERE l.id = ANY (n.worker_ids))::integer AS places
        FROM (SELECT DISTINCT b.pool_id, b.worker_ids FROM able b) n
    ),
    member AS MATERIALIZED (
        SELECT n.pool_id, b.action_id, n.number, b.worker_ids = n.worker_ids AS is_own
        FROM numbered n JOIN able b ON b.pool_id = n.pool_id AND b.worker_ids <@ n.worker_ids
    ),
    found AS (
        SELECT p.id AS pool_id, coalesce(c.version, 0) AS version,
               coalesce(m.action_ids, '{}') AS action_ids, coalesce(m.set_numbers, '{}') AS set_numbers,
               coalesce(m.are_own, '{}') AS are_own,
               ARRAY(SELECT n.places FROM numbered n WHERE n.pool_id = p.id ORDER BY n.number) AS places,
               coalesce(c.is_scarce, false) AS is_scarce, c.action_ids AS old_action_ids,
               c.set_numbers AS old_set_numbers, c.places AS old_places
        FROM public.worker_pool p
        LEFT JOIN turnstile.current_worker_sets c ON c.pool_id = p.id
        LEFT JOIN (
            SELECT m.pool_id, array_agg(m.action_id ORDER BY m.action_id, m.number) AS action_ids,
                   array_agg(m.number ORDER BY m.action_id, m.number) AS set_numbers,
                   array_agg(m.is_own ORDER BY m.action_id, m.number) AS are_own
            FROM member m GROUP BY m.pool_id
        ) m ON m.pool_id = p.id
        WHERE p.id = ANY (in_pool_ids)
    )
    SELECT array_agg(ROW(f.pool_id, f.version, f.action_ids, f.set_numbers, f.are_own, f.places,
                         array_fill(NULL::bigint, ARRAY[cardinality(f.places)]),
                         f.is_scarce)::worker_set_state)
    INTO states
    FROM found f
    WHERE (f.action_ids, f.set_numbers, f.places)
          IS DISTINCT FROM (coalesce(f.old_action_ids, '{}'), coalesce(f.old_set_numbers, '{}'),
                            coalesce(f.old_places, '{}'));
    PERFORM turnstile.replace_worker_sets(states);
END
$$;

-- pools_with_busy_sets: the pools where the workers of a set may be busy, which is the case only if as many
-- slots are held.
CREATE FUNCTION turnstile.pools_with_busy_sets()
RETURNS bigint[]
LANGUAGE plpgsql
STABLE
AS $$
BEGIN
    RETURN ARRAY(
        SELECT p.id
        FROM turnstile.current_worker_sets s JOIN turnstile.current_pool p ON p.id = s.pool_id
        WHERE s.is_scarce OR p.held >= (SELECT min(n.places) FROM unnest(s.places) n(places)));
END
$$;

-- count_worker_sets: counts the rooms of the sets of these pools, which the caller has locked. Returns for
-- each pool how many executions are granted beyond the capacity of their workers and the lead (`held`), and
-- the change of its depth.
CREATE FUNCTION turnstile.count_worker_sets(in_pool_ids bigint[])
RETURNS turnstile.gate_change[]
LANGUAGE plpgsql
AS $$
DECLARE
    states worker_set_state[];
    excesses turnstile.gate_change[];
BEGIN
    WITH sets AS MATERIALIZED (
        SELECT s.*, p.lead FROM turnstile.current_worker_sets s JOIN turnstile.current_pool p
            ON p.id = s.pool_id
        WHERE s.pool_id = ANY (in_pool_ids) AND (cardinality(s.places) > 0 OR s.is_scarce)
    ),
    -- Slots that leaving workers hold take nothing from those that stay.
    held AS MATERIALIZED (
        SELECT s.pool_id, q.action_id, count(*) AS slots
        FROM turnstile.live_slot s
        JOIN public.action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        LEFT JOIN turnstile.current_worker w ON w.id = s.worker_id
        WHERE s.pool_id = ANY (ARRAY(SELECT n.pool_id FROM sets n))
          AND (s.worker_id IS NULL OR w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
                                      AND w.lease_expires_at > clock_timestamp())
        GROUP BY s.pool_id, q.action_id
    ),
    counted AS MATERIALIZED (
        SELECT s.pool_id, n.number, n.places, s.lead, s.rooms[n.number] AS room,
               coalesce(sum(h.slots), 0) AS held,
               coalesce(sum(h.slots) FILTER (WHERE m.is_own), 0) AS own_held
        FROM sets s
        CROSS JOIN unnest(s.places) WITH ORDINALITY n(places, number)
        LEFT JOIN unnest(s.action_ids, s.set_numbers, s.are_own) m(action_id, number, is_own)
            ON m.number = n.number
        LEFT JOIN held h ON h.pool_id = s.pool_id AND h.action_id = m.action_id
        GROUP BY s.pool_id, n.number, n.places, s.lead, s.rooms
    ),
    scarcity AS MATERIALIZED (
        -- A set stays scarce until half of its workers are idle: what waits for them takes every room at
        -- once.
        SELECT c.*, CASE WHEN c.held >= c.places OR c.room IS NOT NULL AND c.held * 2 >= c.places
                         THEN (c.places + c.lead - c.held)::bigint END AS next_room
        FROM counted c
    ),
    found AS MATERIALIZED (
        SELECT s.*, coalesce(j.rooms, '{}') AS next_rooms, coalesce(j.is_scarce, false) AS next_scarce,
               coalesce(j.excess, 0) AS excess
        FROM sets s
        LEFT JOIN (
            SELECT j.pool_id, array_agg(j.next_room ORDER BY j.number) AS rooms,
                   bool_or(j.next_room IS NOT NULL) AS is_scarce,
                   sum(greatest(j.own_held - j.places - j.lead, 0)) AS excess
            FROM scarcity j GROUP BY j.pool_id
        ) j ON j.pool_id = s.pool_id
    )
    SELECT array_agg(ROW(f.pool_id, f.version, f.action_ids, f.set_numbers, f.are_own, f.places, f.next_rooms,
                         f.next_scarce)::worker_set_state)
               FILTER (WHERE (f.rooms, f.is_scarce) IS DISTINCT FROM (f.next_rooms, f.next_scarce)),
           array_agg(ROW(f.pool_id, f.excess,
                         f.next_scarce::integer - f.is_scarce::integer)::turnstile.gate_change)
    INTO states, excesses
    FROM found f;
    PERFORM turnstile.replace_worker_sets(states);
    RETURN excesses;
END
$$;

-- scarce_actions: the actions of this pool whose workers are busy, and how many of their executions may
-- start, with what is released by `in_changes`. An action has a row for each of its sets that is scarce.
-- Null: none.
CREATE FUNCTION turnstile.scarce_actions(in_pool_id bigint, in_changes turnstile.queue_change[])
RETURNS turnstile.scarce_action[]
LANGUAGE plpgsql
STABLE
AS $$
DECLARE
    sets record;
BEGIN
    SELECT * INTO sets FROM public.worker_set_state v WHERE v.pool_id = in_pool_id ORDER BY v.version DESC
    LIMIT 1;
    IF sets.is_scarce IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT array_agg(ROW(m.action_id, m.number, sets.rooms[m.number] + m.freed)::turnstile.scarce_action)
        FROM (
            SELECT n.action_id, n.number, sum(coalesce(f.slots, 0)) OVER (PARTITION BY n.number) AS freed
            FROM unnest(sets.action_ids, sets.set_numbers) n(action_id, number)
            LEFT JOIN (
                SELECT q.action_id, -sum(c.held) AS slots
                FROM unnest(in_changes) c JOIN public.action_queue q ON q.id = ANY (ARRAY[c.queue_id])
                GROUP BY q.action_id
            ) f ON f.action_id = n.action_id
        ) m
        WHERE sets.rooms[m.number] IS NOT NULL);
END
$$;

-- held_back: the actions of which nothing may start, because their workers are busy.
CREATE FUNCTION turnstile.held_back(in_scarce turnstile.scarce_action[])
RETURNS bigint[]
LANGUAGE plpgsql
IMMUTABLE
AS $$
BEGIN
    RETURN ARRAY(SELECT s.action_id FROM unnest(in_scarce) s WHERE s.room <= 0);
END
$$;

-- take_rooms: the executions of these queues that start take room of the sets of their actions.
CREATE FUNCTION turnstile.take_rooms(
    in_pool_id bigint, in_scarce turnstile.scarce_action[], in_queue_ids bigint[], in_quotas bigint[]
)
RETURNS void
LANGUAGE sql
AS $$
    SELECT turnstile.replace_worker_sets(ARRAY(
        SELECT ROW(s.pool_id, s.version, s.action_ids, s.set_numbers, s.are_own, s.places, ARRAY(
                   SELECT CASE WHEN o.room IS NOT NULL THEN o.room - coalesce(t.started, 0) END
                   FROM unnest(s.rooms) WITH ORDINALITY r(room, number)
                   LEFT JOIN (
                       SELECT n.set_number, min(n.room) AS room FROM unnest(in_scarce) n GROUP BY n.set_number
                   ) o ON o.set_number = r.number
                   LEFT JOIN (
                       SELECT n.set_number, sum(c.quota) AS started
                       FROM unnest(in_queue_ids, in_quotas) c(queue_id, quota)
                       JOIN public.action_queue q ON q.id = ANY (ARRAY[c.queue_id])
                       JOIN unnest(in_scarce) n ON n.action_id = q.action_id
                       GROUP BY n.set_number
                   ) t ON t.set_number = r.number
                   ORDER BY r.number
               ), s.is_scarce)::public.worker_set_state
        FROM turnstile.current_worker_sets s WHERE s.pool_id = in_pool_id))
$$;
