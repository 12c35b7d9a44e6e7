-- refuse_above_bounds: sets the code 'queue_full' for requests that do not fit into their bounded queues. For
-- admit, which has locked the queues.
--
-- A copy of an admitted request takes no position in its queue; copies within the batch share the outcome of
-- the first one.
CREATE FUNCTION turnstile.refuse_above_bounds(
    in_queue_ids bigint[],
    in_codes text[],
    in_details text[],
    in_run_ats timestamptz[],
    in_idempotency_keys text[],
    in_delivery_keys uuid[],
    in_now timestamptz,
    OUT codes text[],
    OUT details text[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    -- Which requests of the batch are copies of an earlier one.
    WITH request AS (
        SELECT r.*, min(r.ord) OVER (
            PARTITION BY r.code IS NULL, r.idempotency_key,
                         CASE WHEN r.idempotency_key IS NULL THEN r.delivery_key END,
                         CASE WHEN r.idempotency_key IS NULL AND r.delivery_key IS NULL THEN r.ord END
        ) AS first_ord
        FROM unnest(in_queue_ids, in_codes, in_run_ats, in_idempotency_keys, in_delivery_keys)
             WITH ORDINALITY r(queue_id, code, run_at, idempotency_key, delivery_key, ord)
    ),
    -- Which requests would enter a queue.
    newcomer AS (
        SELECT r.ord, r.first_ord, r.queue_id,
               r.code IS NULL AND r.ord = r.first_ord
               AND (r.run_at IS NULL OR r.run_at <= in_now)
               AND (SELECT e.id FROM execution e WHERE e.idempotency_key = r.idempotency_key) IS NULL
               AND (SELECT e.id FROM execution e WHERE e.delivery_key = r.delivery_key) IS NULL AS joins_queue
        FROM request r
    ),
    -- Their numbers among the newcomers of their queue.
    positioned AS (
        SELECT n.*, count(*) FILTER (WHERE n.joins_queue)
                   OVER (PARTITION BY n.queue_id ORDER BY n.ord) AS position
        FROM newcomer n
    ),
    -- The bounded queues. `free` is null without a limit: everything starts, nothing is refused.
    bounded AS MATERIALIZED (
        SELECT q.id AS queue_id, q.depth, q.max_concurrent, q.held,
               coalesce(a.max_queued, CASE WHEN a.when_full = 'reject' THEN 0 END) AS bound,
               CASE WHEN q.paused THEN 0
                    WHEN q.max_concurrent IS NOT NULL THEN greatest(q.max_concurrent - q.held, 0) END AS free
        FROM turnstile.current_queue q
        JOIN action a ON a.id = ANY (ARRAY[q.action_id])
        WHERE q.id = ANY (in_queue_ids)
    ),
    -- A newcomer is refused if it would wait behind more than the bound.
    evaluated AS (
        SELECT p.ord, p.first_ord,
               CASE WHEN p.joins_queue AND l.depth + p.position - l.free > l.bound THEN
                   format('%s waiting of at most %s, %s running %s', l.depth, l.bound, l.held,
                          coalesce('of at most ' || l.max_concurrent, 'without a limit')) END AS refusal
        FROM positioned p LEFT JOIN bounded l ON l.queue_id = p.queue_id
    ),
    -- Copies within the batch share the refusal of the first one.
    shared AS (
        SELECT j.ord, max(j.refusal) OVER (PARTITION BY j.first_ord) AS refusal FROM evaluated j
    )
    SELECT array_agg(coalesce(in_codes[s.ord], CASE WHEN s.refusal IS NOT NULL THEN 'queue_full' END)
                     ORDER BY s.ord),
           array_agg(coalesce(in_details[s.ord], s.refusal) ORDER BY s.ord)
    INTO codes, details
    FROM shared s;
END
$$;

-- refuse_too_heavy: sets the code 'invalid_parameters' for requests of actions that need more units of a
-- resource than its capacity. They would wait until the capacity is raised. A capacity of 0 is like a pause:
-- its executions wait.
CREATE FUNCTION turnstile.refuse_too_heavy(
    in_action_ids bigint[], in_codes text[], in_details text[], OUT codes text[], OUT details text[]
)
LANGUAGE sql
STABLE
:settings_for_index_lookups
AS $$
    WITH too_heavy AS MATERIALIZED (
        SELECT a.id, (
            SELECT format('uses: the action %L takes %s units of the resource %L, whose capacity is %s;'
                          ' raise it: executor resources put %s --capacity %s, or let the action take fewer'
                          ' units',
                          a.ref, r.units, g.name, g.capacity, g.name, r.units)
            FROM unnest(a.route, a.route_units) WITH ORDINALITY r(gate_id, units, rank)
            JOIN gate g ON g.id = ANY (ARRAY[r.gate_id])
            WHERE g.kind = 'resource' AND g.capacity > 0 AND g.capacity < r.units
            ORDER BY r.rank LIMIT 1) AS detail
        FROM action a WHERE a.id = ANY (in_action_ids) AND a.uses <> '[]'
    )
    SELECT array_agg(CASE WHEN r.code IS NULL AND h.detail IS NOT NULL THEN 'invalid_parameters'
                          ELSE r.code END
                     ORDER BY r.ord),
           array_agg(CASE WHEN r.code IS NULL THEN coalesce(h.detail, r.detail) ELSE r.detail END
                     ORDER BY r.ord)
    FROM unnest(in_action_ids, in_codes, in_details) WITH ORDINALITY r(action_id, code, detail, ord)
    LEFT JOIN too_heavy h ON h.id = r.action_id
$$;

-- admit: inserts requests in the given order, each into its queue, and grants the free slots.
--
-- Execution ids are drawn after the queue rows are locked, so the order of ids, commits and arrivals is the
-- same (P2). The same request twice, by idempotency key or by delivery, is one execution (P5: a redelivery
-- after a crash is harmless). Returns one row per request, in order.
--
-- If another session holds a queue for longer than `in_wait_ms`, all requests of that queue get the code
-- 'unavailable' (see `lock_queues`): none overtakes an earlier one. `blocked_queue_ids` are these queues,
-- `free_queue_ids` those of `in_suspect_ids` that are not blocked.
--
-- Parallel arrays, not one array of a composite type: the prepared statement of a running executor names the
-- type by an OID, which changes when a protocol is installed, and the statement would fail from then on.
CREATE FUNCTION turnstile.admit(
    in_action_refs text[],
    in_parameters jsonb[],
    in_concurrency_keys text[],
    in_idempotency_keys text[],
    in_delivery_keys uuid[],
    in_request_hashes uuid[],
    in_run_ats timestamptz[],
    in_timeout_seconds double precision[],
    in_ttl_seconds double precision[],
    in_callback_urls text[],
    in_metadata jsonb[],
    in_traceparents text[],
    in_retry_ofs bigint[] DEFAULT NULL,
    in_wait_ms integer DEFAULT NULL,
    in_suspect_ids bigint[] DEFAULT '{}',
    in_priorities smallint[] DEFAULT NULL,
    in_may_be_urgent boolean[] DEFAULT NULL,
    OUT admitted turnstile.admitted[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT blocked_queue_ids bigint[],
    OUT free_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    action_ids bigint[];
    keys text[];
    codes text[];
    details text[];
    new_queue_action_ids bigint[];
    queue_ids bigint[];
    changes turnstile.queue_change[];
    arrival_queue_ids bigint[];
    arrival_places bigint[];
    tickets bigint[];
    admitted_at timestamptz;
    worker_slot_changes turnstile.gate_change[];
    is_plain boolean;
    is_decided boolean;
    lacks_queue boolean;
    has_deleted boolean;
    has_bounds boolean;
    was_pruned boolean;
    uses_resources boolean;
BEGIN
    -- 1. Find the action, the concurrency key and the queue of each request.
    SELECT array_agg(a.id ORDER BY r.ord),
           array_agg(k.key ORDER BY r.ord),
           array_agg((SELECT q.id FROM action_queue q WHERE q.action_id = a.id AND q.concurrency_key = k.key)
                     ORDER BY r.ord),
           array_agg(CASE WHEN a.id IS NULL THEN 'unknown_action'
                          WHEN k.key IS NULL OR length(k.key) > 512 OR f.detail IS NOT NULL
                              THEN 'invalid_parameters'
                     END ORDER BY r.ord),
           array_agg(CASE WHEN a.id IS NULL THEN r.ref
                          WHEN f.detail IS NOT NULL THEN f.detail
                          WHEN k.key IS NULL
                              THEN 'parameters: no value at concurrency key ' || a.concurrency_key
                          WHEN length(k.key) > 512
                              THEN 'parameters: concurrency key longer than 512 characters'
                     END ORDER BY r.ord),
           bool_or(a.uses <> '[]')
    INTO action_ids, keys, queue_ids, codes, details, uses_resources
    FROM unnest(in_action_refs, in_parameters, in_concurrency_keys, in_retry_ofs, in_priorities,
                in_may_be_urgent)
         WITH ORDINALITY r(ref, parameters, key, retry_of, priority, may_be_urgent, ord)
    LEFT JOIN action a ON a.ref = ANY (ARRAY[r.ref]) AND a.deleted_at IS NULL
    CROSS JOIN LATERAL (
        SELECT CASE WHEN r.key IS NOT NULL THEN r.key
                    WHEN a.concurrency_key_path IS NULL THEN ''
                    ELSE r.parameters #>> a.concurrency_key_path END
    ) k(key)
    -- Each key has the action's whole limit, so a submitter who chooses keys freely would have no limit (P1).
    -- A retry repeats a key and a priority that were accepted before.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN r.priority < a.priority_min AND r.may_be_urgent IS NOT TRUE
                         AND r.retry_of IS NULL THEN
                        format('priority: %s is below the priority_min of the action, %s; send %s or more,'
                               ' leave it out, or use a token with the role operate', r.priority,
                               a.priority_min, a.priority_min)
                    WHEN r.key IS NULL OR a.submitter_keys OR r.retry_of IS NOT NULL THEN NULL
                    WHEN a.concurrency_key_path IS NULL THEN
                        'concurrency_key: the action has no keys; leave it out, or set submitter_keys in the'
                        ' action'
                    WHEN r.parameters #>> a.concurrency_key_path IS DISTINCT FROM r.key THEN
                        format('concurrency_key: is not the value at %s in the parameters; leave it out, or'
                               ' set submitter_keys in the action', a.concurrency_key) END
    ) f(detail);
    IF uses_resources THEN
        SELECT r.codes, r.details INTO codes, details
        FROM turnstile.refuse_too_heavy(action_ids, codes, details) r;
    END IF;

    -- 2. Create missing queues. A change of a limit, also of a key's, writes the action's row before the rows
    -- of its queues: this waits for the action's row, so a new queue gets the new limit.
    IF array_position(queue_ids, NULL) IS NOT NULL OR array_remove(codes, NULL) <> '{}' THEN
        new_queue_action_ids := ARRAY(
            SELECT DISTINCT r.action_id FROM unnest(action_ids, keys, codes) r(action_id, key, code)
            WHERE r.code IS NULL AND (
                SELECT q.id FROM action_queue q
                WHERE q.action_id = r.action_id AND q.concurrency_key = r.key) IS NULL);
        IF cardinality(new_queue_action_ids) > 0 THEN
            IF in_wait_ms IS NOT NULL AND in_suspect_ids IS NULL THEN
                new_queue_action_ids := ARRAY(
                    SELECT a.id FROM action a WHERE a.id = ANY (new_queue_action_ids) ORDER BY a.id
                    FOR SHARE SKIP LOCKED);
            ELSE
                PERFORM set_config('lock_timeout', in_wait_ms || 'ms', true) WHERE in_wait_ms IS NOT NULL;
                PERFORM 1 FROM action a WHERE a.id = ANY (new_queue_action_ids) ORDER BY a.id FOR SHARE;
            END IF;
            WITH created AS (
                INSERT INTO action_queue (action_id, concurrency_key, max_concurrent, paused)
                SELECT DISTINCT a.id, r.key,
                       CASE WHEN k.has_limit THEN k.max_concurrent ELSE a.max_concurrent END, a.paused
                FROM unnest(action_ids, keys, codes) r(action_id, key, code)
                JOIN action a ON a.id = ANY (ARRAY[r.action_id])
                LEFT JOIN key_override k
                       ON k.action_id = ANY (ARRAY[r.action_id]) AND k.concurrency_key = ANY (ARRAY[r.key])
                WHERE r.code IS NULL AND a.id = ANY (new_queue_action_ids) AND (
                    SELECT q.id FROM action_queue q
                    WHERE q.action_id = r.action_id AND q.concurrency_key = r.key) IS NULL
                ORDER BY a.id, r.key
                ON CONFLICT (action_id, concurrency_key) DO NOTHING
                RETURNING id
            )
            INSERT INTO queue_state (queue_id, version, depth, held, head_id, total_enqueued, total_completed,
                                     updated_at)
            SELECT c.id, 1, 0, 0, 0, 0, 0, clock_timestamp() FROM created c;
        END IF;
        SELECT array_agg(CASE WHEN r.code IS NULL THEN (
                   SELECT q.id FROM action_queue q
                   WHERE q.action_id = r.action_id AND q.concurrency_key = r.key
               ) END ORDER BY r.ord) INTO queue_ids
        FROM unnest(action_ids, keys, codes) WITH ORDINALITY r(action_id, key, code, ord);
    END IF;

    -- 3. Lock the queues in ascending id, and only then draw the execution ids.
    blocked_queue_ids := turnstile.lock_queues(queue_ids, in_wait_ms, in_suspect_ids);
    tickets := ARRAY(SELECT nextval('execution_id_seq') FROM generate_series(1, cardinality(in_action_refs)));
    admitted_at := clock_timestamp();
    -- A queue was deleted as idle after step 2 (see delete_idle_queues). The caller repeats the statement, as
    -- after a deadlock, and step 2 creates the queue. Creating it here, under these locks, could cause a
    -- deadlock.
    SELECT (SELECT count(*) FROM action_queue q WHERE q.id = ANY (queue_ids))
           < (SELECT count(DISTINCT q.id) FROM unnest(queue_ids) q(id))
           OR (in_wait_ms IS NULL OR in_suspect_ids IS NOT NULL) AND EXISTS (
               SELECT FROM unnest(queue_ids, codes) r(queue_id, code)
               WHERE r.code IS NULL AND r.queue_id IS NULL),
           coalesce(bool_or(a.deleted_at IS NOT NULL), false),
           coalesce(bool_or(a.max_queued IS NOT NULL OR a.when_full = 'reject'), false),
           NOT EXISTS (SELECT FROM worker_pool p WHERE p.waits) AND NOT EXISTS (SELECT FROM gate),
           -- The pools in which something could start: no other is locked.
           (SELECT array_agg(DISTINCT ROW(n.pool_id, 0, 0)::turnstile.gate_change)
            FROM turnstile.current_queue q JOIN action n ON n.id = ANY (ARRAY[q.action_id]) AND n.served
            WHERE q.id = ANY (queue_ids) AND NOT q.paused AND (q.held < q.max_concurrent) IS NOT FALSE)
    INTO lacks_queue, has_deleted, has_bounds, is_plain, worker_slot_changes
    FROM action a WHERE a.id = ANY (action_ids);
    IF lacks_queue THEN
        RAISE EXCEPTION 'a queue was deleted as idle before it was locked'
            USING ERRCODE = 'serialization_failure', HINT = 'Repeat the statement.';
    END IF;

    -- A missing queue could not be created: another session holds its action's row.
    IF blocked_queue_ids <> '{}' OR array_position(queue_ids, NULL) IS NOT NULL THEN
        is_plain := false;
        SELECT array_agg(CASE WHEN r.code IS NULL
                                   AND (r.queue_id IS NULL OR r.queue_id = ANY (blocked_queue_ids))
                              THEN 'unavailable' ELSE r.code END ORDER BY r.ord)
        INTO codes
        FROM unnest(queue_ids, codes) WITH ORDINALITY r(queue_id, code, ord);
    END IF;

    -- An action that was deleted while this statement waited for its queues accepts nothing.
    IF has_deleted THEN
        SELECT array_agg(CASE WHEN a.deleted_at IS NULL THEN r.code ELSE 'unknown_action' END ORDER BY r.ord)
        INTO codes
        FROM unnest(action_ids, codes) WITH ORDINALITY r(action_id, code, ord)
        LEFT JOIN action a ON a.id = ANY (ARRAY[r.action_id]);
    END IF;

    -- 4. Refuse what a bounded queue cannot take.
    IF has_bounds THEN
        SELECT r.codes, r.details INTO codes, details
        FROM turnstile.refuse_above_bounds(
            queue_ids, codes, details, in_run_ats, in_idempotency_keys, in_delivery_keys, admitted_at) r;
    END IF;

    -- 5. Insert the executions. A known key inserts nothing.
    WITH inserted AS (
        INSERT INTO execution (
            id, action_id, queue_id, status, parameters, metadata, concurrency_key, idempotency_key,
            delivery_key, request_hash, timeout_seconds, callback_url, traceparent,
            created_at, queued_at, run_at, expires_at, retry_of, priority
        )
        SELECT tickets[r.ord], r.action_id, r.queue_id,
               CASE WHEN r.run_at > admitted_at THEN 'delayed' ELSE 'queued' END::execution_status,
               r.parameters, r.metadata, nullif(r.key, ''), r.idempotency_key,
               r.delivery_key, r.request_hash, coalesce(r.timeout_seconds, a.timeout_seconds),
               coalesce(r.callback_url, a.callback_url), r.traceparent, admitted_at,
               CASE WHEN r.run_at > admitted_at THEN NULL ELSE admitted_at END,
               r.run_at, admitted_at + make_interval(secs => coalesce(r.ttl_seconds, a.ttl_seconds)),
               r.retry_of, coalesce(r.priority, greatest(3, a.priority_min))
        FROM unnest(action_ids, queue_ids, keys, codes, in_parameters, in_metadata, in_idempotency_keys,
                    in_delivery_keys, in_request_hashes, in_timeout_seconds, in_ttl_seconds, in_callback_urls,
                    in_traceparents, in_run_ats, in_retry_ofs, in_priorities)
             WITH ORDINALITY r(action_id, queue_id, key, code, parameters, metadata, idempotency_key,
                    delivery_key, request_hash, timeout_seconds, ttl_seconds, callback_url,
                    traceparent, run_at, retry_of, priority, ord)
        JOIN action a ON a.id = ANY (ARRAY[r.action_id])
        WHERE r.code IS NULL
        ORDER BY r.ord
        ON CONFLICT DO NOTHING
        RETURNING id, queue_id, status, run_at, expires_at, turnstile.place_of(priority, id) AS place
    ),
    new_delay AS (
        INSERT INTO delayed (execution_id, queue_id, due_at)
        SELECT i.id, i.queue_id, greatest(i.run_at, (SELECT b.next_at FROM turnstile.due_bound b))
        FROM inserted i WHERE i.status = 'delayed'
    ),
    new_deadline AS (
        INSERT INTO expiring (execution_id, queue_id, expires_at)
        SELECT i.id, i.queue_id, greatest(i.expires_at, (SELECT b.next_at FROM turnstile.due_bound b))
        FROM inserted i WHERE i.expires_at IS NOT NULL
    )
    SELECT (SELECT array_agg(ROW(n.queue_id, n.queued, 0, NULL, n.recorded, 0,
                                 n.first_places)::turnstile.queue_change)
            FROM (
                SELECT i.queue_id, count(*) AS recorded,
                       count(*) FILTER (WHERE i.status = 'queued') AS queued,
                       CASE WHEN bool_or(i.place <> i.id) THEN turnstile.first_places(
                           array_agg(i.place) FILTER (WHERE i.status = 'queued')) END AS first_places
                FROM inserted i GROUP BY i.queue_id
            ) n),
           ARRAY(SELECT i.queue_id FROM inserted i WHERE i.status = 'queued' ORDER BY i.id),
           ARRAY(SELECT i.place FROM inserted i WHERE i.status = 'queued' ORDER BY i.id),
           is_plain AND EXISTS (SELECT FROM inserted)
           AND (SELECT count(*) FROM inserted) = (SELECT count(*) FROM unnest(codes) c WHERE c IS NULL)
    INTO changes, arrival_queue_ids, arrival_places, is_plain;

    -- 6. Enqueue them, and grant the free slots, in the same transaction. The common case first: no pool is
    -- full, and every accepted request has changed its queue.
    IF is_plain AND in_suspect_ids IS NOT NULL THEN
        INSERT INTO waiting (line_id, place) SELECT * FROM unnest(arrival_queue_ids, arrival_places);
        arrival_queue_ids := '{}';
        SELECT g.is_decided, g.granted INTO is_decided, granted
        FROM turnstile.grant_plain(changes, worker_slot_changes) g;
    END IF;
    IF is_decided IS NOT TRUE THEN
        SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
        FROM turnstile.grant_locked(
            ARRAY(SELECT DISTINCT q.id FROM unnest(queue_ids) q(id)
                  WHERE q.id IS NOT NULL AND q.id <> ALL (blocked_queue_ids)),
            coalesce(changes, '{}'), arrival_queue_ids, arrival_places, in_tries => in_suspect_ids IS NULL) g;
    END IF;
    free_queue_ids := turnstile.free_suspects(in_suspect_ids, queue_ids, blocked_queue_ids);

    -- The common case: everything starts.
    IF cardinality(granted) >= cardinality(tickets) THEN
        SELECT array_agg(ROW(NULL, NULL, t.id, 'scheduled', NULL, false)::turnstile.admitted ORDER BY t.ord)
        INTO admitted
        FROM unnest(tickets) WITH ORDINALITY t(id, ord)
        WHERE t.id IN (SELECT g.execution_id FROM unnest(granted) g);
        IF cardinality(admitted) = cardinality(tickets) THEN
            RETURN;
        END IF;
    END IF;

    -- 7. Return the outcome of each. New executions are at the tail, so a position is the depth less the
    -- number behind it. An execution that existed before stays accepted even if a new one would be refused:
    -- its action may be deleted.
    WITH found AS MATERIALIZED (
        SELECT t.ord, e.id, e.status, e.request_hash, e.queue_id, e.priority, e.id = tickets[t.ord] AS is_new
        FROM unnest(in_idempotency_keys, in_delivery_keys, in_request_hashes, codes)
             WITH ORDINALITY t(idempotency_key, delivery_key, request_hash, code, ord)
        CROSS JOIN LATERAL (
            SELECT n.id FROM execution n WHERE n.id = tickets[t.ord]
            UNION ALL
            SELECT k.id FROM execution k WHERE k.idempotency_key = t.idempotency_key
            UNION ALL
            SELECT d.id FROM execution d WHERE d.delivery_key = t.delivery_key
            LIMIT 1
        ) known
        -- Looked up one by one, whatever the planner knows about the tables.
        CROSS JOIN LATERAL (
            SELECT c.id, c.status, c.request_hash, c.queue_id, c.priority FROM turnstile.current_execution c
            WHERE c.id = known.id LIMIT 1
        ) e
        WHERE t.code IS NULL OR e.request_hash = t.request_hash
    ),
    -- Once per queue, not once per request. The queue of an existing terminal execution may be deleted.
    state AS MATERIALIZED (
        SELECT q.id, q.depth, q.head_id, q.heads FROM turnstile.current_queue q
        WHERE q.id = ANY (ARRAY(SELECT DISTINCT f.queue_id FROM found f WHERE f.status = 'queued'))
    )
    SELECT array_agg(
        ROW(
            CASE WHEN e.id IS NULL THEN r.code
                 WHEN e.id <> tickets[r.ord] AND e.request_hash <> r.request_hash
                     THEN 'idempotency_conflict' END,
            CASE WHEN e.id IS NULL THEN r.detail END, e.id, e.status, e.queue_position, e.id <> tickets[r.ord]
        )::turnstile.admitted ORDER BY r.ord),
        coalesce(bool_or(e.id IS NULL AND r.code IS NULL), false)
    INTO admitted, was_pruned
    FROM unnest(codes, details, in_idempotency_keys, in_delivery_keys, in_request_hashes)
         WITH ORDINALITY r(code, detail, idempotency_key, delivery_key, request_hash, ord)
    LEFT JOIN (
        SELECT f.ord, f.id, f.status, f.request_hash,
               CASE WHEN f.status <> 'queued' THEN NULL
                    WHEN q.heads IS NOT NULL THEN turnstile.waiting_up_to(
                        q.id, q.head_id, q.heads, turnstile.place_of(f.priority, f.id))
                    WHEN f.is_new THEN q.depth + 1 - count(*) FILTER (WHERE f.is_new AND f.status = 'queued')
                                                     OVER (PARTITION BY f.queue_id ORDER BY f.ord DESC)
                    ELSE (SELECT count(*) FROM waiting w
                          WHERE w.line_id = f.queue_id AND w.place >= q.head_id AND w.place <= f.id)
               END AS queue_position
        FROM found f LEFT JOIN state q ON q.id = f.queue_id
    ) e ON e.ord = r.ord;

    -- The insert found the key of an execution that was then pruned. Rolled back and repeated by the caller,
    -- the request is admitted as new.
    IF was_pruned THEN
        RAISE EXCEPTION 'an execution was pruned while its key was admitted again'
            USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;
