-- execution_gates: where an execution waits after its queue, or which closed gate keeps it in its queue, what
-- it lacks there, and the gates that it has passed. For an action without gates all of it is null.
--
-- The position at a gate by arrival counts the executions before it; at a fair gate it follows from the tags,
-- which are known in advance for all that waits (docs/gates.md); for a rate it counts within the action,
-- because an execution may be passed over by those of others.
--
-- $1 execution id, $2 most holders
WITH one AS MATERIALIZED (
    SELECT e.id, e.queue_id, e.status, e.attempt, e.queued_at, e.gates, a.route, a.route_units,
           turnstile.place_of(e.priority, e.id) AS place
    FROM turnstile.current_execution e JOIN action a ON a.id = e.action_id
    WHERE e.id = $1
),
entry AS MATERIALIZED (
    SELECT w.line_id, w.place, w.gate_ids, w.gate_units, w.passed_ats,
           coalesce(f.gate_id, w.line_id) AS gate_id
    FROM one o
    JOIN waiting w ON w.queue_id = o.queue_id AND w.place BETWEEN o.place AND o.place
    LEFT JOIN gate_flow f ON f.id = w.line_id
),
closed AS MATERIALIZED (
    SELECT g.id AS gate_id, CASE WHEN g.paused THEN 'paused' WHEN g.capacity = 0 THEN 'capacity_zero'
                                 ELSE 'capacity_too_low' END AS reason
    FROM one o
    CROSS JOIN unnest(o.route, o.route_units) WITH ORDINALITY r(gate_id, units, rank)
    JOIN gate g ON g.id = r.gate_id
    -- What a paused pool has sent back to its queue waits there for the pool.
    WHERE o.status = 'queued' AND g.kind <> 'pool' AND (g.paused OR g.capacity < r.units)
    ORDER BY r.rank LIMIT 1
),
here AS MATERIALIZED (
    SELECT g.*, n.is_closed,
           coalesce((SELECT o.route_units[array_position(o.route, g.id)] FROM one o), 1) AS units
    FROM (
        SELECT c.gate_id, true AS is_closed FROM closed c
        UNION ALL
        SELECT y.gate_id, false FROM entry y WHERE NOT EXISTS (SELECT FROM closed)
    ) n
    JOIN turnstile.current_gate g ON g.id = n.gate_id
),
-- The flows that have executions at this fair gate; each passage moves the tag of a flow by one step.
turn AS MATERIALIZED (
    SELECT t.line_id, t.priority, t.start_tag, t.place AS first_place,
           ((t.priority - 2)::bigint << 58) - 1 AS last_place,
           CASE g.kind WHEN 'action' THEN 1
                ELSE coalesce((SELECT a.route_units[array_position(a.route, g.id)] FROM action a
                               WHERE a.id = f.flow_id), 1) END
           * 720720::bigint / turnstile.weight_of(g.id, coalesce(g.action_id, f.flow_id), f.flow_id) AS step
    FROM here g
    CROSS JOIN LATERAL unnest(g.virtual_times) WITH ORDINALITY v(tag, priority)
    JOIN flow_turn t ON t.gate_id = g.id AND t.priority = v.priority AND t.place IS NOT NULL
        AND t.start_tag >= v.tag
    JOIN gate_flow f ON f.id = t.line_id
    WHERE g.fair AND g.kind <> 'pool' AND NOT g.is_closed
),
own AS MATERIALIZED (
    SELECT t.line_id, t.priority, y.place, n.before, t.start_tag + n.before * t.step AS tag
    FROM entry y
    JOIN turn t ON t.line_id = y.line_id AND y.place BETWEEN t.first_place AND t.last_place
    CROSS JOIN LATERAL (
        SELECT count(*) AS before FROM waiting w
        WHERE w.line_id = t.line_id AND w.place >= t.first_place AND w.place < y.place
    ) n
),
by_tag AS (
    SELECT 1 + sum(CASE
        WHEN t.line_id = o.line_id AND t.priority = o.priority THEN o.before
        WHEN t.priority < o.priority THEN (
            SELECT count(*) FROM waiting w
            WHERE w.line_id = t.line_id AND w.place BETWEEN t.first_place AND t.last_place)
        WHEN t.priority > o.priority OR t.start_tag > o.tag THEN 0
        ELSE (
            -- Its executions with smaller tags, and one with the same tag, of which the earlier place is
            -- first.
            SELECT count(*) FILTER (WHERE n.rank < m.smaller OR n.place < o.place)
            FROM (SELECT (o.tag - t.start_tag + t.step - 1) / t.step AS smaller,
                         ((o.tag - t.start_tag) % t.step = 0)::integer AS equal) m
            CROSS JOIN LATERAL (
                SELECT w.place, row_number() OVER (ORDER BY w.place) - 1 AS rank FROM waiting w
                WHERE w.line_id = t.line_id AND w.place BETWEEN t.first_place AND t.last_place
                ORDER BY w.place LIMIT m.smaller + m.equal
            ) n)
        END)::bigint AS position
    FROM own o CROSS JOIN turn t
),
holder AS (
    SELECT h.execution_id, h.queue_id, h.line_id, h.is_unclaimed,
           h.gate_units[array_position(h.gate_ids, g.id)] AS units
    FROM here g
    CROSS JOIN LATERAL (
        SELECT s.execution_id, s.queue_id, NULL::bigint AS line_id,
               s.claimed_at IS NULL AND s.finished_at IS NULL AS is_unclaimed, s.gate_ids, s.gate_units
        FROM turnstile.live_slot s
        UNION ALL
        SELECT turnstile.id_of_place(w.place), w.queue_id, w.line_id, false, w.gate_ids, w.gate_units
        FROM waiting w
        WHERE w.queue_id IS NOT NULL
        UNION ALL
        SELECT u.execution_id, u.queue_id, NULL, false, u.gate_ids, u.gate_units
        FROM turnstile.live_unpublished_completion u
    ) h
    WHERE g.kind <> 'pool' AND g.id = ANY (h.gate_ids)
    ORDER BY h.execution_id LIMIT $2
),
-- What holds units of this gate, or slots of this queue, and does not run; by what it waits for: a worker for
-- its action, or its turn in a list.
idle AS MATERIALIZED (
    SELECT h.execution_id, h.line_id,
           CASE WHEN h.is_unclaimed
                    THEN (SELECT q.action_id FROM action_queue q WHERE q.id = h.queue_id) END AS action_id
    FROM holder h WHERE h.is_unclaimed OR h.line_id IS NOT NULL
    UNION ALL
    (SELECT turnstile.id_of_place(w.place), w.line_id, NULL
     FROM one o JOIN waiting w ON w.queue_id = ANY (ARRAY[o.queue_id])
     WHERE o.status = 'queued' AND NOT EXISTS (SELECT FROM here)
     ORDER BY 1 LIMIT $2)
)
SELECT EXISTS (SELECT FROM entry) AS has_passed_queue, o.route IS NOT NULL AS has_route,
       (SELECT c.reason FROM closed c) AS closed,
       g.kind, g.id AS gate_id, g.name, g.capacity, g.held, g.units,
       CASE WHEN NOT g.is_closed THEN CASE
           WHEN g.kind = 'pool' THEN (
               SELECT count(*) FROM entry y JOIN waiting w ON w.line_id = y.line_id AND w.place <= y.place)
           WHEN g.fair THEN (SELECT t.position FROM by_tag t)
           ELSE (SELECT turnstile.waiting_up_to(g.id, g.head_id, g.heads, y.place) FROM entry y)
       END END AS position,
       CASE WHEN g.kind = 'pool' THEN (SELECT count(*) FROM entry y JOIN waiting w ON w.line_id = y.line_id)
            WHEN NOT g.is_closed THEN g.depth END AS waiting,
       (SELECT json_agg(json_build_object('id', h.execution_id, 'units', h.units) ORDER BY h.execution_id)
        FROM holder h) AS holders,
       (SELECT json_agg(json_build_object(
                   'rate_of', CASE r.kind WHEN 'action' THEN 'action' ELSE 'resource ' || r.name END,
                   'starts', r.rate_starts, 'per_seconds', r.rate_per_seconds,
                   'starts_left', l.starts, 'next_start_at', CASE WHEN l.starts <= 0 THEN l.next_at END
               ) ORDER BY array_position(o.route, r.id))
        FROM turnstile.starts_left(o.route, clock_timestamp()) l JOIN gate r ON r.id = l.gate_id
        WHERE g.kind = 'pool') AS rates,
       -- What holds a slot of its queue while it waits at a later gate.
       CASE WHEN o.status = 'queued' THEN (
           SELECT (array_agg(turnstile.id_of_place(w.place) ORDER BY turnstile.id_of_place(w.place)))[1:$2]
           FROM waiting w WHERE w.queue_id = o.queue_id) END AS later_ids,
       (SELECT (array_agg(i.execution_id ORDER BY i.execution_id))[1:$2]
        FROM (SELECT * FROM idle ORDER BY execution_id LIMIT 1) f
        JOIN idle i ON (i.line_id, i.action_id) IS NOT DISTINCT FROM (f.line_id, f.action_id)) AS idle_ids,
       coalesce(turnstile.gates_so_far(o.id, o.queue_id, o.place, o.status::text, o.queued_at),
                o.gates) AS gates
