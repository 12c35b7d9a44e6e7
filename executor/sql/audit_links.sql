-- audit_links: overdue steps. Lateness counts from the latest instant at which the next step was possible;
-- the bounds are those of the watchdog, plus a grace. Reads the live tables.

-- check offer of execution: an unclaimed grant is offered again, unless its message can still be queued
-- It cannot if a later grant of the pool was claimed, nor if a worker that serves the action is idle for
-- long; a withheld offer is due from the instant at which a worker serves it.
SELECT s.execution_id AS id,
       served.since IS NOT NULL
       AND greatest(served.since, CASE WHEN s.offered_at < n.granted_at - interval '1 s'
                                       THEN greatest(s.offered_at + b.dispatch, n.claimed_at)
                                       WHEN n.pool IS NULL THEN s.offered_at + b.dispatch * 10
                                       WHEN s.offered_at IS NOT NULL THEN b.at END)
           < b.at - b.grace - b.pace * count(*) OVER () AS wrong,
       format('offered again within %s', b.dispatch) AS expected,
       format('granted %s, offered %s', s.granted_at, coalesce(s.offered_at::text, 'never')) AS found
FROM bound b
CROSS JOIN slot s
JOIN action_queue q ON q.id = s.queue_id
JOIN action a ON a.id = q.action_id
CROSS JOIN LATERAL (
    SELECT min(w.started_at) AS since FROM turnstile.current_worker w
    WHERE a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
      AND w.lease_expires_at > b.at
      AND (a.runner <> 'python' OR a.entrypoint IS NOT NULL OR w.served_refs IS NULL
           OR a.ref = ANY (w.served_refs))
) served
LEFT JOIN (
    SELECT DISTINCT ON (a.pool) a.pool, s.granted_at, s.claimed_at
    FROM slot s JOIN action_queue q ON q.id = s.queue_id JOIN action a ON a.id = q.action_id
    WHERE s.claimed_at IS NOT NULL ORDER BY a.pool, s.granted_at DESC
) n ON n.pool = a.pool
WHERE s.claimed_at IS NULL AND s.finished_at IS NULL;

-- check completion of execution: the completion of an unsettled end is published again
SELECT u.execution_id AS id, u.published_at < b.at - b.settle - b.grace - b.pace * count(*) OVER () AS wrong,
       format('published again within %s', b.settle) AS expected,
       format('last published %s', u.published_at) AS found
FROM bound b
CROSS JOIN (
    SELECT s.execution_id, greatest(s.published_at, s.finished_at) AS published_at FROM slot s
    WHERE s.finished_at IS NOT NULL
    UNION ALL
    SELECT u.execution_id, u.published_at FROM unpublished_completion u
) u;

-- check settling of execution: a completion that is published again and again is settled
SELECT u.execution_id AS id, u.ended_at < b.at - b.settle * 10 - b.grace - b.pace * count(*) OVER () AS wrong,
       format('settled within %s', b.settle * 10) AS expected, format('ended %s', u.ended_at) AS found
FROM bound b
CROSS JOIN (
    SELECT s.execution_id, s.finished_at AS ended_at FROM slot s WHERE s.finished_at IS NOT NULL
    UNION ALL
    SELECT u.execution_id, e.completed_at FROM unpublished_completion u JOIN execution e
        ON e.id = ANY (ARRAY[u.execution_id])
) u;

-- check orphan of execution: what a stopped or lost worker held is reclaimed
SELECT s.execution_id AS id,
       least(w.lost_at, w.stopped_at, w.lease_expires_at)
           < b.at - b.lease - b.grace - b.pace * count(*) OVER () AS wrong,
       format('reclaimed within %s', b.lease) AS expected,
       format('worker %s, gone since %s', w.id, least(w.lost_at, w.stopped_at, w.lease_expires_at)) AS found
FROM bound b CROSS JOIN slot s JOIN turnstile.current_worker w ON w.id = s.worker_id
WHERE s.finished_at IS NULL;

-- check overdue of execution: an overdue attempt is requested to stop, or ended
SELECT s.execution_id AS id, s.overdue_at < b.at - b.stop - b.grace - b.pace * count(*) OVER () AS wrong,
       format('requested to stop within %s', b.stop) AS expected,
       format('overdue since %s', s.overdue_at) AS found
FROM bound b CROSS JOIN slot s WHERE s.finished_at IS NULL AND s.overdue_at IS NOT NULL;

-- check stop of execution: a lost worker gets a cancel message for what was reclaimed
SELECT u.execution_id AS id, u.recorded_at < b.at - b.stop - b.grace - b.pace * count(*) OVER () AS wrong,
       format('cancel to worker %s within %s', u.worker_id, b.stop) AS expected,
       format('reclaimed at %s', u.recorded_at) AS found
