-- Counters: `depth`, `held` and `head_id` change only together with the rows that they count, and are
-- recounted nevertheless. A limit or pause that differs from that of the action or key counts as drift too.

-- recounted_queues: the states of these queues and a recount of their rows, from one snapshot.
--
-- The head is checked against the ids just below it: an execution that returns has a recent id, and a search
-- of all lower ids would read what an old snapshot keeps (P15). The audit searches all.
CREATE FUNCTION turnstile.recounted_queues(in_queue_ids bigint[])
RETURNS TABLE (
    queue_id bigint, depth bigint, held bigint, head_id bigint, waiting bigint, slots bigint, first_id bigint,
    first_places bigint[]
)
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    SELECT q.id, q.depth, q.held, q.head_id, coalesce(w.executions, 0),
           coalesce(s.slots, 0) + coalesce(p.passed, 0), w.first_id,
           CASE WHEN q.heads IS NOT NULL THEN turnstile.first_places(ARRAY(
               SELECT n.place FROM turnstile.first_waiting(q.id, q.head_id, q.heads, q.depth) n)) END
    FROM turnstile.current_queue q
    JOIN action a ON a.id = ANY (ARRAY[q.action_id])
    CROSS JOIN LATERAL (
        SELECT count(*) AS executions,
               min(w.place) FILTER (WHERE w.place >= 0 AND w.place < 1::bigint << 58) AS first_id
        FROM turnstile.line_ranges(greatest(q.head_id - 10000, 0), q.heads) r
        JOIN waiting w ON w.line_id = q.id AND w.place BETWEEN r.first_place AND r.last_place
    ) w
    -- Executions that hold a slot and wait at a later gate, or ended there.
    LEFT JOIN LATERAL (
        SELECT (SELECT count(*) FROM waiting w WHERE w.queue_id = q.id)
               + (SELECT count(*) FROM turnstile.live_unpublished_completion u
                  WHERE u.queue_id = q.id AND u.gate_ids IS NOT NULL) AS passed
        WHERE EXISTS (SELECT FROM gate)
    ) p ON true
    LEFT JOIN (
        SELECT s.queue_id, count(*) AS slots FROM turnstile.live_slot s
        WHERE s.queue_id = ANY (in_queue_ids) GROUP BY s.queue_id
    ) s ON s.queue_id = q.id
    WHERE q.id = ANY (in_queue_ids)
$$;

-- drifted_queues: queues with wrong counters, among the next `in_limit` after `in_after_id`. One statement is
-- one snapshot, so it needs no lock and has no false positives under load. `next_id`: where to continue; 0:
-- from the start.
CREATE FUNCTION turnstile.drifted_queues(
    in_after_id bigint, in_limit integer, OUT queue_ids bigint[], OUT next_id bigint
)
LANGUAGE sql
:settings_for_index_lookups
AS $$
    WITH scanned AS MATERIALIZED (
        SELECT q.* FROM action_queue q WHERE q.id > in_after_id ORDER BY q.id LIMIT in_limit
    )
    SELECT array_agg(q.id ORDER BY q.id) FILTER (
               WHERE r.depth <> r.waiting OR r.held <> r.slots OR r.head_id > r.first_id
                  -- A change that has not reached this queue yet is being rolled out: that is no drift.
                  OR ((q.max_concurrent IS DISTINCT FROM l.max_concurrent OR q.paused <> l.paused)
                      AND a.rollout_from_key IS NULL AND (q.id = ANY (a.rollout_held_ids)) IS NOT TRUE)),
           CASE WHEN count(*) = in_limit THEN max(q.id) ELSE 0 END
    FROM scanned q
    JOIN action a ON a.id = ANY (ARRAY[q.action_id])
    JOIN turnstile.queue_rule l ON l.queue_id = ANY (ARRAY[q.id])
    JOIN turnstile.recounted_queues(ARRAY(SELECT s.id FROM scanned s)) r ON r.queue_id = q.id;
$$;

