-- audit_gates: the rows of the gates after the queue against what they count. Reads the live tables.

-- check gate_version of gate: it has one version of its state
SELECT coalesce(g.id, v.gate_id) AS id, (g.id IS NOT NULL AND v.versions = 1) IS NOT TRUE AS wrong,
       CASE WHEN g.id IS NULL THEN 'a gate' ELSE 'one version' END AS expected,
       CASE WHEN g.id IS NULL THEN 'none, with a state'
            ELSE format('%s versions', coalesce(v.versions, 0)) END AS found
FROM gate g
FULL JOIN (SELECT v.gate_id, count(*) AS versions FROM gate_state v GROUP BY v.gate_id) v ON v.gate_id = g.id;

-- check gate_held of gate: it counts as held the units that executions acquired there and have not released
SELECT coalesce(g.id, h.gate_id) AS id, g.held IS DISTINCT FROM coalesce(h.units, 0) AS wrong,
       format('%s units held', coalesce(h.units, 0)) AS expected,
       coalesce(g.held || ' units held', 'no gate') AS found
FROM turnstile.current_gate g
FULL JOIN (
    SELECT u.gate_id, sum(u.units)::bigint AS units
    FROM (
        SELECT s.gate_ids, s.gate_units FROM slot s WHERE s.gate_ids IS NOT NULL
        UNION ALL
        SELECT w.gate_ids, w.gate_units FROM waiting w WHERE w.gate_ids IS NOT NULL
        UNION ALL
        SELECT c.gate_ids, c.gate_units FROM unpublished_completion c WHERE c.gate_ids IS NOT NULL
    ) n CROSS JOIN unnest(n.gate_ids, n.gate_units) u(gate_id, units)
    GROUP BY u.gate_id
) h ON h.gate_id = g.id;

-- check gate_capacity of gate: what passed last fitted the capacity in force then
SELECT g.gate_id AS id, g.held > g.granted_capacity AS wrong,
       format('at most %s units', g.granted_capacity) AS expected, format('%s units held', g.held) AS found
FROM gate_state g WHERE g.granted_capacity IS NOT NULL;

-- check gate_depth of gate: its depth is the number of rows in its lists
SELECT g.id, g.depth <> coalesce(n.places, 0) AS wrong,
       format('depth %s', coalesce(n.places, 0)) AS expected, format('depth %s', g.depth) AS found
FROM turnstile.current_gate g
LEFT JOIN (
    SELECT coalesce(f.gate_id, w.line_id) AS gate_id, sum(w.places)::bigint AS places
    FROM (SELECT w.line_id, count(*) AS places FROM waiting w WHERE w.queue_id IS NOT NULL
          GROUP BY w.line_id) w
    LEFT JOIN gate_flow f ON f.id = w.line_id
    GROUP BY 1
) n ON n.gate_id = g.id;

-- check waiting_gate of execution: one past its queue waits in a list of the gate after those that it holds
-- In a list of a flow where the gate has turns, else in the list of the gate. A changed route is left at
-- once.
SELECT turnstile.id_of_place(w.place) AS id,
       (g.id IS NOT NULL
        AND (f.id IS NOT NULL) = (g.fair OR g.kind = 'pool')
        AND (f.id IS NULL OR f.flow_id = CASE g.kind WHEN 'action' THEN w.queue_id ELSE e.action_id END)
        AND cardinality(w.gate_ids) = cardinality(w.gate_units)
        AND cardinality(w.gate_ids) + 1 = cardinality(w.passed_ats)
        AND (a.route[1 : cardinality(w.gate_ids) + 1] = w.gate_ids || g.id
             OR EXISTS (SELECT FROM gate r
                        WHERE r.id = g.id AND r.returning_from IS NOT NULL))) IS NOT TRUE AS wrong,
       format('a gate after %s on the route %s', w.gate_ids, coalesce(a.route::text, 'none')) AS expected,
       CASE WHEN g.id IS NULL THEN format('list %s', w.line_id)
            WHEN f.id IS NULL THEN format('the list of gate %s', g.id)
            ELSE format('the list of flow %s at gate %s', f.flow_id, g.id) END AS found
FROM waiting w
LEFT JOIN gate_flow f ON f.id = w.line_id
LEFT JOIN gate g ON g.id = coalesce(f.gate_id, w.line_id)
LEFT JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(w.place)])
LEFT JOIN action a ON a.id = e.action_id
WHERE w.queue_id IS NOT NULL;

-- check gate_head of gate: no execution is before the bounds where its list is read from
SELECT g.id,
       n.first_place < CASE WHEN n.priority = 3 THEN g.head_id
                            ELSE coalesce(g.heads[n.priority], n.first_place + 1) END
           AS wrong,
       format('bound of priority %s at most %s', n.priority, n.first_place) AS expected,
       format('%s', CASE WHEN n.priority = 3 THEN g.head_id ELSE g.heads[n.priority] END) AS found
FROM turnstile.current_gate g
JOIN (
    SELECT w.line_id, turnstile.priority_of_place(w.place) AS priority, min(w.place) AS first_place
    FROM waiting w GROUP BY 1, 2
) n ON n.line_id = g.id;

