-- gauges: the state of queues and workers, in one snapshot, for /metrics.
--
-- Reads the newest state of every queue, and the heads of at most $1 queues that are not empty: the cost
-- follows the queues in use, not the executions that wait there. Those that wait at later gates are counted
-- one by one. Actions without queued executions and held slots are left out. The reasons for which executions
-- wait are those of `queue_stats`.
--
-- Dead letters are counted by the index on their codes; the retention bounds their number.
--
-- $1 queues that are not empty, $2 codes of dead letters; those of any other code are counted together; $3
-- resources
WITH later AS MATERIALIZED (
    SELECT w.queue_id, w.place, w.gate_ids, w.gate_units, g.kind
    FROM waiting w
    LEFT JOIN gate_flow f ON f.id = ANY (ARRAY[w.line_id])
    JOIN gate g ON g.id = coalesce(f.gate_id, w.line_id)
    WHERE w.queue_id IS NOT NULL
),
later_of_queue AS MATERIALIZED (
    SELECT l.queue_id, count(*) AS executions, min(turnstile.id_of_place(l.place)) AS first_id,
           count(*) FILTER (WHERE l.kind = 'action') AS at_total,
           count(*) FILTER (WHERE l.kind = 'resource') AS at_resource,
           count(*) FILTER (WHERE l.kind = 'pool') AS at_pool
    FROM later l GROUP BY l.queue_id
),
queues AS MATERIALIZED (
    SELECT q.id, q.action_id, q.head_id, q.heads, q.depth, q.held, q.paused,
           coalesce(q.max_concurrent = 0, false) AS starts_nothing,
           CASE WHEN q.paused THEN 0
                ELSE least(q.depth,
                           greatest(coalesce(q.max_concurrent - q.held, q.depth), 0)) END AS startable
    FROM turnstile.current_queue q WHERE q.depth > 0 OR q.held > 0 LIMIT $1
),
per_action AS MATERIALIZED (
    SELECT q.action_id, sum(q.depth + coalesce(l.executions, 0))::bigint AS depth,
           sum(q.held - coalesce(l.executions, 0))::bigint AS slots,
           least(min(turnstile.id_of_place(first.place)), min(l.first_id)) AS head_id,
           coalesce(sum(q.depth + coalesce(l.executions, 0)) FILTER (WHERE q.paused), 0)::bigint AS paused,
           coalesce(sum(CASE WHEN q.starts_nothing THEN q.depth + coalesce(l.executions, 0)
                             ELSE q.depth - q.startable END) FILTER (WHERE NOT q.paused),
                    0)::bigint AS limited,
           sum(q.startable)::bigint AS startable,
           coalesce(sum(l.at_total) FILTER (WHERE NOT (q.paused OR q.starts_nothing)), 0)::bigint AS at_total,
           coalesce(sum(l.at_resource) FILTER (WHERE NOT (q.paused OR q.starts_nothing)),
                    0)::bigint AS at_resource,
           coalesce(sum(l.at_pool) FILTER (WHERE NOT (q.paused OR q.starts_nothing)), 0)::bigint AS at_pool
    FROM queues q
    LEFT JOIN later_of_queue l ON l.queue_id = q.id
    LEFT JOIN LATERAL (
        SELECT w.place FROM turnstile.first_waiting(q.id, q.head_id, q.heads, 1) w
    ) first ON q.depth > 0
    GROUP BY q.action_id
),
-- By action: the first gate of its route that no release of units opens, whether all its rates have a start,
-- and whether a live worker serves it.
route AS MATERIALIZED (
    SELECT a.id AS action_id, (
               SELECT g.kind FROM unnest(a.route, a.route_units) WITH ORDINALITY r(gate_id, units, rank)
               JOIN gate g ON g.id = r.gate_id
               WHERE g.kind <> 'pool' AND (g.paused OR g.capacity < r.units)
               ORDER BY r.rank LIMIT 1
           ) AS closed,
           s.at_pool = 0 OR NOT EXISTS (
               SELECT FROM turnstile.starts_left(a.route, clock_timestamp()) l WHERE l.starts <= 0
           ) AS has_starts,
           EXISTS (
               SELECT FROM turnstile.current_worker w
               WHERE a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
                 AND w.draining_at IS NULL AND w.lease_expires_at > now()
                 AND (a.runner <> 'python' OR a.entrypoint IS NOT NULL OR w.served_refs IS NULL
                      OR a.ref = ANY (w.served_refs))
           ) AS served
    FROM per_action s JOIN action a ON a.id = ANY (ARRAY[s.action_id])
    WHERE s.depth > 0
),
reasons AS (
    SELECT s.action_id, json_build_object(
               'paused', s.paused,
               'limit', CASE WHEN r.closed IS NULL THEN s.limited ELSE 0 END,
               'total', CASE WHEN r.closed = 'action' THEN s.depth - s.paused
                             WHEN r.closed IS NULL AND r.served THEN s.at_total ELSE 0 END,
               'resource', CASE WHEN r.closed = 'resource' THEN s.depth - s.paused
                                WHEN r.closed IS NULL AND r.served THEN s.at_resource ELSE 0 END,
               'rate', CASE WHEN r.closed IS NULL AND r.served AND NOT r.has_starts THEN s.at_pool
                            ELSE 0 END,
               'pool', CASE WHEN r.closed IS NULL AND r.served
                            THEN s.startable + CASE WHEN r.has_starts THEN s.at_pool ELSE 0 END
                            ELSE 0 END,
               'no_worker', CASE WHEN r.closed IS NULL AND NOT r.served
                                 THEN s.startable + s.at_total + s.at_resource + s.at_pool ELSE 0 END
           ) AS executions
    FROM per_action s JOIN route r ON r.action_id = s.action_id
)
SELECT (
           SELECT json_agg(json_build_object(
               'action_ref', a.ref, 'depth', s.depth, 'slots', s.slots, 'slot_limit', a.max_concurrent,
               'waiting', (SELECT n.executions FROM reasons n WHERE n.action_id = s.action_id),
               'oldest_seconds', (
                   SELECT extract(epoch FROM now() - e.queued_at)
                   FROM execution e WHERE e.id = ANY (ARRAY[s.head_id])
               )
           ) ORDER BY a.id)
           FROM per_action s JOIN action a ON a.id = ANY (ARRAY[s.action_id])
       ) AS actions,
       (
           SELECT json_agg(json_build_object(
               'resource', g.name, 'capacity', g.capacity, 'held', g.held, 'waiting', g.depth,
               'held_waiting', coalesce(h.units, 0), 'paused', g.paused::integer
           ) ORDER BY g.id)
           FROM (SELECT * FROM turnstile.current_gate c WHERE c.kind = 'resource' ORDER BY c.id LIMIT $3) g
           LEFT JOIN (
               SELECT u.gate_id, sum(u.units)::bigint AS units
               FROM later l CROSS JOIN unnest(l.gate_ids, l.gate_units) u(gate_id, units) GROUP BY u.gate_id
           ) h ON h.gate_id = g.id
       ) AS resources,
       (
           SELECT json_agg(json_build_object(
               'pool', p.name, 'capacity', p.places, 'held', p.held, 'waiting', coalesce(r.executions, 0),
               'paused', p.paused::integer
           ) ORDER BY p.id)
           FROM (SELECT * FROM turnstile.current_pool c ORDER BY c.id LIMIT $3) p
           LEFT JOIN turnstile.waiting_for_workers() r ON r.pool_id = p.id
       ) AS pools,
       (
           SELECT json_object_agg(state.name, state.processes)
           FROM (
               SELECT CASE WHEN w.lease_expires_at <= now() THEN 'overdue'
                           WHEN w.draining_at IS NOT NULL THEN 'draining'
                           ELSE 'live' END AS name,
                      count(*) AS processes
               FROM turnstile.current_worker w WHERE w.lost_at IS NULL AND w.stopped_at IS NULL GROUP BY 1
           ) state
       ) AS workers,
       (
           SELECT json_object_agg(counted.code, counted.letters)
           FROM (
               SELECT CASE WHEN d.code = ANY ($2) THEN d.code ELSE 'other' END AS code,
                      sum(d.letters) AS letters
               FROM (SELECT d.code, count(*) AS letters FROM dead_letter d GROUP BY d.code) d GROUP BY 1
           ) counted
       ) AS dead_letters
