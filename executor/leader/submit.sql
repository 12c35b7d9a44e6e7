-- Submissions from database sessions: `turnstile.submit` inside a user's own transaction.
--
-- A committed submission becomes one execution, a rolled back one leaves nothing. Each gets its place in the
-- inbox while its transaction commits, from a deferred trigger: a submission that was committed before
-- another transaction began to commit comes first, and one session's calls keep their order. No row is shared
-- between sessions: submitting sessions never wait for each other or for the leader.
CREATE SCHEMA IF NOT EXISTS turnstile;

-- Submits an execution if and when this transaction commits. Returns the id of the request, for
-- `turnstile.submission`. Errors have the code and the field first, like those of the other ways to submit.
-- The leader checks the rest after the commit. No request is larger than the largest message that it reads,
-- 16 MiB.
CREATE FUNCTION turnstile.submit(
    action_ref text,
    parameters jsonb DEFAULT '{}',
    idempotency_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    timeout interval DEFAULT NULL,
    ttl interval DEFAULT NULL,
    callback_url text DEFAULT NULL,
    metadata jsonb DEFAULT '{}',
    traceparent text DEFAULT NULL,
    singleton jsonb DEFAULT NULL
)
RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    new_id uuid := gen_random_uuid();
    refusal text;
BEGIN
    refusal := CASE
        WHEN action_ref IS NULL THEN 'invalid_message: action_ref: is null; expected the name of an action'
        WHEN NOT EXISTS (SELECT FROM ledger.definition d WHERE d.kind = 'action' AND d.name = action_ref)
            THEN format('unknown_action: action_ref: there is no action %L', left(action_ref, 200))
        WHEN jsonb_typeof(parameters) IS DISTINCT FROM 'object'
            THEN 'invalid_parameters: parameters: expected a JSON object, like ''{"customer_id": 7}'''
        WHEN jsonb_typeof(metadata) IS DISTINCT FROM 'object'
            THEN 'invalid_message: metadata: expected a JSON object, like ''{"order": "A-17"}'''
        WHEN priority NOT BETWEEN 1 AND 5
            THEN format('invalid_message: priority: %s is not between 1 (first) and 5 (last)', priority)
        WHEN NOT isfinite(run_at) THEN format('invalid_message: run_at: %s is not an instant', run_at)
        WHEN run_at IS NOT NULL AND delay IS NOT NULL
            THEN 'invalid_message: run_at, delay: give one of them'
        WHEN delay <= interval '0'
            THEN 'invalid_message: delay: is not longer than 0; expected an interval like ''5 min'''
        WHEN timeout <= interval '0'
            THEN 'invalid_message: timeout: is not longer than 0; expected an interval like ''5 min'''
        WHEN ttl <= interval '0'
            THEN 'invalid_message: ttl: is not longer than 0; expected an interval like ''1 hour'''
        WHEN char_length(idempotency_key) NOT BETWEEN 1 AND 512
            THEN format('invalid_message: idempotency_key: %s characters; expected 1 to 512',
                        char_length(idempotency_key))
        WHEN char_length(concurrency_key) NOT BETWEEN 1 AND 512
            THEN format('invalid_message: concurrency_key: %s characters; expected 1 to 512',
                        char_length(concurrency_key))
        WHEN char_length(callback_url) > 2048
            THEN format('invalid_message: callback_url: %s characters; at most 2048 are accepted',
                        char_length(callback_url))
        WHEN jsonb_typeof(singleton) NOT IN ('string', 'object')
            THEN 'invalid_message: singleton: expected a text or an object, like ''"nightly"'' or'
                 ' ''{"key": "nightly", "then": "refuse"}'''
        WHEN callback_url !~* '^https?://'
            THEN 'invalid_message: callback_url: expected an http or https URL, like'
                 ' https://shop.example/done'
        WHEN traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
            THEN 'invalid_message: traceparent: not a W3C trace context; leave it out'
        WHEN octet_length(parameters::text) + octet_length(metadata::text) > 16 * 1024 * 1024
            THEN format('too_large: parameters, metadata: %s bytes, at most 16777216 are accepted; send a'
                        ' reference instead',
                        octet_length(parameters::text) + octet_length(metadata::text))
    END;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION '%', refusal USING ERRCODE = 'invalid_parameter_value', HINT = CASE
            WHEN refusal LIKE 'unknown_action%' THEN 'List the actions: executor actions list.' ELSE '' END;
    END IF;
    -- Until the end of this transaction: a committed submission survives a crash of the server.
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    INSERT INTO ledger.inbox (command_id, kind, size_bytes, body, parameters, metadata)
    VALUES (
        new_id, 'submission', 1000 + pg_column_size(parameters) + pg_column_size(metadata),
        jsonb_strip_nulls(jsonb_build_object(
            'action_ref', action_ref, 'idempotency_key', idempotency_key, 'concurrency_key', concurrency_key,
            'priority', priority, 'run_at', run_at, 'delay', extract(epoch FROM delay),
            'timeout', extract(epoch FROM timeout),
            'ttl', extract(epoch FROM ttl), 'callback_url', callback_url, 'traceparent', traceparent,
            'singleton', singleton)),
        parameters, metadata);
    RETURN new_id;
END
$$;

-- Gives a submission its place in the order of decision as its transaction commits.
CREATE FUNCTION ledger.enter_line()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    UPDATE ledger.inbox SET id = ledger.next_command_id() WHERE command_id = NEW.command_id;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER submission_enters_line AFTER INSERT ON ledger.inbox
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.id IS NULL) EXECUTE FUNCTION ledger.enter_line();

-- What became of a request: pending, admitted or rejected; no row for an unknown one. A rejection has its
-- code and message. Outcomes are kept for a week, and executions as long as retention says.
CREATE FUNCTION turnstile.submission(
    in_request_id uuid, OUT status text, OUT execution_id bigint, OUT code text, OUT message text
)
RETURNS SETOF record
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN QUERY
    SELECT n.status, n.execution_id, n.code, n.message
    FROM (
        SELECT 1, 'pending', NULL::bigint, NULL::text, NULL::text FROM ledger.inbox i
        WHERE i.command_id = in_request_id AND i.kind IN ('request', 'submission')
          AND NOT EXISTS (SELECT FROM ledger.answer a WHERE a.command_id = in_request_id)
        UNION ALL
        SELECT 2, CASE WHEN o.body ? 'code' THEN 'rejected' ELSE 'admitted' END,
               (o.body ->> 'execution_id')::bigint, o.body ->> 'code', o.body ->> 'message'
        FROM (
            SELECT convert_from(a.body, 'UTF8')::jsonb AS body FROM ledger.answer a
            WHERE a.command_id = in_request_id
        ) o
        WHERE o.body ? 'code' OR o.body ? 'execution_id'
        UNION ALL
        SELECT 3, 'admitted', e.id, NULL, NULL FROM ledger.execution e WHERE e.delivery_key = in_request_id
    ) n(rank, status, execution_id, code, message)
    ORDER BY n.rank LIMIT 1;
END
$$;