-- check flow_turn of gate: a flow has one turn for each priority that waits, at its first execution, no other
-- Turns before the bound are those of the past.
SELECT coalesce(n.gate_id, t.gate_id) AS id,
       (n.first_place = t.place AND t.turns = 1) IS NOT TRUE AS wrong,
       CASE WHEN n.first_place IS NULL THEN format('no turn of list %s', t.line_id)
            ELSE format('a turn of list %s at place %s', n.line_id, n.first_place) END AS expected,
       CASE WHEN t.place IS NULL THEN 'none' ELSE format('%s at place %s', t.turns, t.place) END AS found
FROM (
    SELECT f.gate_id, w.line_id, turnstile.priority_of_place(w.place) AS priority, min(w.place) AS first_place
    FROM waiting w JOIN gate_flow f ON f.id = w.line_id
    GROUP BY f.gate_id, w.line_id, turnstile.priority_of_place(w.place)
) n
FULL JOIN (
    SELECT g.id AS gate_id, t.line_id, t.priority, min(t.place) AS place, count(*) AS turns
    FROM turnstile.current_gate g
    CROSS JOIN LATERAL unnest(g.virtual_times) WITH ORDINALITY v(tag, priority)
    JOIN flow_turn t ON t.gate_id = g.id AND t.priority = v.priority AND t.place IS NOT NULL
        AND t.start_tag >= coalesce(g.heads[v.priority], v.tag)
    GROUP BY g.id, t.line_id, t.priority
) t ON t.line_id = n.line_id AND t.priority = n.priority;

-- check rate_window of gate: no window of its rate has more starts than the rate allows
-- Each start against the one that is as many before it; a lower rate counts from its change on.
SELECT g.id, coalesce(bool_or(s.granted_at < s.earlier_at + make_interval(secs => g.rate_per_seconds)
                              AND s.earlier_at > g.updated_at), false) AS wrong,
       format('%s starts in %s s', g.rate_starts, g.rate_per_seconds) AS expected, 'more' AS found
FROM gate g
LEFT JOIN (
    SELECT r.gate_id, r.granted_at,
           lag(r.granted_at, g.rate_starts) OVER (PARTITION BY r.gate_id ORDER BY r.number)
           AS earlier_at
    FROM rate_start r JOIN gate g ON g.id = r.gate_id AND g.rate_starts IS NOT NULL
) s ON s.gate_id = g.id
WHERE g.rate_starts IS NOT NULL GROUP BY g.id;

-- check pool_version of pool: it has one version of its state
SELECT coalesce(p.id, v.pool_id) AS id, (p.id IS NOT NULL AND v.versions = 1) IS NOT TRUE AS wrong,
       CASE WHEN p.id IS NULL THEN 'a pool' ELSE 'one version' END AS expected,
       CASE WHEN p.id IS NULL THEN 'none, with a state'
            ELSE format('%s versions', coalesce(v.versions, 0)) END AS found
FROM worker_pool p
FULL JOIN (SELECT v.pool_id, count(*) AS versions FROM pool_state v GROUP BY v.pool_id) v ON v.pool_id = p.id;

-- check pool_held of pool: it counts as held the slots that take its capacity
-- After another session held the row of the pool, until the next tick of the watchdog, it may differ.
SELECT coalesce(p.id, s.pool_id) AS id, p.held IS DISTINCT FROM coalesce(s.slots, 0) AS wrong,
       format('%s held', coalesce(s.slots, 0)) AS expected,
       coalesce(p.held || ' held', 'no pool') AS found
FROM turnstile.current_pool p
FULL JOIN (
    SELECT s.pool_id, count(*) AS slots FROM slot s WHERE s.pool_id IS NOT NULL GROUP BY s.pool_id
) s ON s.pool_id = p.id;

-- check pool_depth of pool: its depth counts the queues that wait there, and 1 if a set of workers is busy
SELECT coalesce(p.id, n.pool_id) AS id, p.depth IS DISTINCT FROM coalesce(n.depth, 0) AS wrong,
       format('depth %s', coalesce(n.depth, 0)) AS expected, coalesce('depth ' || p.depth, 'no pool') AS found
FROM turnstile.current_pool p
FULL JOIN (
    SELECT m.pool_id, count(*) AS depth
    FROM (
        SELECT a.pool_id FROM ready_queue r LEFT JOIN action a ON a.id = r.action_id
        UNION ALL
        SELECT s.pool_id FROM turnstile.current_worker_sets s WHERE s.is_scarce
    ) m GROUP BY m.pool_id
) n ON n.pool_id = p.id;

-- check pool_turn of action: one that waits for capacity has one turn for each priority, at its first `place`
-- While the workers of an action are busy, virtual time may pass its turn, until the next count.
SELECT a.id, n.action_id IS NOT NULL AND (t.turns = 1) IS NOT TRUE AND NOT EXISTS (
           SELECT FROM turnstile.current_worker_sets s
           WHERE s.is_scarce AND a.id = ANY (s.action_ids)) AS wrong,
       format('a turn of priority %s at place %s', n.priority, n.place) AS expected,
       format('%s', coalesce(t.turns, 0)) AS found
FROM action a
LEFT JOIN (
    SELECT r.action_id, turnstile.priority_of_place(r.place) AS priority, min(r.place) AS place
    FROM ready_queue r GROUP BY 1, 2
) n ON n.action_id = a.id
LEFT JOIN (
    SELECT t.action_id, t.priority, t.place, count(*) AS turns
    FROM pool_turn t JOIN turnstile.current_pool p ON p.id = t.pool_id
    WHERE t.start_tag >= p.virtual_times[t.priority] GROUP BY 1, 2, 3
) t ON t.action_id = n.action_id AND t.priority = n.priority AND t.place = n.place;
