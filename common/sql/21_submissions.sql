-- Submissions from database sessions: `turnstile.submit` inside a user's own transaction (P5).
--
-- A committed submission becomes one execution, a rolled back one leaves nothing. Each gets its ticket while
-- its transaction commits, from a deferred trigger: executions are admitted in the order of tickets, so a
-- submission that was committed before another transaction began to commit comes first, and one session's
-- calls keep their order.
--
-- The rows are read from a bound in the memory of the executor, so rows that an old snapshot keeps cost
-- nothing (P15). It rises past a ticket when every transaction that drew it or an earlier one has ended, as
-- the locks named 'entering' show. No row is shared between sessions: submitting sessions never wait for each
-- other or for an executor.

-- submit: submits an execution if and when this transaction commits. Returns the id of the request, for
-- `turnstile.submission`. Errors have the code and the field first, like those of the other ways to submit.
-- The executor checks the rest after the commit. No request is larger than the largest message that it reads,
-- 16 MiB (P9).
CREATE FUNCTION turnstile.submit(
    action_ref text,
    parameters jsonb DEFAULT '{}',
    idempotency_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    timeout interval DEFAULT NULL,
    ttl interval DEFAULT NULL,
    callback_url text DEFAULT NULL,
    metadata jsonb DEFAULT '{}',
    traceparent text DEFAULT NULL
)
RETURNS uuid
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_lookups
AS $$
#variable_conflict use_variable
DECLARE
    new_id uuid := gen_random_uuid();
    refusal text;
BEGIN
    refusal := CASE
        WHEN action_ref IS NULL THEN 'invalid_message: action_ref: is null; expected the name of an action'
        WHEN NOT EXISTS (SELECT FROM public.action a WHERE a.ref = submit.action_ref AND a.deleted_at IS NULL)
            THEN format('unknown_action: action_ref: there is no action %L', left(action_ref, 200))
        WHEN jsonb_typeof(parameters) IS DISTINCT FROM 'object'
            THEN 'invalid_parameters: parameters: expected a JSON object, like ''{"customer_id": 7}'''
        WHEN jsonb_typeof(metadata) IS DISTINCT FROM 'object'
            THEN 'invalid_message: metadata: expected a JSON object, like ''{"order": "A-17"}'''
        WHEN priority NOT BETWEEN 1 AND 5
            THEN format('invalid_message: priority: %s is not between 1 (first) and 5 (last)', priority)
        WHEN NOT isfinite(run_at) THEN format('invalid_message: run_at: %s is not an instant', run_at)
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
    INSERT INTO public.submission (request_id, request, traceparent, submitted_at)
    VALUES (
        new_id,
        jsonb_build_object('action_ref', action_ref, 'parameters', parameters, 'metadata', metadata)
        || jsonb_strip_nulls(jsonb_build_object(
            'idempotency_key', idempotency_key, 'concurrency_key', concurrency_key, 'priority', priority,
            'run_at', run_at, 'timeout', extract(epoch FROM timeout), 'ttl', extract(epoch FROM ttl),
            'callback_url', callback_url)),
        traceparent, clock_timestamp());
    RETURN new_id;
END
$$;