-- repair_queues: recounts these queues under their locks, and grants what that frees. Returns the old and the
-- new counts of each queue that was still wrong.
CREATE FUNCTION turnstile.repair_queues(
    in_queue_ids bigint[],
    OUT repaired turnstile.repaired[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    action_ids bigint[];
    unavailable_ids bigint[];
    changes turnstile.queue_change[];
BEGIN
    -- The rows of the actions first, as for every change of a limit. Rows that other sessions hold are left
    -- for later.
    action_ids := ARRAY(
        SELECT a.id FROM action a
        WHERE a.id = ANY (ARRAY(SELECT q.action_id FROM action_queue q WHERE q.id = ANY (in_queue_ids)))
        ORDER BY a.id FOR SHARE SKIP LOCKED);
    in_queue_ids := ARRAY(
        SELECT q.id FROM action_queue q WHERE q.id = ANY (in_queue_ids) AND q.action_id = ANY (action_ids));
    unavailable_ids := turnstile.lock_available_queues(in_queue_ids);
    in_queue_ids := ARRAY(SELECT q.id FROM unnest(in_queue_ids) q(id) WHERE q.id <> ALL (unavailable_ids));
    WITH counted AS MATERIALIZED (
        SELECT r.*, l.max_concurrent, l.paused
        FROM turnstile.recounted_queues(in_queue_ids) r
        JOIN action_queue q ON q.id = ANY (ARRAY[r.queue_id])
        JOIN turnstile.queue_rule l ON l.queue_id = ANY (ARRAY[r.queue_id])
        WHERE r.depth <> r.waiting OR r.held <> r.slots OR r.head_id > r.first_id
           OR q.max_concurrent IS DISTINCT FROM l.max_concurrent OR q.paused <> l.paused
    ),
    corrected AS (
        UPDATE action_queue q SET max_concurrent = c.max_concurrent, paused = c.paused
        FROM counted c
        WHERE q.id = ANY (ARRAY[c.queue_id])
          AND (q.max_concurrent IS DISTINCT FROM c.max_concurrent OR q.paused <> c.paused)
    )
    SELECT array_agg(ROW(c.queue_id, c.depth, c.waiting, c.held, c.slots)::turnstile.repaired
                     ORDER BY c.queue_id),
           array_agg(ROW(c.queue_id, c.waiting - c.depth, c.slots - c.held, c.first_id, 0, 0,
                         c.first_places)::turnstile.queue_change)
    INTO repaired, changes FROM counted c;
    IF cardinality(changes) > 0 THEN
        PERFORM turnstile.close_routes(in_queue_ids);
    END IF;
    -- Two statements: the limits of the first one are read by the grant.
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
    FROM turnstile.grant_locked(in_queue_ids, coalesce(changes, '{}')) g;
END
$$;

-- recounted_gates: the counters of all gates, and a recount of what they count, from one snapshot.
CREATE FUNCTION turnstile.recounted_gates()
RETURNS TABLE (gate_id bigint, depth bigint, held bigint, waiting bigint, units bigint)
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    WITH listed AS MATERIALIZED (
        SELECT coalesce(f.gate_id, w.line_id) AS gate_id, w.gate_ids, w.gate_units
        FROM waiting w LEFT JOIN gate_flow f ON f.id = ANY (ARRAY[w.line_id])
        WHERE w.queue_id IS NOT NULL
    ),
    holder AS (
        SELECT s.gate_ids, s.gate_units FROM turnstile.live_slot s WHERE s.gate_ids IS NOT NULL
        UNION ALL
        SELECT l.gate_ids, l.gate_units FROM listed l
        UNION ALL
        SELECT u.gate_ids, u.gate_units FROM turnstile.live_unpublished_completion u
        WHERE u.gate_ids IS NOT NULL
    ),
    acquired AS (
        SELECT u.gate_id, sum(u.units)::bigint AS units
        FROM holder h CROSS JOIN unnest(h.gate_ids, h.gate_units) u(gate_id, units) GROUP BY u.gate_id
    )
    SELECT g.id, g.depth, g.held, (SELECT count(*) FROM listed l WHERE l.gate_id = g.id), coalesce(a.units, 0)
    FROM turnstile.current_gate g LEFT JOIN acquired a ON a.gate_id = g.id
$$;

-- repair_gates: recounts all gates, and corrects those that are wrong under their locks. Gates that other
-- sessions hold are left for the next call. Returns the old and the new counts of each gate that was wrong;
-- `advance_gates` lets pass what that allows.
CREATE FUNCTION turnstile.repair_gates()
RETURNS SETOF turnstile.repaired_gate
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    wrong_ids bigint[] := ARRAY(
        SELECT r.gate_id FROM turnstile.recounted_gates() r WHERE r.depth <> r.waiting OR r.held <> r.units);
    repaired turnstile.repaired_gate[];
BEGIN
    IF wrong_ids = '{}' THEN
        RETURN;
    END IF;
    wrong_ids := ARRAY(
        SELECT g.id FROM gate g WHERE g.id = ANY (wrong_ids) ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED);
    -- Counted again: what changed before the locks was right.
    repaired := ARRAY(
        SELECT ROW(g.id, g.kind || ' ' || g.name, r.depth, r.waiting, r.held,
                   r.units)::turnstile.repaired_gate
        FROM turnstile.recounted_gates() r JOIN gate g ON g.id = r.gate_id
        WHERE g.id = ANY (wrong_ids) AND (r.depth <> r.waiting OR r.held <> r.units) ORDER BY g.id);
    PERFORM turnstile.change_gates(ARRAY(
        SELECT ROW(r.gate_id, r.new_held - r.old_held, r.new_depth - r.old_depth)::turnstile.gate_change
        FROM unnest(repaired) r));
    RETURN QUERY SELECT * FROM unnest(repaired);
END
$$;