FROM one o LEFT JOIN here g ON true

-- resource_queue: the state of one resource, and who holds its units.
--
-- $1 name, $2 most holders
WITH here AS MATERIALIZED (
    SELECT * FROM turnstile.current_gate g WHERE g.kind = 'resource' AND g.name = $1
),
holder AS MATERIALIZED (
    SELECT h.execution_id, h.queue_id, h.status, h.gate_units[array_position(h.gate_ids, g.id)] AS units,
           h.passed_ats[array_position(h.gate_ids, g.id) + 1] AS passed_at
    FROM here g
    CROSS JOIN LATERAL (
        SELECT s.execution_id, s.queue_id, s.gate_ids, s.gate_units, s.passed_ats,
               CASE WHEN s.finished_at IS NOT NULL THEN 'ended' WHEN s.claimed_at IS NULL THEN 'scheduled'
                    ELSE 'running' END AS status
        FROM turnstile.live_slot s
        UNION ALL
        SELECT turnstile.id_of_place(w.place), w.queue_id, w.gate_ids, w.gate_units, w.passed_ats, 'queued'
        FROM waiting w WHERE w.queue_id IS NOT NULL
        UNION ALL
        SELECT u.execution_id, u.queue_id, u.gate_ids, u.gate_units, NULL, 'ended'
        FROM turnstile.live_unpublished_completion u
    ) h
    WHERE g.id = ANY (h.gate_ids)
)
SELECT g.name, g.capacity, g.paused, g.fair, g.held, g.depth,
       (SELECT coalesce(sum(h.units), 0)::bigint FROM holder h WHERE h.status = 'queued') AS held_waiting,
       (SELECT json_agg(json_build_object(
                   'id', h.execution_id, 'action_ref', a.ref, 'concurrency_key',
                   nullif(q.concurrency_key, ''), 'units', h.units, 'status', h.status, 'passed_at',
                   h.passed_at
               ) ORDER BY h.execution_id)
        FROM (SELECT * FROM holder ORDER BY execution_id LIMIT $2) h
        JOIN action_queue q ON q.id = h.queue_id
        JOIN action a ON a.id = q.action_id) AS holders