-- enter_line: gives a submission its ticket as its transaction commits; until its end, a lock says that the
-- transaction has one. Notifies the executors, unless one says by its lock that it reads again within
-- milliseconds: a transaction with a notification commits alone.
CREATE FUNCTION turnstile.enter_line()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
:settings
AS $$
BEGIN
    -- Before the ticket is drawn. Tried, so that another holder of this lock cannot stop submissions.
    PERFORM pg_try_advisory_xact_lock_shared(turnstile.submissions_lock('entering'));
    INSERT INTO public.submission_line (request_id, action_ref, request_bytes)
    VALUES (NEW.request_id, NEW.request ->> 'action_ref', octet_length(NEW.request::text));
    IF pg_try_advisory_xact_lock_shared(turnstile.submissions_lock('busy')) THEN
        PERFORM pg_notify('turnstile_submissions', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER enter_line AFTER INSERT ON public.submission
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION turnstile.enter_line();

-- submissions_lock: the key of an advisory lock of an executor's session: 'leader', of the one that admits
-- submissions; 'busy', while it reads them again without a notification. 'entering': of each transaction that
-- has tickets, until its end.
CREATE FUNCTION turnstile.submissions_lock(in_name text)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
AS $$ SELECT hashtextextended('turnstile.submissions.' || in_name, 0) $$;

-- next_submissions: the next committed submissions from this ticket on, at most `in_limit` and about
-- `in_bytes`, without those of actions in `in_passed_refs`, and only those that were called for at least
-- `in_min_age_seconds` ago. Bodies above `in_body_bytes_max` are null, so that no body is larger than an
-- executor can take. `newest_ticket`: the newest that was drawn before they were read. `oldest_ticket`: of
-- all that were read, also of those that are too young. `entering`, if asked for: the transactions that had
-- drawn tickets and had not ended, after `newest_ticket` and before the rest was read.
CREATE FUNCTION turnstile.next_submissions(
    in_from_ticket bigint,
    in_limit integer,
    in_bytes bigint,
    in_passed_refs text[] DEFAULT '{}',
    in_min_age_seconds double precision DEFAULT 0,
    in_with_entering boolean DEFAULT false,
    in_body_bytes_max bigint DEFAULT NULL,
    OUT newest_ticket bigint,
    OUT tickets bigint[],
    OUT request_ids uuid[],
    OUT requests text[],
    OUT traceparents text[],
    OUT oldest_ticket bigint,
    OUT entering text[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    SELECT CASE WHEN n.is_called THEN n.last_value ELSE 0 END INTO newest_ticket
    FROM submission_line_ticket_seq n;
    IF in_with_entering THEN
        -- A transaction gives up its locks after its rows are visible: the next statement sees all that is
        -- not listed here.
        SELECT coalesce(array_agg(l.virtualtransaction), '{}') INTO entering
        FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND (l.classid::bigint << 32 | l.objid::bigint) = turnstile.submissions_lock('entering');
    END IF;
    WITH listed AS MATERIALIZED (
        SELECT n.ticket, n.request_id, coalesce(n.request_bytes > in_body_bytes_max, false) AS is_too_large,
               sum(n.request_bytes) OVER (ORDER BY n.ticket) - n.request_bytes AS bytes_before
        FROM (
            SELECT l.ticket, l.request_id, l.request_bytes FROM submission_line l
            WHERE l.ticket >= in_from_ticket AND l.action_ref <> ALL (in_passed_refs)
            ORDER BY l.ticket LIMIT in_limit
        ) n
    )
    SELECT min(l.ticket), array_agg(l.ticket ORDER BY l.ticket) FILTER (WHERE n.is_due),
           array_agg(s.request_id ORDER BY l.ticket) FILTER (WHERE n.is_due),
           array_agg(CASE WHEN NOT l.is_too_large THEN s.request::text END ORDER BY l.ticket)
               FILTER (WHERE n.is_due),
           array_agg(s.traceparent ORDER BY l.ticket) FILTER (WHERE n.is_due)
    INTO oldest_ticket, tickets, request_ids, requests, traceparents
    FROM listed l
    JOIN submission s ON s.request_id = ANY (ARRAY[l.request_id])
    CROSS JOIN LATERAL (SELECT
        in_min_age_seconds <= 0
                               OR s.submitted_at < clock_timestamp() - make_interval(
                                   secs => in_min_age_seconds)
    ) n(is_due)
    WHERE l.bytes_before < in_bytes;
END
$$;

-- admit_submissions: admits submissions like `admit`, and deletes those that are accepted, in one
-- transaction. `admitted` is null, and nothing was done, if another executor has taken one of them.
CREATE FUNCTION turnstile.admit_submissions(
    in_tickets bigint[],
    in_action_refs text[],
    in_parameters jsonb[],
    in_concurrency_keys text[],
    in_idempotency_keys text[],
    in_request_ids uuid[],
    in_request_hashes uuid[],
    in_run_ats timestamptz[],
    in_timeout_seconds double precision[],
    in_ttl_seconds double precision[],
    in_callback_urls text[],
    in_metadata jsonb[],
    in_traceparents text[],
    in_priorities smallint[],
    in_wait_ms integer,
    in_suspect_ids bigint[],
    OUT admitted turnstile.admitted[],
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[],
    OUT blocked_queue_ids bigint[],
    OUT free_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    present integer;
BEGIN
    SELECT count(*) INTO present
    FROM (SELECT FROM submission_line l WHERE l.ticket = ANY (in_tickets) ORDER BY l.ticket FOR UPDATE) l;
    IF present < cardinality(in_tickets) THEN
        blocked_queue_ids := '{}';
        free_queue_ids := '{}';
        RETURN;
    END IF;
    SELECT a.* INTO admitted, granted, more_queue_ids, blocked_queue_ids, free_queue_ids
    FROM turnstile.admit(
        in_action_refs, in_parameters, in_concurrency_keys, in_idempotency_keys, in_request_ids,
        in_request_hashes, in_run_ats, in_timeout_seconds, in_ttl_seconds, in_callback_urls, in_metadata,
        in_traceparents,
        in_wait_ms => in_wait_ms, in_suspect_ids => in_suspect_ids, in_priorities => in_priorities) a;
    WITH accepted AS MATERIALIZED (
        SELECT r.ticket, r.request_id, r.execution_id, r.duplicate
        FROM ROWS FROM (unnest(in_tickets), unnest(in_request_ids), unnest(admitted))
             AS r (ticket, request_id, code, detail, execution_id, status, queue_position, duplicate)
        WHERE r.code IS NULL
    ),
    listed AS (
        DELETE FROM submission_line l USING accepted a WHERE l.ticket = ANY (ARRAY[a.ticket])
    ),
    gone AS (
        DELETE FROM submission s USING accepted a WHERE s.request_id = ANY (ARRAY[a.request_id])
    )
    -- The execution itself has the id of its request.
    INSERT INTO submission_outcome (request_id, execution_id, decided_at)
    SELECT a.request_id, a.execution_id, clock_timestamp() FROM accepted a WHERE a.duplicate
    ON CONFLICT DO NOTHING;
END
$$;

-- reject_submissions: deletes submissions that cannot be admitted; keeps the reason, and a dead letter for
-- each. What was too large is cut to 64 KiB, like every dead letter that no message could carry.
CREATE FUNCTION turnstile.reject_submissions(in_tickets bigint[], in_codes text[], in_messages text[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
BEGIN
    WITH listed AS MATERIALIZED (
        SELECT l.ticket, l.request_id, r.code, r.message
        FROM unnest(in_tickets, in_codes, in_messages) r(ticket, code, message)
        JOIN submission_line l ON l.ticket = ANY (ARRAY[r.ticket])
        ORDER BY l.ticket FOR UPDATE OF l
    ),
    out_of_line AS (
        DELETE FROM submission_line l USING listed n WHERE l.ticket = ANY (ARRAY[n.ticket])
    ),
    gone AS (
        DELETE FROM submission s USING listed n WHERE s.request_id = ANY (ARRAY[n.request_id])
        RETURNING s.*, n.code, n.message, n.ticket
    ),
    outcome AS (
        INSERT INTO submission_outcome (request_id, code, message, decided_at)
        SELECT g.request_id, g.code, g.message, clock_timestamp() FROM gone g
        ON CONFLICT DO NOTHING
    )
    INSERT INTO dead_letter (
        fingerprint, code, error, type, message_id, app_id, content_type, exchange, routing_key,
        original_routing_key, tries, published_at, died_at, stored_at, headers, body, body_bytes, stored_bytes
    )
    SELECT replace(g.request_id::text, '-', ''), g.code, left(g.message, 1000), 'execution.requested',
           g.request_id::text,
           'database', 'application/json', 'executions', 'execution.requested', 'execution.requested', 0,
           g.submitted_at,
           clock_timestamp(), clock_timestamp(),
           jsonb_strip_nulls(jsonb_build_object('schema_version', 1, 'traceparent', g.traceparent)),
           k.body, octet_length(b.body), octet_length(k.body) + 512
    FROM gone g
    CROSS JOIN LATERAL (SELECT convert_to(g.request::text, 'UTF8')) b(body)
    CROSS JOIN LATERAL (SELECT CASE g.code WHEN 'too_large' THEN substr(b.body, 1, 65536)
                                    ELSE b.body END) k(body)
    ORDER BY g.ticket
    ON CONFLICT (fingerprint) DO NOTHING;
END
$$;

-- submission: what became of a request: pending, admitted or rejected; no row for an unknown one. A rejection
-- has its code and message. Outcomes are kept for a week, and executions as long as retention says.
CREATE FUNCTION turnstile.submission(
    in_request_id uuid, OUT status text, OUT execution_id bigint, OUT code text, OUT message text
)
RETURNS SETOF record
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
:settings_for_index_lookups
AS $$
BEGIN
    RETURN QUERY
    SELECT n.status, n.execution_id, n.code, n.message
    FROM (
        SELECT 1, 'pending', NULL::bigint, NULL::text, NULL::text FROM public.submission s
        WHERE s.request_id = in_request_id
        UNION ALL
        SELECT 2, CASE WHEN o.code IS NULL THEN 'admitted' ELSE 'rejected' END, o.execution_id, o.code,
               o.message
        FROM public.submission_outcome o WHERE o.request_id = in_request_id
        UNION ALL
        SELECT 3, 'admitted', e.id, NULL, NULL FROM public.execution e WHERE e.delivery_key = in_request_id
    ) n(rank, status, execution_id, code, message)
    ORDER BY n.rank LIMIT 1;
END
$$;

-- prune_submission_outcomes: deletes outcomes that are older than this; returns how many.
CREATE FUNCTION turnstile.prune_submission_outcomes(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    deleted integer;
BEGIN
    DELETE FROM submission_outcome o
    WHERE o.request_id = ANY (ARRAY(
        SELECT p.request_id FROM submission_outcome p
        WHERE p.decided_at < clock_timestamp() - make_interval(secs => in_keep_seconds)
        ORDER BY p.decided_at LIMIT in_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
