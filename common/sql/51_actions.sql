-- Action definitions. `in_definitions` is a JSON array of objects with the columns of `action` as keys.

-- written: columns as the fields that users write.
CREATE FUNCTION turnstile.written(in_columns jsonb)
RETURNS jsonb
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT jsonb_object_agg(
        CASE f.name WHEN 'fair' THEN 'order'
                    ELSE regexp_replace(regexp_replace(f.name, '^(retry|rate)_', '\1.'), '_seconds$', '') END,
        CASE f.name || ' ' || f.value::text WHEN 'fair true' THEN '"fair"' WHEN 'fair false' THEN '"arrival"'
                    ELSE f.value END)
    FROM jsonb_each(in_columns) f(name, value)
$$;

-- definition_of: an action as a flat definition, for comparing and for the log of changes.
CREATE FUNCTION turnstile.definition_of(in_action action)
RETURNS jsonb
LANGUAGE sql
STABLE
:settings
AS $$
    SELECT turnstile.written(to_jsonb(in_action) - ARRAY[
        'id', 'ref', 'concurrency_key_path', 'route', 'route_units', 'created_at', 'updated_at', 'deleted_at',
        'rollout_from_key', 'rollout_held_ids', 'pool_id', 'served'])
$$;

-- change_between: what changed between two definitions; `change` is null if nothing did. `{}` means that
-- there is none: before the creation, after the deletion.
CREATE FUNCTION turnstile.change_between(
    in_old jsonb, in_new jsonb, OUT change text, OUT old jsonb, OUT new jsonb
)
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN d.fields IS NULL THEN NULL
                WHEN in_old = '{}' THEN 'created'
                WHEN in_new = '{}' THEN 'deleted'
                WHEN d.fields <@ '{max_concurrent,max_concurrent_total,capacity}' THEN 'limit_changed'
                WHEN d.fields = '{paused}' AND in_new -> 'paused' = 'true' THEN 'paused'
                WHEN d.fields = '{paused}' THEN 'resumed'
                ELSE 'changed' END,
           d.old, d.new
    FROM (
        SELECT array_agg(f.name) AS fields,
               coalesce(jsonb_object_agg(f.name, in_old -> f.name) FILTER (WHERE in_old ? f.name),
                        '{}') AS old,
               coalesce(jsonb_object_agg(f.name, in_new -> f.name) FILTER (WHERE in_new ? f.name),
                        '{}') AS new
        FROM jsonb_object_keys(in_old || in_new) f(name)
        WHERE in_old -> f.name IS DISTINCT FROM in_new -> f.name
    ) d
$$;

-- record_change: logs how an action or a resource was changed, in the transaction of the change.
CREATE FUNCTION turnstile.record_change(in_kind text, in_name text, in_old jsonb, in_new jsonb)
RETURNS void
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.log_operations(c.change, in_kind, ARRAY[in_name],
                                    ARRAY[CASE in_kind WHEN 'action' THEN in_name END],
                                    ARRAY[c.old], ARRAY[c.new])
    FROM turnstile.change_between(in_old, in_new) c
    WHERE c.change IS NOT NULL
$$;

-- queue_rule: the limit and the pause that each queue has to have: those of its action, or the limit of its
-- key.
CREATE VIEW turnstile.queue_rule AS
SELECT q.id AS queue_id, q.action_id,
       CASE WHEN k.has_limit THEN k.max_concurrent ELSE a.max_concurrent END AS max_concurrent, a.paused
FROM public.action_queue q
JOIN public.action a ON a.id = ANY (ARRAY[q.action_id])
LEFT JOIN public.key_override k
       ON k.action_id = ANY (ARRAY[q.action_id]) AND k.concurrency_key = ANY (ARRAY[q.concurrency_key]);

