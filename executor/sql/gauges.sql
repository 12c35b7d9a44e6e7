-- gauges: the state of queues and workers, in one snapshot, for /metrics.
--
-- Reads the newest state of every queue, and the heads of at most $1 queues that are not empty: the cost
-- follows the queues in use, not the executions that wait there. Those that wait at later gates are counted
-- one by one. Actions without queued executions and held slots are left out.
--
-- Dead letters are counted by the index on their codes; the retention bounds their number.
--
-- $1 queues that are not empty, $2 codes of dead letters; those of any other code are counted together; $3
-- resources
WITH later AS MATERIALIZED (
    SELECT w.queue_id, w.place, w.gate_ids, w.gate_units FROM waiting w WHERE w.queue_id IS NOT NULL
),
later_of_queue AS MATERIALIZED (
    SELECT l.queue_id, count(*) AS executions, min(turnstile.id_of_place(l.place)) AS first_id
    FROM later l GROUP BY l.queue_id
),
per_action AS (
    SELECT q.action_id, sum(q.depth + coalesce(l.executions, 0))::bigint AS depth,
           sum(q.held - coalesce(l.executions, 0))::bigint AS slots,
           least(min(turnstile.id_of_place(first.place)), min(l.first_id)) AS head_id
    FROM (SELECT * FROM turnstile.current_queue c WHERE c.depth > 0 OR c.held > 0 LIMIT $1) q
    LEFT JOIN later_of_queue l ON l.queue_id = q.id
    LEFT JOIN LATERAL (
        SELECT w.place FROM turnstile.first_waiting(q.id, q.head_id, q.heads, 1) w
    ) first ON q.depth > 0
    GROUP BY q.action_id
)
SELECT (
           SELECT json_agg(json_build_object(
               'action_ref', a.ref, 'depth', s.depth, 'slots', s.slots, 'slot_limit', a.max_concurrent,
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
               'held_waiting', coalesce(h.units, 0)
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
