-- Where the state of queues, executions and slots is, so that its cost does not grow under an old snapshot
-- (P15).
--
-- PostgreSQL keeps every row version that any open snapshot might read. A statement is cheap nevertheless if
-- it finds its rows without walking over such versions. So a queue's row is locked and never updated by a
-- batch; its state is a row per version, read newest first. Waiting executions are read from a stored head,
-- slots by their execution, and sweeps over slots start at the lowest ticket in use.
--
-- A migration that changes a column of these views drops them first; the installation creates them again.

-- place_of: the order key of an execution in its list: by priority, then by id. For priority 3 it is the id.
CREATE FUNCTION turnstile.place_of(in_priority integer, in_execution_id bigint)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
AS $$ SELECT ((in_priority - 3)::bigint << 58) + in_execution_id $$;

CREATE FUNCTION turnstile.id_of_place(in_place bigint)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
AS $$ SELECT in_place & ((1::bigint << 58) - 1) $$;

CREATE FUNCTION turnstile.priority_of_place(in_place bigint)
RETURNS integer
LANGUAGE sql
IMMUTABLE
AS $$ SELECT (in_place >> 58)::integer + 3 $$;

-- first_places: the lowest place of each priority, for `heads`. Null if all places have priority 3.
CREATE FUNCTION turnstile.first_places(in_places bigint[])
RETURNS bigint[]
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN bool_or(n.place IS NOT NULL AND n.priority <> 3)
                    THEN array_agg(n.place ORDER BY n.priority) END
    FROM (
        SELECT p.priority, min(w.place) AS place
        FROM generate_series(1, 5) p(priority)
        LEFT JOIN unnest(in_places) w(place) ON turnstile.priority_of_place(w.place) = p.priority
        GROUP BY p.priority
    ) n
$$;

-- lower_heads: these bounds, low enough for these first places.
CREATE FUNCTION turnstile.lower_heads(in_heads bigint[], in_first_places bigint[])
RETURNS bigint[]
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN in_first_places IS NULL THEN in_heads ELSE ARRAY[
        least(in_heads[1], in_first_places[1]), least(in_heads[2], in_first_places[2]), NULL,
        least(in_heads[4], in_first_places[4]), least(in_heads[5], in_first_places[5])] END
$$;

-- raise_heads: these bounds, past these places, which are the first ones of the list.
CREATE FUNCTION turnstile.raise_heads(in_heads bigint[], in_passed_places bigint[])
RETURNS bigint[]
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT array_agg(coalesce(n.last_place + 1, in_heads[n.priority]) ORDER BY n.priority)
    FROM (
        SELECT p.priority, max(w.place) AS last_place
        FROM generate_series(1, 5) p(priority)
        LEFT JOIN unnest(in_passed_places) w(place)
               ON turnstile.priority_of_place(w.place) = p.priority AND p.priority <> 3
        GROUP BY p.priority
    ) n
$$;

-- line_ranges: the places that a list may have, by priority, in order.
CREATE FUNCTION turnstile.line_ranges(in_head_id bigint, in_heads bigint[])
RETURNS TABLE (first_place bigint, last_place bigint)
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN p.priority = 3 THEN in_head_id ELSE in_heads[p.priority] END,
           ((p.priority - 2)::bigint << 58) - 1
    FROM generate_series(1, 5) p(priority)
    WHERE p.priority = 3 OR in_heads[p.priority] IS NOT NULL
    ORDER BY p.priority
$$;

-- first_waiting: the first rows of a list, in order.
CREATE FUNCTION turnstile.first_waiting(
    in_line_id bigint, in_head_id bigint, in_heads bigint[], in_limit bigint
)
RETURNS SETOF waiting
LANGUAGE sql
STABLE
AS $$
    SELECT w.*
    FROM turnstile.line_ranges(in_head_id, in_heads) r
    CROSS JOIN LATERAL (
        SELECT * FROM public.waiting n
        WHERE n.line_id = in_line_id AND n.place BETWEEN r.first_place AND r.last_place
        ORDER BY n.place LIMIT in_limit
    ) w
    ORDER BY w.place LIMIT in_limit
$$;

-- waiting_up_to: how many are in a list up to this place, itself included.
CREATE FUNCTION turnstile.waiting_up_to(
    in_line_id bigint, in_head_id bigint, in_heads bigint[], in_place bigint
)
RETURNS bigint
LANGUAGE sql
STABLE
AS $$
    SELECT count(*)
    FROM turnstile.line_ranges(in_head_id, in_heads) r
    JOIN public.waiting n
        ON n.line_id = in_line_id AND n.place BETWEEN r.first_place AND least(r.last_place, in_place)
$$;

-- current_queue: queues with the newest versions of their states.
CREATE VIEW turnstile.current_queue AS
SELECT q.id, q.action_id, q.concurrency_key, q.max_concurrent, q.paused,
       s.version, s.depth, s.held, s.head_id, s.heads, s.total_enqueued, s.total_completed, s.updated_at,
       s.ready_place
FROM public.action_queue q
CROSS JOIN LATERAL (
    SELECT * FROM public.queue_state v WHERE v.queue_id = q.id ORDER BY v.version DESC LIMIT 1
) s;

-- held_slots: how many slots of each queue are held, by granted executions and by those that wait or ended at
-- a later gate. Counts the rows, which the state of the queue has to agree with.
CREATE VIEW turnstile.held_slots AS
SELECT h.queue_id, count(*) AS slots
FROM (
    SELECT s.queue_id FROM public.slot s
    UNION ALL
    SELECT w.queue_id FROM public.waiting w WHERE w.queue_id IS NOT NULL
    UNION ALL
    SELECT u.queue_id FROM public.unpublished_completion u WHERE u.gate_ids IS NOT NULL
) h GROUP BY h.queue_id;