-- refuse_definition: raises an error whose message is written for users. The services show it as it is.
CREATE FUNCTION turnstile.refuse_definition(in_message text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'definition_refused',
        MESSAGE = in_message;
END
$$;

-- same_rank: two of these resources with the same rank, as a sentence; null if there are none.
CREATE FUNCTION turnstile.same_rank(in_uses jsonb)
RETURNS text
LANGUAGE sql
STABLE
AS $$
    SELECT format('the resources %L and %L have the same rank %s; give one of them another rank: executor'
                  ' resources put %s --rank NUMBER', min(g.name), max(g.name), g.rank, max(g.name))
    FROM jsonb_array_elements(in_uses) u(use)
    JOIN public.gate g ON g.kind = 'resource' AND g.name = u.use ->> 'resource'
    GROUP BY g.rank HAVING g.rank IS NOT NULL AND count(*) > 1
    ORDER BY g.rank LIMIT 1
$$;

-- check_uses: refuses the uses of an action that no resources fit. `in_known` are its uses before: what has
-- been accepted stays, so an action can be changed while a capacity is too low for it.
CREATE FUNCTION turnstile.check_uses(in_ref text, in_uses jsonb, in_known jsonb)
RETURNS void
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    problem text;
BEGIN
    -- A deletion waits for this transaction; grants do not.
    PERFORM 1 FROM gate g
    WHERE g.kind = 'resource'
      AND g.name IN (SELECT u.use ->> 'resource' FROM jsonb_array_elements(in_uses) u(use))
    ORDER BY g.id FOR KEY SHARE;
    SELECT CASE WHEN g.id IS NULL THEN
                    format('there is no resource %L; create it: executor resources put %s --capacity NUMBER,'
                           ' or name it under resources: in the file that you apply', n.name, n.name)
                WHEN n.units > g.capacity THEN
                    format('%s units are more than the capacity %s of %L; take fewer, or raise it: executor'
                           ' resources put %s --capacity %s', n.units, g.capacity, n.name, n.name, n.units)
           END INTO problem
    FROM jsonb_array_elements(in_uses) u(use)
    CROSS JOIN LATERAL (SELECT u.use ->> 'resource' AS name, (u.use ->> 'units')::integer AS units) n
    LEFT JOIN gate g ON g.kind = 'resource' AND g.name = n.name
    WHERE NOT in_known @> jsonb_build_array(u.use) AND (g.id IS NULL OR n.units > g.capacity)
    ORDER BY n.name LIMIT 1;
    problem := coalesce(problem, turnstile.same_rank(in_uses));
    IF problem IS NOT NULL THEN
        PERFORM turnstile.refuse_definition(format('action %L: uses: %s', in_ref, problem));
    END IF;
END
$$;

-- routing_of: what decides which gates the executions of an action pass, in a definition; null if they pass
-- none.
CREATE FUNCTION turnstile.routing_of(in_definition jsonb)
RETURNS jsonb
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN coalesce(in_definition -> 'uses', '[]') <> '[]'
                  OR coalesce(in_definition -> 'max_concurrent_total', 'null') <> 'null'
                  OR coalesce(in_definition -> 'rate.starts', 'null') <> 'null' THEN
        jsonb_build_array(in_definition -> 'uses', in_definition -> 'max_concurrent_total',
                          in_definition -> 'order',
                          in_definition -> 'rate.starts', in_definition -> 'rate.per',
                          in_definition -> 'pool') END
$$;

-- first_queues: the queues of these actions, in the order in which they are rolled out.
CREATE FUNCTION turnstile.first_queues(in_action_ids bigint[], in_limit integer)
RETURNS bigint[]
LANGUAGE sql
STABLE
AS $$
    SELECT ARRAY(
        SELECT n.id FROM unnest(in_action_ids) WITH ORDINALITY a(id, rank)
        CROSS JOIN LATERAL (
            SELECT q.id, q.concurrency_key AS key FROM public.action_queue q
            WHERE q.action_id = a.id ORDER BY q.action_id, q.concurrency_key LIMIT in_limit
        ) n
        ORDER BY a.rank, n.key LIMIT in_limit)
$$;

-- with_unsent_fields: these definitions, with the stored values of the fields that a service of an earlier
-- version does not know.
CREATE FUNCTION turnstile.with_unsent_fields(in_definitions jsonb)
RETURNS jsonb
LANGUAGE sql
STABLE
:settings
AS $$
    SELECT jsonb_agg(jsonb_build_object(
               'submitter_keys', coalesce(a.submitter_keys, false), 'max_concurrent_total',
               a.max_concurrent_total,
               'fair', coalesce(a.fair, false), 'rate_starts', a.rate_starts, 'rate_per_seconds',
               a.rate_per_seconds,
               'uses', coalesce(a.uses, '[]'), 'priority_min', coalesce(a.priority_min, 1),
               'parameters_schema', a.parameters_schema, 'result_schema', a.result_schema) || d.definition)
    FROM jsonb_array_elements(in_definitions) d(definition)
    LEFT JOIN action a ON a.ref = d.definition ->> 'ref' AND a.deleted_at IS NULL
$$;

-- store_actions: stores these definitions, all of them or only the missing ones. Returns the ids of the
-- stored actions.
--
-- `roll_out` then copies limit and pause to their queues. The creation of a queue waits for the action's row
-- (see admit), so no queue keeps an old limit. A new action is inserted as deleted first: so there is always
-- a row to lock, and a deleted action is restored in the same way.
CREATE FUNCTION turnstile.store_actions(in_definitions jsonb, in_missing_only boolean)
RETURNS bigint[]
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    changed record;
    changed_ids bigint[] := '{}';
    rerouted_ids bigint[] := '{}';
    stored_ids bigint[];
    stored_at timestamptz;
    definitions jsonb;
    lock_timeout text := current_setting('lock_timeout');
BEGIN
    INSERT INTO action (ref, deleted_at)
    SELECT d.ref, clock_timestamp() FROM jsonb_populate_recordset(NULL::action, in_definitions) d
    ORDER BY d.ref
    ON CONFLICT (ref) DO NOTHING;
    PERFORM 1 FROM action a
    WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d)
      AND (a.deleted_at IS NOT NULL OR NOT in_missing_only)
    ORDER BY a.id FOR NO KEY UPDATE;

    definitions := turnstile.with_unsent_fields(in_definitions);
    -- One instant for both columns: an action with equal instants was never changed, and the audit checks it
    -- from its first grant.
    stored_at := clock_timestamp();
    FOR changed IN
        UPDATE action a SET
            runner = d.runner, entrypoint = d.entrypoint, max_concurrent = d.max_concurrent,
            concurrency_key = d.concurrency_key, concurrency_key_path = d.concurrency_key_path,
            submitter_keys = d.submitter_keys, max_concurrent_total = d.max_concurrent_total, fair = d.fair,
            rate_starts = d.rate_starts, rate_per_seconds = d.rate_per_seconds, uses = d.uses,
            priority_min = d.priority_min,
            parameters_schema = d.parameters_schema, result_schema = d.result_schema,
            timeout_seconds = d.timeout_seconds, ttl_seconds = d.ttl_seconds,
            retry_max_attempts = d.retry_max_attempts, retry_delay_seconds = d.retry_delay_seconds,
            retry_factor = d.retry_factor, retry_max_delay_seconds = d.retry_max_delay_seconds,
            retry_jitter = d.retry_jitter, on_worker_lost = d.on_worker_lost, max_reclaims = d.max_reclaims,
            pool = d.pool, when_full = d.when_full, max_queued = d.max_queued, paused = d.paused,
            callback_url = d.callback_url, keep_for_seconds = d.keep_for_seconds, keep_count = d.keep_count,
            created_at = CASE WHEN b.deleted_at IS NULL THEN b.created_at ELSE stored_at END,
            updated_at = stored_at, deleted_at = NULL
        FROM jsonb_populate_recordset(NULL::action, definitions) d
        JOIN action b ON b.ref = d.ref
        WHERE a.id = b.id AND (
            b.deleted_at IS NOT NULL
            OR NOT in_missing_only AND turnstile.definition_of(b) <> turnstile.definition_of(d)
        )
        RETURNING a.id, a.ref, turnstile.definition_of(a) AS new,
                  CASE WHEN b.deleted_at IS NULL THEN turnstile.definition_of(b) ELSE '{}' END AS old
    LOOP
        -- An earlier version does not send a total, and may take away the keys that it counts.
        IF changed.new -> 'max_concurrent_total' <> 'null' AND changed.new -> 'concurrency_key' = 'null'
           AND changed.new -> 'submitter_keys' = 'false' THEN
            PERFORM turnstile.refuse_definition(format(
                'action %L: max_concurrent_total: an action without concurrency keys has one queue, which'
                ' max_concurrent limits; set concurrency_key, or set max_concurrent instead', changed.ref));
        END IF;
        IF changed.new -> 'uses' IS DISTINCT FROM coalesce(changed.old -> 'uses', '[]') THEN
            PERFORM turnstile.check_uses(changed.ref, changed.new -> 'uses',
                                         coalesce(changed.old -> 'uses', '[]'));
        END IF;
        PERFORM turnstile.record_change('action', changed.ref, changed.old, changed.new);
        changed_ids := changed_ids || changed.id;
        IF turnstile.routing_of(changed.old) IS DISTINCT FROM turnstile.routing_of(changed.new) THEN
            rerouted_ids := rerouted_ids || changed.id;
        END IF;
    END LOOP;
    -- Storing a definition again rolls it out again, changed or not.
    stored_ids := CASE WHEN in_missing_only THEN changed_ids ELSE ARRAY(
        SELECT a.id FROM action a
        WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d)
        ORDER BY a.id
    ) END;
    -- Queues before gates: all that `put_actions` rolls out to, before the first gate.
    PERFORM turnstile.lock_available_queues(turnstile.first_queues(stored_ids, 1000), 2000);
    PERFORM set_config('lock_timeout', lock_timeout, true);
    IF cardinality(rerouted_ids) > 0 THEN
        PERFORM turnstile.reroute(rerouted_ids);
    END IF;
    IF cardinality(changed_ids) > 0 THEN
        PERFORM turnstile.assign_pools(changed_ids);
    END IF;
    UPDATE action a SET rollout_from_key = '', rollout_held_ids = NULL
    WHERE a.id = ANY (stored_ids) AND EXISTS (SELECT FROM action_queue q WHERE q.action_id = a.id);
    RETURN stored_ids;
