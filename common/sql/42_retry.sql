-- retry: submits the requests of these terminal executions again, in the given order.
--
-- Each becomes a new execution: a terminal row never changes (P3). It passes admit like any request, so
-- bounds, order and idempotency are the same. Its hash names the execution that it retries: a key that was
-- used for anything else is a conflict.
--
-- Returns one row per given execution. `previous_status` is null if it does not exist. One that is not
-- terminal is not retried: `execution_id` and `code` are both null.
CREATE FUNCTION turnstile.retry(
    in_execution_ids bigint[],
    in_idempotency_keys text[],
    in_traceparent text,
    in_wait_ms integer DEFAULT NULL,
    in_suspect_ids bigint[] DEFAULT '{}',
    in_caller jsonb DEFAULT NULL,
    OUT retried turnstile.retried[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT blocked_queue_ids bigint[],
    OUT free_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    ended record;
    answers turnstile.admitted[];
BEGIN
    -- Read once: while admit waits for a queue, a terminal execution may be pruned, and another may become
    -- terminal.
    WITH requested AS MATERIALIZED (
        SELECT c.ord, c.key, e.*, a.ref
        FROM unnest(in_execution_ids, in_idempotency_keys) WITH ORDINALITY c(id, key, ord)
        LEFT JOIN turnstile.current_execution e ON e.id = ANY (ARRAY[c.id])
        LEFT JOIN action a ON a.id = ANY (ARRAY[e.action_id])
    )
    SELECT (SELECT array_agg(s.status::text ORDER BY s.ord) FROM requested s) AS found_statuses,
           (SELECT array_agg(s.ref ORDER BY s.ord) FROM requested s) AS found_refs,
           array_agg(r.ord) AS ords, array_agg(r.id) AS ids, array_agg(r.ref) AS refs,
           array_agg(r.parameters) AS parameters, array_agg(r.concurrency_key) AS concurrency_keys,
           array_agg(r.key) AS idempotency_keys, array_agg(md5('retry of ' || r.id)::uuid) AS request_hashes,
           array_agg(r.timeout_seconds) AS timeouts, array_agg(r.callback_url) AS callback_urls,
           array_agg(r.metadata) AS metadata, array_agg(in_traceparent) AS traceparents,
           array_agg(r.priority) AS priorities
    INTO ended
    FROM (SELECT s.* FROM requested s WHERE s.completed_at IS NOT NULL ORDER BY s.ord) r;

    IF ended.ids IS NOT NULL THEN
        SELECT m.admitted, m.granted, m.more_queue_ids, m.blocked_queue_ids, m.free_queue_ids
        INTO answers, granted, more_queue_ids, blocked_queue_ids, free_queue_ids
        FROM turnstile.admit(
            ended.refs, ended.parameters, ended.concurrency_keys, ended.idempotency_keys,
            array_fill(NULL::uuid, ARRAY[cardinality(ended.ids)]), ended.request_hashes,
            array_fill(NULL::timestamptz, ARRAY[cardinality(ended.ids)]), ended.timeouts,
            array_fill(NULL::double precision, ARRAY[cardinality(ended.ids)]),
            ended.callback_urls, ended.metadata, ended.traceparents, ended.ids, in_wait_ms, in_suspect_ids,
            ended.priorities
        ) m;
    END IF;

    SELECT array_agg(
        ROW(r.id, r.status, r.ref, n.code, n.detail, n.execution_id, n.status, n.queue_position,
            n.duplicate)::turnstile.retried ORDER BY r.ord)
    INTO retried
    FROM unnest(in_execution_ids, ended.found_statuses, ended.found_refs)
         WITH ORDINALITY r(id, status, ref, ord)
    LEFT JOIN unnest(ended.ords) WITH ORDINALITY o(ord, position) ON o.ord = r.ord
    LEFT JOIN unnest(answers)
        WITH ORDINALITY n(code, detail, execution_id, status, queue_position, duplicate, position)
        ON n.position = o.position;
    IF in_caller IS NOT NULL THEN
        PERFORM turnstile.note_caller(in_caller);
        PERFORM turnstile.log_operations(
            'retried', 'execution', array_agg(r.retry_of::text ORDER BY r.retry_of),
            array_agg(r.action_ref ORDER BY r.retry_of),
            NULL, array_agg(jsonb_build_object('retry_id', r.execution_id) ORDER BY r.retry_of))
        FROM unnest(retried) r WHERE r.execution_id IS NOT NULL AND NOT r.duplicate;
    END IF;
END
$$;
