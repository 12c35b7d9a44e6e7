-- Action definitions. `in_definitions` is a JSON array of objects with the columns of `action` as keys.

-- definition_of: an action as a flat definition, for comparing and for the log of changes.
CREATE FUNCTION turnstile.definition_of(in_action action)
RETURNS jsonb
LANGUAGE sql
STABLE
:settings
AS $$
    SELECT jsonb_object_agg(
        regexp_replace(regexp_replace(f.column_name, '^retry_', 'retry.'), '_seconds$', ''), f.value)
    FROM jsonb_each(to_jsonb(in_action)) f(column_name, value)
    WHERE f.column_name NOT IN ('id', 'ref', 'concurrency_key_path', 'created_at', 'updated_at', 'deleted_at',
                                'rollout_from_key', 'rollout_held_ids')
$$;

-- record_change: logs who changed an action and how, in the transaction of the change. `{}` means that the action
-- does not exist: before its creation, after its deletion.
CREATE FUNCTION turnstile.record_change(in_action_ref text, in_old jsonb, in_new jsonb, in_changed_by text)
RETURNS void
LANGUAGE sql
:settings
AS $$
    INSERT INTO action_change (action_ref, changed_at, changed_by, change, old, new)
    SELECT in_action_ref, clock_timestamp(), in_changed_by,
           CASE WHEN in_old = '{}' THEN 'created'
                WHEN in_new = '{}' THEN 'deleted'
                WHEN d.fields = '{max_concurrent}' THEN 'limit_changed'
                WHEN d.fields = '{paused}' AND in_new -> 'paused' = 'true' THEN 'paused'
                WHEN d.fields = '{paused}' THEN 'resumed'
                ELSE 'changed' END,
           d.old, d.new
    FROM (
        SELECT array_agg(f.name) AS fields,
               coalesce(jsonb_object_agg(f.name, in_old -> f.name) FILTER (WHERE in_old ? f.name), '{}') AS old,
               coalesce(jsonb_object_agg(f.name, in_new -> f.name) FILTER (WHERE in_new ? f.name), '{}') AS new
        FROM jsonb_object_keys(in_old || in_new) f(name)
        WHERE in_old -> f.name IS DISTINCT FROM in_new -> f.name
    ) d
    WHERE d.fields IS NOT NULL
$$;

-- store_actions: stores these definitions, all of them or only the missing ones. Returns the ids of the stored
-- actions.
--
-- `roll_out` then copies limit and pause to their queues. The creation of a queue waits for the action's row (see
-- admit), so no queue keeps an old limit. A new action is inserted as deleted first: so there is always a row to
-- lock, and a deleted action is restored in the same way.
CREATE FUNCTION turnstile.store_actions(in_definitions jsonb, in_missing_only boolean, in_changed_by text)
RETURNS bigint[]
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    changed record;
    changed_ids bigint[] := '{}';
    stored_ids bigint[];
    stored_at timestamptz;
    definitions jsonb;
BEGIN
    INSERT INTO action (ref, deleted_at)
    SELECT d.ref, clock_timestamp() FROM jsonb_populate_recordset(NULL::action, in_definitions) d
    ORDER BY d.ref
    ON CONFLICT (ref) DO NOTHING;
    PERFORM 1 FROM action a
    WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d)
      AND (a.deleted_at IS NOT NULL OR NOT in_missing_only)
    ORDER BY a.id FOR NO KEY UPDATE;

    -- A service of an earlier version does not know these fields: they stay unchanged.
    SELECT jsonb_agg(jsonb_build_object('submitter_keys', coalesce(a.submitter_keys, false)) || d.definition)
    INTO definitions
    FROM jsonb_array_elements(in_definitions) d(definition)
    LEFT JOIN action a ON a.ref = d.definition ->> 'ref' AND a.deleted_at IS NULL;

    -- One instant for both columns: an action with equal instants was never changed, and the audit checks it from its
    -- first grant.
    stored_at := clock_timestamp();
    FOR changed IN
        UPDATE action a SET
            runner = d.runner, entrypoint = d.entrypoint, max_concurrent = d.max_concurrent,
            concurrency_key = d.concurrency_key, concurrency_key_path = d.concurrency_key_path,
            submitter_keys = d.submitter_keys,
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
        PERFORM turnstile.record_change(changed.ref, changed.old, changed.new, in_changed_by);
        changed_ids := changed_ids || changed.id;
    END LOOP;

    -- Storing a definition again rolls it out again, changed or not.
    stored_ids := CASE WHEN in_missing_only THEN changed_ids ELSE ARRAY(
        SELECT a.id FROM action a
        WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d)
    ) END;
    UPDATE action a SET rollout_from_key = '', rollout_held_ids = NULL
    WHERE a.id = ANY (stored_ids) AND EXISTS (SELECT FROM action_queue q WHERE q.action_id = a.id);
    RETURN stored_ids;