END
$$;

-- roll_out: copies limit and pause of an action to its next queues, at most `in_limit` in the order of their
-- keys, and grants. A queue that another session holds for longer than `in_wait_ms` is skipped and repeated
-- at the end. 0: the caller may have locked gates, and has locked the queues that are free; the others are
-- only tried.
--
-- One transaction is one slice: a million queues are not locked together (P9), and if the caller dies between
-- two slices, the watchdog does the rest. `looked_at`: number of queues of this slice. `changed`: number of
-- those that had other values.
CREATE FUNCTION turnstile.roll_out(
    in_action_id bigint,
    in_limit integer,
    in_wait_ms integer DEFAULT 250,
    OUT looked_at integer,
    OUT changed integer,
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    rolled record;
    queue_ids bigint[];
    unavailable_ids bigint[];
    changes turnstile.queue_change[];
    closes boolean;
    next_key text;
BEGIN
    looked_at := 0;
    changed := 0;
    SELECT a.rollout_from_key, a.rollout_held_ids INTO rolled
    FROM action a
    WHERE a.id = in_action_id AND (a.rollout_from_key IS NOT NULL OR a.rollout_held_ids IS NOT NULL)
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF rolled.rollout_from_key IS NULL THEN
        queue_ids := rolled.rollout_held_ids;
    ELSE
        SELECT array_agg(s.id) FILTER (WHERE s.rank <= in_limit), max(s.key) FILTER (WHERE s.rank > in_limit)
        INTO queue_ids, next_key
        FROM (
            SELECT q.id, q.concurrency_key AS key, row_number() OVER (ORDER BY q.concurrency_key) AS rank
            FROM action_queue q
            WHERE q.action_id = in_action_id AND q.concurrency_key >= rolled.rollout_from_key
            ORDER BY q.action_id, q.concurrency_key LIMIT in_limit + 1
        ) s;
    END IF;
    looked_at := coalesce(cardinality(queue_ids), 0);

    unavailable_ids := CASE WHEN in_wait_ms = 0 THEN turnstile.lock_queues(queue_ids, 2000, NULL)
                            ELSE turnstile.lock_available_queues(queue_ids, in_wait_ms) END;
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (unavailable_ids));
    WITH adapted AS (
        UPDATE action_queue q
        SET max_concurrent = r.max_concurrent, paused = r.paused
        FROM turnstile.queue_rule r
        WHERE q.id = ANY (queue_ids) AND r.queue_id = ANY (ARRAY[q.id])
          AND (q.max_concurrent IS DISTINCT FROM r.max_concurrent OR q.paused <> r.paused)
        RETURNING q.id, q.paused OR coalesce(q.max_concurrent = 0, false) AS is_closed
    )
    SELECT array_agg(ROW(a.id, 0, 0, NULL, 0, 0, NULL)::turnstile.queue_change), bool_or(a.is_closed)
    INTO changes, closes FROM adapted a;
    changed := coalesce(cardinality(changes), 0);
    -- From a closed queue nothing may wait at a later gate (see has_to_return).
    IF closes THEN
        PERFORM turnstile.close_routes(queue_ids);
    END IF;
    IF rolled.rollout_from_key IS NOT NULL THEN
        -- Above this bound `repair_queues` corrects the rest.
        unavailable_ids := (coalesce(rolled.rollout_held_ids, '{}') || unavailable_ids)[1:1000];
    END IF;
    UPDATE action a SET rollout_from_key = next_key, rollout_held_ids = nullif(unavailable_ids, '{}')
    WHERE a.id = in_action_id;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids
    FROM turnstile.grant_locked(queue_ids, coalesce(changes, '{}')) g;