FROM here g

-- resource_waiting: the executions that wait at a resource, in the order in which they will pass it
-- (`execution_gates`).
--
-- $1 name, $2 positions before the page, $3 rows
WITH here AS MATERIALIZED (
    SELECT * FROM turnstile.current_gate g WHERE g.kind = 'resource' AND g.name = $1 AND g.depth > 0
),
turn AS MATERIALIZED (
    SELECT g.id AS line_id, turnstile.priority_of_place(r.last_place) AS priority, 0::bigint AS start_tag,
           r.first_place, r.last_place, 0::bigint AS step
    FROM here g CROSS JOIN turnstile.line_ranges(g.head_id, g.heads) r
    WHERE NOT g.fair
    UNION ALL
    SELECT t.line_id, t.priority, t.start_tag, t.place, ((t.priority - 2)::bigint << 58) - 1,
           coalesce((SELECT a.route_units[array_position(a.route, g.id)] FROM action a
                     WHERE a.id = f.flow_id), 1)
           * 720720::bigint / turnstile.weight_of(g.id, f.flow_id, NULL)
    FROM here g
    CROSS JOIN LATERAL unnest(g.virtual_times) WITH ORDINALITY v(tag, priority)
    JOIN flow_turn t ON t.gate_id = g.id AND t.priority = v.priority AND t.place IS NOT NULL
        AND t.start_tag >= v.tag
    JOIN gate_flow f ON f.id = t.line_id
    WHERE g.fair
),
page AS MATERIALIZED (
    SELECT n.*, row_number() OVER (ORDER BY n.priority, n.tag, n.place) AS position
    FROM (
        SELECT w.place, w.passed_ats, t.priority, t.start_tag + w.rank * t.step AS tag
        FROM turn t
        CROSS JOIN LATERAL (
            SELECT i.place, i.passed_ats, row_number() OVER (ORDER BY i.place) - 1 AS rank FROM waiting i
            WHERE i.line_id = t.line_id AND i.place BETWEEN t.first_place AND t.last_place
            ORDER BY i.place LIMIT $2::bigint + $3::bigint
        ) w
    ) n
    ORDER BY n.priority, n.tag, n.place OFFSET $2::bigint LIMIT $3::bigint
)
SELECT e.id, p.position, a.ref AS action_ref, e.concurrency_key, p.priority,
       coalesce(a.route_units[array_position(a.route, (SELECT g.id FROM here g))], 1) AS units,
       p.passed_ats[cardinality(p.passed_ats)] AS arrived_at, e.queued_at