FROM bound b CROSS JOIN unpublished_cancel u;

-- check waking of execution: a due execution enters its queue
-- A retry enters it once its last slot is settled, which may have been a moment ago.
SELECT d.execution_id AS id,
       NOT EXISTS (SELECT FROM slot s WHERE s.execution_id = d.execution_id)
       AND e.run_at < b.at - b.grace - b.pace * count(*) OVER ()
                      - CASE WHEN e.attempt > 0 THEN b.settle * 10 ELSE interval '0' END AS wrong,
       'queued' AS expected, format('due at %s', e.run_at) AS found
FROM bound b CROSS JOIN delayed d JOIN execution e ON e.id = ANY (ARRAY[d.execution_id])
WHERE e.run_at < b.at;

-- check expiry of execution: an expired execution is ended
SELECT x.execution_id AS id, e.expires_at < b.at - b.grace - b.pace * count(*) OVER () AS wrong,
       'expired' AS expected, format('expired at %s', e.expires_at) AS found
FROM bound b CROSS JOIN expiring x JOIN execution e ON e.id = ANY (ARRAY[x.execution_id])
WHERE e.expires_at < b.at;

-- check webhook of execution: the first due webhook of each receiver is being delivered
-- Others may wait for long behind it: deliveries to one receiver are bounded. Each receiver's first may wait
-- too.
SELECT f.execution_id AS id,
       greatest(f.due_at, f.claimed_until) < b.at - b.webhook * 2 - b.grace - b.webhook * count(*)
           OVER () / 32
           AS wrong,
       format('delivered within %s', b.webhook) AS expected,
       format('due at %s, %s', f.due_at,
              coalesce('claimed until ' || f.claimed_until, 'never claimed')) AS found
FROM bound b
CROSS JOIN (
    SELECT DISTINCT ON (d.origin) d.execution_id, d.due_at, d.claimed_until
    FROM webhook_delivery d WHERE d.state = 'pending' ORDER BY d.origin, d.due_at
) f;

-- check idle_slot of queue: no slot is free while an execution waits
-- Whatever frees a slot or lengthens the queue stores its instant in the queue's state; whatever opens a
-- gate, in the gate; whatever frees a worker slot, in the pool.
SELECT q.id,
       (q.max_concurrent IS NULL OR q.max_concurrent > coalesce(h.slots, 0))
       AND a.served AND (p.id IS NULL OR turnstile.room_of(p.capacity, p.held, p.lead) > 0)
       AND (a.route IS NULL OR NOT turnstile.is_closed(a.route, a.route_units))
       AND greatest(q.updated_at, p.updated_at,
                    (SELECT max(g.updated_at) FROM gate g WHERE g.id = ANY (a.route)))
           < b.at - b.grace - b.pace * count(*) OVER () AS wrong,
       coalesce(q.max_concurrent || ' slots held', 'no execution queued') AS expected,
       format('%s queued, %s slots held, since %s', q.depth, coalesce(h.slots, 0), q.updated_at) AS found
FROM bound b
CROSS JOIN turnstile.current_queue q
JOIN action a ON a.id = q.action_id
LEFT JOIN turnstile.current_pool p ON p.id = a.pool_id
LEFT JOIN turnstile.held_slots h ON h.queue_id = q.id
WHERE q.depth > 0 AND NOT q.paused;

-- check idle_gate of gate: no units are free while the first execution could use them
-- Rates are left out: what waits for one starts at an instant that no change stores.
SELECT g.id,
       a.served AND NOT g.paused AND g.returning_from IS NULL
       AND NOT turnstile.is_closed(a.route, a.route_units)
       AND (g.capacity IS NULL OR g.held + a.route_units[array_position(a.route, g.id)] <= g.capacity)
       AND greatest(g.updated_at, (SELECT max(r.updated_at) FROM gate r WHERE r.id = ANY (a.route)))
           < b.at - b.grace - b.pace * count(*) OVER () AS wrong,
       format('fewer free than the %s units of execution %s', a.route_units[array_position(a.route, g.id)],
              e.id)
           AS expected,
       format('%s of %s held, since %s', g.held, coalesce(g.capacity::text, 'any number'),
              g.updated_at) AS found
FROM bound b
CROSS JOIN turnstile.current_gate g
CROSS JOIN LATERAL (
    SELECT CASE WHEN g.fair THEN (turnstile.first_turn((
                    SELECT s FROM gate_state s WHERE s.gate_id = g.id ORDER BY s.version DESC LIMIT 1))).place
                ELSE (SELECT w.place FROM turnstile.first_waiting(g.id, g.head_id, g.heads, 1) w) END AS place
) n
JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(n.place)])
JOIN action a ON a.id = e.action_id AND g.id = ANY (a.route)
WHERE g.kind <> 'pool' AND g.depth > 0;