END
$$;

-- rollouts_due: the actions with queues that do not have their limit and pause yet.
CREATE FUNCTION turnstile.rollouts_due(in_limit integer)
RETURNS SETOF bigint
LANGUAGE sql
:settings
AS $$
    SELECT a.id FROM action a WHERE a.rollout_from_key IS NOT NULL OR a.rollout_held_ids IS NOT NULL
    ORDER BY a.id LIMIT in_limit
$$;

-- is_uses: whether a value is a list of uses as it is stored: objects of three fields, by the name of the
-- resource.
CREATE FUNCTION turnstile.is_uses(in_uses jsonb)
RETURNS boolean
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN jsonb_typeof(in_uses) <> 'array' OR jsonb_array_length(in_uses) > 20 THEN false
                WHEN EXISTS (SELECT FROM jsonb_array_elements(in_uses) u(use)
                             WHERE jsonb_typeof(u.use) <> 'object')
                THEN false
                ELSE (
        SELECT count(*) FILTER (WHERE NOT coalesce(
                   u.use - 'resource' - 'units' - 'weight' = '{}'
                   AND jsonb_typeof(u.use -> 'resource') = 'string'
                   AND u.use ->> 'resource' ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$'
                   AND jsonb_typeof(u.use -> 'units') = 'number' AND u.use ->> 'units' ~ '^[0-9]{1,7}$'
                   AND (u.use -> 'units')::numeric BETWEEN 1 AND 1000000
                   AND jsonb_typeof(u.use -> 'weight') = 'number' AND u.use ->> 'weight' ~ '^[0-9]{1,2}$'
                   AND (u.use -> 'weight')::numeric BETWEEN 1 AND 16, false)) = 0
               AND count(DISTINCT u.use ->> 'resource') = count(*)
               AND coalesce(array_agg(u.use ->> 'resource' ORDER BY u.rank)
                            = array_agg(u.use ->> 'resource' ORDER BY u.use ->> 'resource' COLLATE "C"), true)
        FROM jsonb_array_elements(in_uses) WITH ORDINALITY u(use, rank)
    ) END
