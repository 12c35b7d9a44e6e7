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
