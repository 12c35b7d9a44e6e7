-- admit: take requests into the record and into their lines, in the order given, and grant what is free.
--
-- Tickets (execution ids) are drawn after the queue rows are locked, so ticket order, commit order and
-- arrival order are one (P2). The same request twice, by idempotency key or by delivery, is one
-- execution (P5: a redelivery after a crash is harmless). Returns one row per request, in order.
--
-- A request whose queue another session holds for longer than `in_wait_ms` comes back as 'unavailable' (see
-- `lock_queues`), and with it all of the same queue: none passes an earlier one. `blocked_queue_ids` are such queues,
-- `free_queue_ids` those of `in_suspect_ids` that are none.
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
    OUT admitted turnstile.admitted[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT blocked_queue_ids bigint[],
    OUT free_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    action_ids bigint[];
    keys text[];
    codes text[];
    details text[];
    lacking_ids bigint[];
    queue_ids bigint[];
    stuck_ids bigint[];
    tickets bigint[];
    admitted_at timestamptz;
    was_pruned boolean;
BEGIN
    -- 1. Name the action and the queue of each request.
    SELECT array_agg(a.id ORDER BY r.ord),
           array_agg(k.key ORDER BY r.ord),
           array_agg(CASE WHEN a.id IS NULL THEN 'unknown_action'
                          WHEN k.key IS NULL OR length(k.key) > 512 OR f.detail IS NOT NULL THEN 'invalid_parameters'
                     END ORDER BY r.ord),
           array_agg(CASE WHEN a.id IS NULL THEN r.ref
                          WHEN f.detail IS NOT NULL THEN f.detail
                          WHEN k.key IS NULL THEN 'parameters: no value at concurrency key ' || a.concurrency_key
                          WHEN length(k.key) > 512 THEN 'parameters: concurrency key longer than 512 characters'
                     END ORDER BY r.ord)
    INTO action_ids, keys, codes, details
    FROM unnest(in_action_refs, in_parameters, in_concurrency_keys, in_retry_ofs)
         WITH ORDINALITY r(ref, parameters, key, retry_of, ord)
    LEFT JOIN action a ON a.ref = ANY (ARRAY[r.ref]) AND a.deleted_at IS NULL
    CROSS JOIN LATERAL (
        SELECT CASE WHEN r.key IS NOT NULL THEN r.key
                    WHEN a.concurrency_key_path IS NULL THEN ''
                    ELSE r.parameters #>> a.concurrency_key_path END
    ) k(key)
    -- Each key has the action's whole limit: who chooses keys freely has no limit (P1). A retry repeats the key
    -- that was accepted once.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN r.key IS NULL OR a.submitter_keys OR r.retry_of IS NOT NULL THEN NULL
                    WHEN a.concurrency_key_path IS NULL THEN
                        'concurrency_key: the action has no keys; leave it out, or set submitter_keys in the action'
                    WHEN r.parameters #>> a.concurrency_key_path IS DISTINCT FROM r.key THEN
                        format('concurrency_key: is not the value at %s in the parameters; leave it out, or set'
                               ' submitter_keys in the action', a.concurrency_key) END
    ) f(detail);

    -- 2. Queues that do not exist yet. A limit change writes the action's row before its queues' rows:
    --    waiting for that row here means that a new queue is born with the new limit.
    lacking_ids := ARRAY(
        SELECT DISTINCT r.action_id FROM unnest(action_ids, keys, codes) r(action_id, key, code)
        WHERE r.code IS NULL AND (
            SELECT q.id FROM action_queue q WHERE q.action_id = r.action_id AND q.concurrency_key = r.key) IS NULL);
    IF cardinality(lacking_ids) > 0 THEN
        IF in_wait_ms IS NOT NULL AND in_suspect_ids IS NULL THEN
            lacking_ids := ARRAY(
                SELECT a.id FROM action a WHERE a.id = ANY (lacking_ids) ORDER BY a.id FOR SHARE SKIP LOCKED);
        ELSE
            PERFORM set_config('lock_timeout', in_wait_ms || 'ms', true) WHERE in_wait_ms IS NOT NULL;
            PERFORM 1 FROM action a WHERE a.id = ANY (lacking_ids) ORDER BY a.id FOR SHARE;
        END IF;
        INSERT INTO action_queue (action_id, concurrency_key, max_concurrent, paused)
        SELECT DISTINCT a.id, r.key, a.max_concurrent, a.paused
        FROM unnest(action_ids, keys, codes) r(action_id, key, code)
        JOIN action a ON a.id = ANY (ARRAY[r.action_id])
        WHERE r.code IS NULL AND a.id = ANY (lacking_ids) AND (
            SELECT q.id FROM action_queue q WHERE q.action_id = r.action_id AND q.concurrency_key = r.key) IS NULL
        ORDER BY a.id, r.key
        ON CONFLICT (action_id, concurrency_key) DO NOTHING;
    END IF;

    -- 3. Lock the lines, in ascending id, and only then draw the tickets.
    SELECT array_agg(CASE WHEN r.code IS NULL THEN (
               SELECT q.id FROM action_queue q WHERE q.action_id = r.action_id AND q.concurrency_key = r.key
           ) END ORDER BY r.ord) INTO queue_ids
    FROM unnest(action_ids, keys, codes) WITH ORDINALITY r(action_id, key, code, ord);
    blocked_queue_ids := turnstile.lock_queues(queue_ids, in_wait_ms, in_suspect_ids);
    tickets := ARRAY(SELECT nextval('execution_id_seq') FROM generate_series(1, cardinality(in_action_refs)));
    admitted_at := clock_timestamp();
    -- A queue that was deleted as idle since step 2 (see delete_idle_queues) is created when the statement is
    -- repeated: the caller does so, as after a deadlock. To create it here, with these locks held, could become one.
    IF (SELECT count(*) FROM action_queue q WHERE q.id = ANY (queue_ids))
       < (SELECT count(DISTINCT q.id) FROM unnest(queue_ids) q(id))
       OR (in_wait_ms IS NULL OR in_suspect_ids IS NOT NULL) AND EXISTS (
           SELECT FROM unnest(queue_ids, codes) r(queue_id, code) WHERE r.code IS NULL AND r.queue_id IS NULL)
    THEN
        RAISE EXCEPTION 'a queue was deleted as idle before it was locked'
            USING ERRCODE = 'serialization_failure', HINT = 'Repeat the statement.';
    END IF;

    -- A queue that is not there could not be created: another session holds its action's row.
    SELECT array_agg(CASE WHEN r.code IS NULL AND (r.queue_id IS NULL OR r.queue_id = ANY (blocked_queue_ids))
                          THEN 'unavailable' ELSE r.code END ORDER BY r.ord)
    INTO codes
    FROM unnest(queue_ids, codes) WITH ORDINALITY r(queue_id, code, ord);

    -- An action that was deleted while we waited for its lines takes nothing any more.
    IF EXISTS (SELECT FROM action a WHERE a.id = ANY (action_ids) AND a.deleted_at IS NOT NULL) THEN
        SELECT array_agg(CASE WHEN a.deleted_at IS NULL THEN r.code ELSE 'unknown_action' END ORDER BY r.ord)
        INTO codes
        FROM unnest(action_ids, codes) WITH ORDINALITY r(action_id, code, ord)
        LEFT JOIN action a ON a.id = ANY (ARRAY[r.action_id]);
    END IF;

    -- 4. Refuse what a bounded line cannot take. `place` numbers the newcomers of each line. Copies of a
    --    request that is already known take no place; copies inside the batch share the fate of the first.
    IF EXISTS (
        SELECT FROM action a
        WHERE a.id = ANY (action_ids) AND (a.max_queued IS NOT NULL OR a.when_full = 'reject')
    ) THEN
        WITH request AS (
            SELECT r.*, min(r.ord) OVER (
                PARTITION BY r.code IS NULL, r.idempotency_key,
                             CASE WHEN r.idempotency_key IS NULL THEN r.delivery_key END,
                             CASE WHEN r.idempotency_key IS NULL AND r.delivery_key IS NULL THEN r.ord END
            ) AS first_ord
            FROM unnest(queue_ids, codes, in_run_ats, in_idempotency_keys, in_delivery_keys)
                 WITH ORDINALITY r(queue_id, code, run_at, idempotency_key, delivery_key, ord)
        ),
        newcomer AS (
            SELECT r.ord, r.first_ord, r.queue_id,
                   r.code IS NULL AND r.ord = r.first_ord
                   AND (r.run_at IS NULL OR r.run_at <= admitted_at)
                   AND (SELECT e.id FROM execution e WHERE e.idempotency_key = r.idempotency_key) IS NULL
                   AND (SELECT e.id FROM execution e WHERE e.delivery_key = r.delivery_key) IS NULL AS takes_place
            FROM request r
        ),
        placed AS (
            SELECT n.*, count(*) FILTER (WHERE n.takes_place) OVER (PARTITION BY n.queue_id ORDER BY n.ord) AS place
            FROM newcomer n
        ),
        -- `free` is null without a limit: everything starts, nothing is refused.
        line AS MATERIALIZED (
            SELECT q.id AS queue_id, q.depth, q.max_concurrent, held.slots AS held,
                   coalesce(a.max_queued, CASE WHEN a.when_full = 'reject' THEN 0 END) AS bound,
                   CASE WHEN q.paused THEN 0
                        WHEN q.max_concurrent IS NOT NULL THEN greatest(q.max_concurrent - held.slots, 0) END AS free
            FROM action_queue q
            JOIN action a ON a.id = ANY (ARRAY[q.action_id])
            CROSS JOIN LATERAL (SELECT count(*) AS slots FROM slot s WHERE s.queue_id = q.id) held
            WHERE q.id = ANY (queue_ids)
        ),
        judged AS (
            SELECT p.ord, p.first_ord,
                   CASE WHEN p.takes_place AND l.depth + p.place - l.free > l.bound THEN
                       format('%s waiting of at most %s, %s running %s', l.depth, l.bound, l.held,
                              coalesce('of at most ' || l.max_concurrent, 'without a limit')) END AS refusal
            FROM placed p LEFT JOIN line l ON l.queue_id = p.queue_id
        ),
        shared AS (
            SELECT j.ord, max(j.refusal) OVER (PARTITION BY j.first_ord) AS refusal FROM judged j
        )
        SELECT array_agg(coalesce(codes[s.ord], CASE WHEN s.refusal IS NOT NULL THEN 'queue_full' END) ORDER BY s.ord),
               array_agg(coalesce(details[s.ord], s.refusal) ORDER BY s.ord)
        INTO codes, details
        FROM shared s;
    END IF;

    -- 5. Record them and let them take their places. A known key inserts nothing.
    WITH inserted AS (
        INSERT INTO execution (
            id, action_id, queue_id, status, parameters, metadata, concurrency_key, idempotency_key,
            delivery_key, request_hash, timeout_seconds, callback_url, traceparent,
            created_at, queued_at, run_at, expires_at, retry_of
        )
        SELECT tickets[r.ord], r.action_id, r.queue_id,
               CASE WHEN r.run_at > admitted_at THEN 'delayed' ELSE 'queued' END::execution_status,
               r.parameters, r.metadata, nullif(r.key, ''), r.idempotency_key,
               r.delivery_key, r.request_hash, coalesce(r.timeout_seconds, a.timeout_seconds),
               coalesce(r.callback_url, a.callback_url), r.traceparent, admitted_at,
               CASE WHEN r.run_at > admitted_at THEN NULL ELSE admitted_at END,
               r.run_at, admitted_at + make_interval(secs => coalesce(r.ttl_seconds, a.ttl_seconds)),
               r.retry_of
        FROM unnest(action_ids, queue_ids, keys, codes, in_parameters, in_metadata, in_idempotency_keys,
                    in_delivery_keys, in_request_hashes, in_timeout_seconds, in_ttl_seconds, in_callback_urls,
                    in_traceparents, in_run_ats, in_retry_ofs)
             WITH ORDINALITY r(action_id, queue_id, key, code, parameters, metadata, idempotency_key,
                    delivery_key, request_hash, timeout_seconds, ttl_seconds, callback_url,
                    traceparent, run_at, retry_of, ord)
        JOIN action a ON a.id = ANY (ARRAY[r.action_id])
        WHERE r.code IS NULL
        ORDER BY r.ord
        ON CONFLICT DO NOTHING
        RETURNING id, queue_id, status, run_at, expires_at
    ),
    in_line AS (
        INSERT INTO waiting (queue_id, execution_id) SELECT i.queue_id, i.id FROM inserted i WHERE i.status = 'queued'
    ),
    not_due AS (
        INSERT INTO delayed (execution_id, queue_id, due_at)
        SELECT i.id, i.queue_id, i.run_at FROM inserted i WHERE i.status = 'delayed'
    ),
    with_deadline AS (
        INSERT INTO expiring (execution_id, queue_id, expires_at)
        SELECT i.id, i.queue_id, i.expires_at FROM inserted i WHERE i.expires_at IS NOT NULL
    )
    UPDATE action_queue q
    SET depth = q.depth + n.queued, total_enqueued = q.total_enqueued + n.recorded, updated_at = admitted_at
    FROM (
        SELECT i.queue_id, count(*) AS recorded, count(*) FILTER (WHERE i.status = 'queued') AS queued
        FROM inserted i GROUP BY i.queue_id
    ) n
    WHERE q.id = ANY (ARRAY[n.queue_id]);

    -- 6. Grant what is free, in the same transaction.
    SELECT g.granted, g.more_queue_ids, g.stuck_queue_ids INTO granted, more_queue_ids, stuck_ids
    FROM turnstile.grant_locked(
        ARRAY(SELECT DISTINCT q.id FROM unnest(queue_ids) q(id)
              WHERE q.id IS NOT NULL AND q.id <> ALL (blocked_queue_ids)),
        in_suspect_ids) g;
    blocked_queue_ids := blocked_queue_ids || coalesce(stuck_ids, '{}');
    free_queue_ids := turnstile.free_suspects(in_suspect_ids, queue_ids, blocked_queue_ids);

    -- 7. Say what became of each. Newcomers stand at the tail, so a place is the depth less those behind. What is
    --    in the record already stays accepted, though a newcomer would be refused: its action may be gone since.
    SELECT array_agg(
        ROW(
            CASE WHEN e.id IS NULL THEN r.code
                 WHEN e.id <> tickets[r.ord] AND e.request_hash <> r.request_hash THEN 'idempotency_conflict' END,
            CASE WHEN e.id IS NULL THEN r.detail END, e.id, e.status, e.queue_position, e.id <> tickets[r.ord]
        )::turnstile.admitted ORDER BY r.ord),
        coalesce(bool_or(e.id IS NULL AND r.code IS NULL), false)
    INTO admitted, was_pruned
    FROM unnest(codes, details, in_idempotency_keys, in_delivery_keys, in_request_hashes)
         WITH ORDINALITY r(code, detail, idempotency_key, delivery_key, request_hash, ord)
    LEFT JOIN (
        SELECT f.ord, f.id, f.status, f.request_hash,
               CASE WHEN f.status <> 'queued' THEN NULL
                    WHEN f.is_new THEN q.depth + 1 - count(*) FILTER (WHERE f.is_new AND f.status = 'queued')
                                                     OVER (PARTITION BY f.queue_id ORDER BY f.ord DESC)
                    ELSE (SELECT count(*) FROM waiting w WHERE w.queue_id = f.queue_id AND w.execution_id <= f.id)
               END AS queue_position
        FROM (
            SELECT t.ord, e.id, e.status, e.request_hash, e.queue_id, e.id = tickets[t.ord] AS is_new
            FROM unnest(in_idempotency_keys, in_delivery_keys, in_request_hashes, codes)
                 WITH ORDINALITY t(idempotency_key, delivery_key, request_hash, code, ord)
            CROSS JOIN LATERAL (
                SELECT n.id, n.status, n.request_hash, n.queue_id FROM execution n WHERE n.id = tickets[t.ord]
                UNION ALL
                SELECT k.id, k.status, k.request_hash, k.queue_id
                FROM execution k WHERE k.idempotency_key = t.idempotency_key
                UNION ALL
                SELECT d.id, d.status, d.request_hash, d.queue_id
                FROM execution d WHERE d.delivery_key = t.delivery_key
                LIMIT 1
            ) e
            WHERE t.code IS NULL OR e.request_hash = t.request_hash
        ) f
        -- The queue of a known one that has ended may be deleted.
        LEFT JOIN action_queue q ON q.id = ANY (ARRAY[f.queue_id])
    ) e ON e.ord = r.ord;

    -- Its key was known to the insert and pruned before this look: undone as a whole, it is taken in as new. The
    -- callers repeat what could not be serialised.
    IF was_pruned THEN
        RAISE EXCEPTION 'an execution was pruned while its key was admitted again'
            USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;