$$;

-- invalid_fields: the fields of declared definitions that no definition can have. A worker's account calls
-- the function itself, so values that services and clients could not read must be refused here. The rules
-- equal those of `common.action_definition`.
CREATE FUNCTION turnstile.invalid_fields(in_definitions jsonb)
RETURNS TABLE (ref text, field text)
LANGUAGE sql
IMMUTABLE
:settings
AS $$
    SELECT d.ref, c.field
    FROM jsonb_populate_recordset(NULL::action, in_definitions) d
    CROSS JOIN LATERAL (VALUES
        ('ref', d.ref ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$'),
        ('entrypoint', CASE
            WHEN jsonb_typeof(d.entrypoint) = 'array' THEN
                d.runner = 'command' AND d.entrypoint <> '[]'
                AND NOT EXISTS (
                    SELECT FROM jsonb_array_elements(d.entrypoint) w WHERE jsonb_typeof(w.value) <> 'string')
            WHEN d.entrypoint IS NULL THEN d.runner = 'python'
            WHEN d.runner = 'http'
                THEN jsonb_typeof(d.entrypoint) = 'string' AND d.entrypoint #>> '{}' ~ '^https?://'
            ELSE d.runner = 'python' AND jsonb_typeof(d.entrypoint) = 'string' END),
        ('max_concurrent', d.max_concurrent <= 1000000),
        ('concurrency_key', (d.concurrency_key IS NULL) = (d.concurrency_key_path IS NULL)),
        ('concurrency_key', d.concurrency_key ~ '^(/([^~/]|~0|~1)*)+$'),
        ('concurrency_key', d.concurrency_key_path = ARRAY(
            SELECT replace(replace(s.step, '~1', '/'), '~0', '~')
            FROM regexp_split_to_table(substr(d.concurrency_key, 2), '/') WITH ORDINALITY s(step, rank)
            ORDER BY s.rank)),
        ('max_concurrent_total', d.max_concurrent_total <= 1000000),
        ('order', d.fair <> true OR d.max_concurrent_total IS NOT NULL),
        ('rate', coalesce(d.rate_starts BETWEEN 1 AND 100000 AND d.rate_per_seconds BETWEEN 0.001 AND 86400,
                          d.rate_starts IS NULL AND d.rate_per_seconds IS NULL)),
        ('uses', turnstile.is_uses(coalesce(d.uses, '[]'))),
        ('priority_min', d.priority_min BETWEEN 1 AND 5),
        ('timeout', d.timeout_seconds BETWEEN 0 AND 316224000),
        ('ttl', d.ttl_seconds BETWEEN 0 AND 316224000),
        ('keep_for', d.keep_for_seconds BETWEEN 0 AND 316224000),
        ('keep_count', d.keep_count <= 1000000000),
        ('retry.max_attempts', d.retry_max_attempts <= 1000),
        ('retry.delay', d.retry_delay_seconds BETWEEN 0 AND 316224000),
        ('retry.factor', d.retry_factor BETWEEN 1 AND 100),
        ('retry.max_delay', d.retry_max_delay_seconds BETWEEN 0 AND 316224000),
        ('retry.jitter', d.retry_jitter BETWEEN 0 AND 1),
        ('max_reclaims', d.max_reclaims <= 1000),
        ('pool', d.pool ~ '^[A-Za-z0-9_-]{1,64}$' AND d.pool <> 'retry'),
        ('max_queued', d.max_queued <= 1000000000),
        ('callback_url', d.callback_url ~* '^https?://[^[:space:]/?#@]+([/?#][^[:space:]]*)?$'
                         AND length(d.callback_url) <= 2048),
        -- Only an operator gives one; a worker registers what it derives from its code (see store_schemas).
        ('parameters_schema', d.parameters_schema IS NULL),
        ('result_schema', d.result_schema IS NULL)
    ) c(field, fits)
    WHERE NOT c.fits
$$;

-- register_actions: stores what is missing and changes nothing that exists: the limit in the database wins
-- over the declared one. Returns the stored definitions.
CREATE FUNCTION turnstile.register_actions(in_definitions jsonb)
RETURNS SETOF action
LANGUAGE plpgsql
SECURITY DEFINER
:settings
AS $$
DECLARE
    invalid record;
BEGIN
    SELECT * INTO invalid FROM turnstile.invalid_fields(in_definitions) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'action %: invalid value in %', left(invalid.ref, 200), invalid.field
            USING ERRCODE = 'check_violation';
    END IF;
    PERFORM turnstile.note_caller('{"name": "worker", "channel": "worker"}');
    -- A restored action has queues, all empty, with an old limit.
    PERFORM turnstile.roll_out(s.id, 1000) FROM unnest(turnstile.store_actions(in_definitions, true)) s(id);
    RETURN QUERY
    SELECT a.* FROM action a
    WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d);
END
$$;

-- put_actions: stores these definitions. A changed limit or pause takes effect at once on the first 1,000
-- queues; the watchdog rolls it out to the others.
CREATE FUNCTION turnstile.put_actions(
    in_definitions jsonb,
    in_changed_by text DEFAULT NULL,
    in_caller jsonb DEFAULT NULL,
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    stored_id bigint;
    slice record;
    rows_left integer := 1000;
BEGIN
    PERFORM turnstile.note_caller(in_caller, in_changed_by);
    FOREACH stored_id IN ARRAY turnstile.store_actions(in_definitions, false) LOOP
        SELECT * INTO slice FROM turnstile.roll_out(stored_id, rows_left, 0);
        granted := granted || slice.granted;
        more_queue_ids := more_queue_ids || slice.more_queue_ids;
        rows_left := rows_left - slice.looked_at;
        EXIT WHEN rows_left <= 0;
    END LOOP;
END
$$;
