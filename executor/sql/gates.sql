-- execution_gates: where an execution waits after its queue, or which closed gate keeps it in its queue, what it lacks
-- there, and the gates that it has passed. For an action without gates all of it is null.
--
-- The position at a gate by arrival counts the executions before it; at a fair gate it follows from the tags, which are
-- known in advance for all that waits (docs/gates.md); for a rate it counts within the action, because an execution may
-- be passed over by those of others.
--
-- $1 execution id, $2 most holders
WITH one AS MATERIALIZED (
    SELECT e.id, e.queue_id, e.status, e.attempt, e.queued_at, e.gates, a.route, a.route_units,
           turnstile.place_of(e.priority, e.id) AS place
    FROM turnstile.current_execution e JOIN action a ON a.id = e.action_id
    WHERE e.id = $1
),
entry AS MATERIALIZED (
    SELECT w.line_id, w.place, w.gate_ids, w.gate_units, w.passed_ats, coalesce(f.gate_id, w.line_id) AS gate_id
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
    WHERE o.status = 'queued' AND (g.paused OR g.capacity < r.units)
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
    JOIN flow_turn t ON t.gate_id = g.id AND t.priority = v.priority AND t.place IS NOT NULL AND t.start_tag >= v.tag
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
            -- Its executions with smaller tags, and one with the same tag, of which the earlier place is first.
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
    SELECT h.execution_id, h.gate_units[array_position(h.gate_ids, g.id)] AS units
    FROM here g
    CROSS JOIN LATERAL (
        SELECT s.execution_id, s.gate_ids, s.gate_units FROM turnstile.live_slot s
        UNION ALL
        SELECT turnstile.id_of_place(w.place), w.gate_ids, w.gate_units FROM waiting w WHERE w.queue_id IS NOT NULL
        UNION ALL
        SELECT u.execution_id, u.gate_ids, u.gate_units FROM turnstile.live_unpublished_completion u
    ) h
    WHERE g.kind <> 'pool' AND g.id = ANY (h.gate_ids)
    ORDER BY h.execution_id LIMIT $2
)
SELECT EXISTS (SELECT FROM entry) AS has_passed_queue, o.route IS NOT NULL AS has_route,
       (SELECT c.reason FROM closed c) AS closed,
       g.kind, g.name, g.capacity, g.held, g.units,
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
       coalesce(turnstile.gates_so_far(o.id, o.queue_id, o.place, o.status::text, o.queued_at), o.gates) AS gates
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
                   'id', h.execution_id, 'action_ref', a.ref, 'concurrency_key', nullif(q.concurrency_key, ''),
                   'units', h.units, 'status', h.status, 'passed_at', h.passed_at
               ) ORDER BY h.execution_id)
        FROM (SELECT * FROM holder ORDER BY execution_id LIMIT $2) h
        JOIN action_queue q ON q.id = h.queue_id
        JOIN action a ON a.id = q.action_id) AS holders
FROM here g

-- resource_line: the executions that wait at a resource, in the order in which they will pass it (`execution_gates`).
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
           coalesce((SELECT a.route_units[array_position(a.route, g.id)] FROM action a WHERE a.id = f.flow_id), 1)
           * 720720::bigint / turnstile.weight_of(g.id, f.flow_id, NULL)
    FROM here g
    CROSS JOIN LATERAL unnest(g.virtual_times) WITH ORDINALITY v(tag, priority)
    JOIN flow_turn t ON t.gate_id = g.id AND t.priority = v.priority AND t.place IS NOT NULL AND t.start_tag >= v.tag
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
