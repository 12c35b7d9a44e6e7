-- webhooks: deliveries in any of the states $1, with execution ids below $2, the newest first. $3 rows
-- One index scan for each state: no row of another state is read. As bounds, the state stays part of
-- the order: as a constant it would let the planner scan all states by the primary key.
SELECT d.execution_id, d.event_id, a.ref AS action_ref, e.status::text AS execution_status, d.url, d.state,
       d.attempts, d.due_at, d.claimed_until, d.last_status, d.last_error, d.created_at, d.settled_at
FROM unnest($1::text[]) s(state)
CROSS JOIN LATERAL (
    SELECT * FROM webhook_delivery d WHERE d.state BETWEEN s.state AND s.state AND d.execution_id < $2
    ORDER BY d.state DESC, d.execution_id DESC LIMIT $3
) d
LEFT JOIN turnstile.current_execution e ON e.id = ANY (ARRAY[d.execution_id])
LEFT JOIN action a ON a.id = e.action_id
ORDER BY d.execution_id DESC LIMIT $3

-- failed_webhooks: how many deliveries have failed.
SELECT count(*) AS failed FROM webhook_delivery d WHERE d.state = 'failed'

-- webhook_states: the states of the deliveries of the executions $1; by primary key.
SELECT d.execution_id, d.state
FROM webhook_delivery d
WHERE d.execution_id = ANY ($1::bigint[])
  AND EXISTS (SELECT FROM execution e WHERE e.id = ANY (ARRAY[d.execution_id]))
ORDER BY d.execution_id