-- current_gate: gates with the newest versions of their states.
CREATE VIEW turnstile.current_gate AS
SELECT g.id, g.kind, g.name, g.action_id, g.capacity, g.fair, g.rank, g.rate_starts, g.rate_per_seconds,
       g.paused, g.returning_from, s.version, s.held, s.depth, s.head_id, s.heads, s.virtual_times,
       s.starts_taken, s.updated_at
FROM public.gate g
CROSS JOIN LATERAL (
    SELECT * FROM public.gate_state v WHERE v.gate_id = g.id ORDER BY v.version DESC LIMIT 1
) s;

-- current_pool: pools with the newest versions of their states.
CREATE VIEW turnstile.current_pool AS
SELECT p.id, p.name, p.paused, p.fair, p.weights, s.version, s.capacity, s.places, s.lead, s.leaving, s.held,
       s.depth, s.virtual_times, s.total_released, s.updated_at
FROM public.worker_pool p
CROSS JOIN LATERAL (
    SELECT * FROM public.pool_state v WHERE v.pool_id = p.id ORDER BY v.version DESC LIMIT 1
) s;

-- current_execution: executions with the attempt that holds a slot, if one is scheduled or running. The row
-- of the execution has the attempts that ended, so the slot of a current attempt has the next number.
CREATE VIEW turnstile.current_execution AS
SELECT e.id, e.action_id, e.queue_id,
       CASE WHEN s.execution_id IS NULL THEN e.status
            WHEN s.claimed_at IS NULL THEN 'scheduled'::execution_status
            ELSE 'running'::execution_status END AS status,
       coalesce(s.attempt, e.attempt) AS attempt,
       e.failures, e.reclaims, e.parameters, e.metadata, e.concurrency_key, e.idempotency_key, e.delivery_key,
       e.request_hash, e.result, e.error_type, e.error_message,
       CASE WHEN s.execution_id IS NULL THEN e.worker_id ELSE s.worker_id END AS worker_id,
       e.timeout_seconds, e.callback_url, e.traceparent, e.cancel_reason, e.created_at, e.queued_at,
       CASE WHEN s.execution_id IS NULL THEN e.scheduled_at ELSE s.granted_at END AS scheduled_at,
       CASE WHEN s.execution_id IS NULL THEN e.started_at ELSE s.claimed_at END AS started_at,
       e.completed_at, e.cancel_requested_at, e.run_at, e.expires_at, e.retry_of, e.priority, e.gates
FROM public.execution e
LEFT JOIN public.slot s ON s.execution_id = ANY (ARRAY[e.id]) AND s.attempt = e.attempt + 1;

-- ended_attempt: the attempts that a worker claimed and that have ended. The execution's row has the last
-- one; `attempt` has those that were followed by another one, and those that left a log.
CREATE VIEW turnstile.ended_attempt AS
SELECT t.execution_id, t.attempt, t.worker_id, t.outcome, t.error_type, t.error_message, t.log, t.log_start,
       t.granted_at, t.started_at, t.ended_at
FROM public.attempt t
UNION ALL
SELECT e.id, e.attempt, e.worker_id, e.status::text, e.error_type, e.error_message, NULL, 0,
       e.scheduled_at, e.started_at, e.completed_at
FROM public.execution e
WHERE e.completed_at IS NOT NULL AND e.worker_id IS NOT NULL AND e.started_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM public.attempt t WHERE t.execution_id = e.id AND t.attempt = e.attempt);

-- current_worker: workers with the newest versions of their leases. One that has stopped or was lost has its
-- last lease in its own row.
CREATE VIEW turnstile.current_worker AS
SELECT w.id, w.name, w.host, w.pid, w.pools, w.concurrency, w.served_refs, w.started_at,
       coalesce(l.renewed_at, w.renewed_at) AS renewed_at,
       coalesce(l.expires_at, w.lease_expires_at) AS lease_expires_at, w.draining_at, w.stopped_at, w.lost_at,
       w.version, w.drain_seconds, w.stop_grace_seconds, w.start_notes, w.draining_count, l.not_ready
FROM public.worker w
LEFT JOIN LATERAL (
    SELECT v.renewed_at, v.expires_at, v.not_ready FROM public.worker_lease v WHERE v.worker_id = w.id
    ORDER BY v.version DESC LIMIT 1
) l ON true;

-- change_queues: writes the next versions of these queues' states. One change per queue; the caller has
-- locked the queues in an earlier statement.
CREATE FUNCTION turnstile.change_queues(in_changes turnstile.queue_change[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    WITH state AS MATERIALIZED (
        SELECT v.*, c.depth AS more_depth, c.held AS more_held, c.first_id, c.enqueued, c.completed,
               c.first_places
        FROM unnest(in_changes) c
        CROSS JOIN LATERAL (
            SELECT * FROM queue_state v WHERE v.queue_id = c.queue_id ORDER BY v.version DESC LIMIT 1
        ) v
    ),
    written AS (
        INSERT INTO queue_state (queue_id, version, depth, held, head_id, heads, total_enqueued,
                                 total_completed,
                                 updated_at, ready_place)
        SELECT s.queue_id, s.version + 1, s.depth + s.more_depth, s.held + s.more_held,
               least(s.head_id, s.first_id),
               turnstile.lower_heads(s.heads, s.first_places),
               s.total_enqueued + s.enqueued, s.total_completed + s.completed, clock_timestamp(),
               s.ready_place
        FROM state s
    )
    DELETE FROM queue_state v USING state s
    WHERE v.queue_id = ANY (ARRAY[s.queue_id]) AND v.version BETWEEN s.version AND s.version;
END
$$;