END
$$;

-- roll_out: copies limit and pause of an action to its next queues, at most `in_limit` in the order of their keys,
-- and grants. A queue that another session holds for longer than `in_wait_ms` is skipped and repeated at the end.
--
-- One transaction is one slice: a million queues are not locked together (P9), and if the caller dies between two
-- slices, the watchdog does the rest. `looked_at`: number of queues of this slice. `changed`: number of those that
-- had other values.
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
    next_key text;
BEGIN
    looked_at := 0;
    changed := 0;
    SELECT a.id, a.max_concurrent, a.paused, a.rollout_from_key, a.rollout_held_ids INTO rolled
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

    unavailable_ids := turnstile.lock_available_queues(queue_ids, in_wait_ms);
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (unavailable_ids));
    WITH adapted AS (
        UPDATE action_queue q
        SET max_concurrent = rolled.max_concurrent, paused = rolled.paused
        WHERE q.id = ANY (queue_ids)
          AND (q.max_concurrent IS DISTINCT FROM rolled.max_concurrent OR q.paused <> rolled.paused)
        RETURNING q.id
    )
    SELECT array_agg(ROW(a.id, 0, 0, NULL, 0, 0, NULL)::turnstile.queue_change) INTO changes FROM adapted a;
    changed := coalesce(cardinality(changes), 0);
    IF rolled.rollout_from_key IS NOT NULL THEN
        -- Above this bound `repair_queues` corrects the rest.
        unavailable_ids := (coalesce(rolled.rollout_held_ids, '{}') || unavailable_ids)[1:1000];
    END IF;
    UPDATE action a SET rollout_from_key = next_key, rollout_held_ids = nullif(unavailable_ids, '{}')
    WHERE a.id = in_action_id;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids FROM turnstile.grant_locked(queue_ids, coalesce(changes, '{}')) g;
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

-- invalid_fields: the fields of declared definitions that no definition can have. A worker's account calls the
-- function itself, so values that services and clients could not read must be refused here. The rules equal those of
-- `common.action_definition`.
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
            WHEN d.runner = 'http' THEN jsonb_typeof(d.entrypoint) = 'string' AND d.entrypoint #>> '{}' ~ '^https?://'
            ELSE d.runner = 'python' AND jsonb_typeof(d.entrypoint) = 'string' END),
        ('max_concurrent', d.max_concurrent <= 1000000),
        ('concurrency_key', (d.concurrency_key IS NULL) = (d.concurrency_key_path IS NULL)),
        ('concurrency_key', d.concurrency_key ~ '^(/([^~/]|~0|~1)*)+$'),
        ('concurrency_key', d.concurrency_key_path = ARRAY(
            SELECT replace(replace(s.step, '~1', '/'), '~0', '~')
            FROM regexp_split_to_table(substr(d.concurrency_key, 2), '/') WITH ORDINALITY s(step, rank)
            ORDER BY s.rank)),
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
                         AND length(d.callback_url) <= 2048)
    ) c(field, fits)
    WHERE NOT c.fits
$$;

-- register_actions: stores what is missing and changes nothing that exists: the limit in the database wins over the
-- declared one. Returns the stored definitions.
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
    -- A restored action has queues, all empty, with an old limit.
    PERFORM turnstile.roll_out(s.id, 1000) FROM unnest(turnstile.store_actions(in_definitions, true, 'worker')) s(id);
    RETURN QUERY
    SELECT a.* FROM action a
    WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d);
END
$$;

-- put_actions: stores these definitions. A changed limit or pause takes effect at once on the first 1,000 queues; the
-- watchdog rolls it out to the others.
CREATE FUNCTION turnstile.put_actions(
    in_definitions jsonb,
    in_changed_by text DEFAULT NULL,
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
    FOREACH stored_id IN ARRAY turnstile.store_actions(in_definitions, false, in_changed_by) LOOP
        SELECT * INTO slice FROM turnstile.roll_out(stored_id, rows_left, 2000);
        granted := granted || slice.granted;
        more_queue_ids := more_queue_ids || slice.more_queue_ids;
        rows_left := rows_left - slice.looked_at;
        EXIT WHEN rows_left <= 0;
    END LOOP;
END
$$;