FROM page p
JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(p.place)])
JOIN action a ON a.id = e.action_id
ORDER BY p.position

-- gate_grants: how long executions hold what they acquire at a gate, or in the queue of an action with gates,
-- who holds it now, and what is before one execution there. As `queue_grants`, for executions with gates
-- after their queue.
--
-- A grant is here the passage of that gate, up to the end; a claim is counted from it, so it contains the
-- waits at later gates. Bounded: of each action the latest executions that are not behind its holders are
-- read.
--
-- `due`: for a rate, the seconds from now until the start of this position is free: if only this action
-- starts, and if the others that wait for the rate take turns with it. The start with the number n is free
-- `per` after the start with the number n - `starts` (P13).
--
-- $1 execution id, $2 its gate, null: its queue, $3 executions looked at, $4 holders, $5 position
WITH one AS MATERIALIZED (
    SELECT e.id, e.action_id, e.queue_id, e.concurrency_key, e.priority, e.status, q.head_id, q.heads,
           a.route,
           turnstile.place_of(e.priority, e.id) AS place, g.id AS gate_id, g.kind, g.fair,
           CASE g.kind WHEN 'action' THEN 'total' WHEN 'resource' THEN 'resource ' || g.name
                WHEN 'pool' THEN 'rate'
                       ELSE 'queue' END AS name
    FROM turnstile.current_execution e
    JOIN turnstile.current_queue q ON q.id = ANY (ARRAY[e.queue_id])
    JOIN action a ON a.id = ANY (ARRAY[e.action_id])
    LEFT JOIN gate g ON g.id = $2
    WHERE e.id = $1
),
holder AS MATERIALIZED (
    SELECT h.execution_id, q.action_id, h.has_slot, h.has_ended,
           h.passed_ats[coalesce(array_position(h.gate_ids, o.gate_id), 0) + 1] AS passed_at
    FROM one o
    CROSS JOIN LATERAL (
        SELECT s.execution_id, s.queue_id, s.gate_ids, s.passed_ats, true AS has_slot,
               s.finished_at IS NOT NULL AS has_ended
        FROM turnstile.live_slot s
        UNION ALL
        SELECT turnstile.id_of_place(w.place), w.queue_id, w.gate_ids, w.passed_ats, false, false
        FROM waiting w WHERE w.queue_id IS NOT NULL
        UNION ALL
        SELECT u.execution_id, u.queue_id, u.gate_ids, NULL, false, true
        FROM turnstile.live_unpublished_completion u WHERE u.gate_ids IS NOT NULL
    ) h
    JOIN action_queue q ON q.id = ANY (ARRAY[h.queue_id])
    WHERE CASE WHEN o.gate_id IS NULL THEN h.queue_id = o.queue_id ELSE o.gate_id = ANY (h.gate_ids) END
),
ended AS MATERIALIZED (
    SELECT x.* FROM one o
    CROSS JOIN LATERAL (
        SELECT a.id FROM action a
        WHERE a.id = o.action_id OR a.route IS NOT NULL AND o.gate_id = ANY (a.route) AND o.kind <> 'pool'
        ORDER BY a.id = o.action_id DESC, a.id LIMIT 10
    ) u
    CROSS JOIN LATERAL (
        SELECT CASE WHEN o.gate_id IS NULL THEN e.concurrency_key IS NOT DISTINCT FROM o.concurrency_key
                    ELSE e.action_id = o.action_id END AS own,
               e.scheduled_at, e.started_at, e.completed_at, e.gates
        FROM execution e
        WHERE e.action_id = u.id AND e.id <= coalesce(
                  (SELECT max(h.execution_id) FROM holder h WHERE h.has_slot AND h.action_id = u.id),
                  9223372036854775807)
        ORDER BY e.id DESC LIMIT $3::integer
    ) x
    WHERE x.completed_at IS NOT NULL AND x.scheduled_at IS NOT NULL AND x.started_at >= x.scheduled_at
),
granted AS (
    SELECT e.own, n.step ->> 'arrived_at' AS arrived_at, (n.step ->> 'passed_at')::timestamptz AS passed_at,
           e.started_at, e.completed_at
    FROM one o CROSS JOIN ended e
    CROSS JOIN LATERAL (
        SELECT s.step FROM jsonb_array_elements(e.gates) s(step) WHERE s.step ->> 'gate' = o.name LIMIT 1
    ) n
    UNION ALL
    SELECT h.action_id = o.action_id, NULL, h.passed_at, NULL, NULL
    FROM one o CROSS JOIN holder h WHERE NOT h.has_ended AND o.kind IS DISTINCT FROM 'pool'
),
-- By arrival, those before it; in turns, any that wait: who will be before it depends on the weights.
before AS MATERIALIZED (
    SELECT avg(n.units) AS units FROM (
        SELECT coalesce(a.route_units[array_position(a.route, o.gate_id)], 1) AS units
        FROM one o
        CROSS JOIN LATERAL (
            SELECT o.gate_id AS id WHERE NOT o.fair
            UNION ALL
            SELECT f.id FROM gate_flow f WHERE o.fair AND f.gate_id = o.gate_id
        ) listed
        CROSS JOIN LATERAL (
            SELECT w.place FROM waiting w WHERE w.line_id = listed.id AND (o.fair OR w.place <= o.place)
            ORDER BY w.place LIMIT $3::integer
        ) w
        JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(w.place)])
        JOIN action a ON a.id = ANY (ARRAY[e.action_id])
        WHERE o.kind <> 'pool'
        LIMIT $3::integer
    ) n
),
rate AS MATERIALIZED (
    SELECT g.id, g.starts_taken, g.rate_starts AS starts, make_interval(secs => g.rate_per_seconds) AS per,
           $5::bigint AS alone, $5::bigint + coalesce((
               SELECT sum((SELECT count(*) FROM waiting w
                           WHERE w.line_id = f.id AND w.place < ((o.priority - 3)::bigint << 58))
                          + (SELECT count(*) FROM (
                                 SELECT FROM waiting w
                                 WHERE w.line_id = f.id AND w.place >= ((o.priority - 3)::bigint << 58)
                                   AND w.place < ((o.priority - 2)::bigint << 58)
                                 LIMIT $5::bigint) n))
               FROM gate_flow f JOIN action a ON a.id = ANY (ARRAY[f.flow_id])
               WHERE f.gate_id = o.gate_id AND f.flow_id <> o.action_id AND g.id = ANY (a.route)),
                                                      0)::bigint AS in_turns
    FROM one o JOIN turnstile.current_gate g ON g.id = ANY (o.route) AND g.rate_starts IS NOT NULL
    WHERE o.kind = 'pool'
),
due AS (
    SELECT n.rank,
           extract(epoch FROM max(greatest(now(),
                                           coalesce(s.granted_at + r.per, now())) + r.per * (m.rounds - 1))
                   - now())::float8 AS seconds
    FROM rate r
    CROSS JOIN LATERAL (VALUES (1, r.alone), (2, r.in_turns)) n(rank, position)
    CROSS JOIN LATERAL (SELECT (n.position + r.starts - 1) / r.starts AS rounds) m
    LEFT JOIN rate_start s
        ON s.gate_id = r.id AND s.number = r.starts_taken + n.position - m.rounds * r.starts
    GROUP BY n.rank
)
SELECT now() AS read_at,
       (SELECT json_agg(json_build_array(
                   g.own,
                   extract(epoch FROM now() - coalesce(g.arrived_at::timestamptz, g.passed_at))::float8,
                   extract(epoch FROM now() - g.passed_at)::float8,
                   extract(epoch FROM g.started_at - g.passed_at)::float8,
                   extract(epoch FROM g.completed_at - g.passed_at)::float8))
        FROM granted g WHERE g.passed_at IS NOT NULL) AS grants,
       (SELECT array_agg(h.age) FROM (
            SELECT CASE WHEN NOT h.has_ended
                            THEN greatest(extract(epoch FROM now() - h.passed_at), 0)::float8 END AS age
            FROM holder h ORDER BY hashint8(h.execution_id), h.execution_id LIMIT $4::integer
        ) h) AS ages,
       CASE WHEN o.status = 'delayed'
                THEN turnstile.waiting_up_to(o.queue_id, o.head_id, o.heads, o.place - 1) END AS ahead,
       (SELECT count(*) FROM holder) AS holders,
       (SELECT ceil(b.units * $5::bigint)::float8 FROM before b) AS units_ahead,
       (SELECT array_agg(d.seconds ORDER BY d.rank) FROM due d) AS due
FROM one o
