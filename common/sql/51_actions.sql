-- Definitions. `in_definitions` is a JSON array of objects with the columns of `action` as keys.

-- definition_of: an action as its definition is written, flat: the record of changes compares and keeps these.
CREATE FUNCTION turnstile.definition_of(in_action action)
RETURNS jsonb
LANGUAGE sql
STABLE
SET search_path = public, pg_temp
AS $$
    SELECT jsonb_object_agg(
        regexp_replace(regexp_replace(f.column_name, '^retry_', 'retry.'), '_seconds$', ''), f.value)
    FROM jsonb_each(to_jsonb(in_action)) f(column_name, value)
    WHERE f.column_name NOT IN ('id', 'ref', 'concurrency_key_path', 'created_at', 'updated_at', 'deleted_at',
                                'rollout_from_key', 'rollout_held_ids')
$$;

-- note_change: who changed an action and how, in the transaction of the change. `{}` stands for an action that
-- is not there: before it is created, after it is deleted.
CREATE FUNCTION turnstile.note_change(in_action_ref text, in_old jsonb, in_new jsonb, in_changed_by text)
RETURNS void
LANGUAGE sql
SET search_path = public, pg_temp
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

-- store_actions: let actions be as these definitions say, all of them or only those that are not there yet.
-- Returns those that are as given now.
--
-- Their queues follow: `roll_out` brings limit and pause to them, after the action's row. A queue that is being
-- born waits for that row (see admit), so none keeps an old limit. A new name begins as a deleted action: so there is always a row to lock,
-- and what was deleted comes back the same way.
CREATE FUNCTION turnstile.store_actions(in_definitions jsonb, in_lacking_only boolean, in_changed_by text)
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = public, pg_temp
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
      AND (a.deleted_at IS NOT NULL OR NOT in_lacking_only)
    ORDER BY a.id FOR NO KEY UPDATE;

    -- A service of an earlier version does not know these fields: it leaves them as they are.
    SELECT jsonb_agg(jsonb_build_object('submitter_keys', coalesce(a.submitter_keys, false)) || d.definition)
    INTO definitions
    FROM jsonb_array_elements(in_definitions) d(definition)
    LEFT JOIN action a ON a.ref = d.definition ->> 'ref' AND a.deleted_at IS NULL;

    -- One instant: an action whose two are the same was never changed, and the audit judges it from its first grant.
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
            OR NOT in_lacking_only AND turnstile.definition_of(b) <> turnstile.definition_of(d)
        )
        RETURNING a.id, a.ref, turnstile.definition_of(a) AS new,
                  CASE WHEN b.deleted_at IS NULL THEN turnstile.definition_of(b) ELSE '{}' END AS old
    LOOP
        PERFORM turnstile.note_change(changed.ref, changed.old, changed.new, in_changed_by);
        changed_ids := changed_ids || changed.id;
    END LOOP;

    -- Whoever puts a definition again has its lines looked at again, changed or not.
    stored_ids := CASE WHEN in_lacking_only THEN changed_ids ELSE ARRAY(
        SELECT a.id FROM action a
        WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d)
    ) END;
    UPDATE action a SET rollout_from_key = '', rollout_held_ids = NULL
    WHERE a.id = ANY (stored_ids) AND EXISTS (SELECT FROM action_queue q WHERE q.action_id = a.id);
    RETURN stored_ids;
END
$$;

-- roll_out: let the next queues of an action have its limit and pause, at most `in_limit` in the order of their
-- keys, and grant. What another session holds for longer than `in_wait_ms` is passed by and comes again at the end.
--
-- One transaction is one slice: the queues of a million keys are not locked together (P9), and whoever dies between
-- two leaves the rest to the watchdog. `looked_at`: queues of this slice. `changed`: those that had other values.
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
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    rolled record;
    queue_ids bigint[];
    held_ids bigint[];
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
        SELECT array_agg(s.id) FILTER (WHERE s.place <= in_limit), max(s.key) FILTER (WHERE s.place > in_limit)
        INTO queue_ids, next_key
        FROM (
            SELECT q.id, q.concurrency_key AS key, row_number() OVER (ORDER BY q.concurrency_key) AS place
            FROM action_queue q
            WHERE q.action_id = in_action_id AND q.concurrency_key >= rolled.rollout_from_key
            ORDER BY q.action_id, q.concurrency_key LIMIT in_limit + 1
        ) s;
    END IF;
    looked_at := coalesce(cardinality(queue_ids), 0);

    held_ids := turnstile.lock_unheld_queues(queue_ids, in_wait_ms);
    queue_ids := ARRAY(SELECT q.id FROM unnest(queue_ids) q(id) WHERE q.id <> ALL (held_ids));
    UPDATE action_queue q
    SET max_concurrent = rolled.max_concurrent, paused = rolled.paused, updated_at = clock_timestamp()
    WHERE q.id = ANY (queue_ids)
      AND (q.max_concurrent IS DISTINCT FROM rolled.max_concurrent OR q.paused <> rolled.paused);
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF rolled.rollout_from_key IS NOT NULL THEN
        -- Of very many the rest is left to `repair_queues`.
        held_ids := (coalesce(rolled.rollout_held_ids, '{}') || held_ids)[1:1000];
    END IF;
    UPDATE action a SET rollout_from_key = next_key, rollout_held_ids = nullif(held_ids, '{}')
    WHERE a.id = in_action_id;
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids FROM turnstile.grant_locked(queue_ids, NULL) g;
END
$$;

-- rollouts_due: the actions of which not every queue has the limit and pause yet.
CREATE FUNCTION turnstile.rollouts_due(in_limit integer)
RETURNS SETOF bigint
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    SELECT a.id FROM action a WHERE a.rollout_from_key IS NOT NULL OR a.rollout_held_ids IS NOT NULL
    ORDER BY a.id LIMIT in_limit
$$;

-- misfits: the fields that no definition can have, of those that a worker declares. Its account calls the
-- statements itself: what services and people could not read again must not get in here. The rules are those of
-- `common.action_definition`.
CREATE FUNCTION turnstile.misfits(in_definitions jsonb)
RETURNS TABLE (ref text, field text)
LANGUAGE sql
IMMUTABLE
SET search_path = public, pg_temp
AS $$
    SELECT d.ref, c.field
    FROM jsonb_populate_recordset(NULL::action, in_definitions) d
    CROSS JOIN LATERAL (VALUES
        ('ref', d.ref ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$'),
        ('entrypoint', CASE
            WHEN jsonb_typeof(d.entrypoint) = 'array' THEN
                d.runner = 'command' AND d.entrypoint <> '[]'
                AND NOT EXISTS (SELECT FROM jsonb_array_elements(d.entrypoint) w WHERE jsonb_typeof(w.value) <> 'string')
            WHEN d.entrypoint IS NULL THEN d.runner = 'python'
            WHEN d.runner = 'http' THEN jsonb_typeof(d.entrypoint) = 'string' AND d.entrypoint #>> '{}' ~ '^https?://'
            ELSE d.runner = 'python' AND jsonb_typeof(d.entrypoint) = 'string' END),
        ('max_concurrent', d.max_concurrent <= 1000000),
        ('concurrency_key', (d.concurrency_key IS NULL) = (d.concurrency_key_path IS NULL)),
        ('concurrency_key', d.concurrency_key ~ '^(/([^~/]|~0|~1)*)+$'),
        ('concurrency_key', d.concurrency_key_path = ARRAY(
            SELECT replace(replace(s.step, '~1', '/'), '~0', '~')
            FROM regexp_split_to_table(substr(d.concurrency_key, 2), '/') WITH ORDINALITY s(step, place)
            ORDER BY s.place)),
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
        ('callback_url', d.callback_url ~* '^https?://[^[:space:]/?#@]+([/?#][^[:space:]]*)?$' AND length(d.callback_url) <= 2048)
    ) c(field, fits)
    WHERE NOT c.fits
$$;

-- register_actions: store what is lacking, change nothing that is there: the limit in the database wins
-- over what a worker declares. Returns the definitions now in force.
CREATE FUNCTION turnstile.register_actions(in_definitions jsonb)
RETURNS SETOF action
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
DECLARE
    misfit record;
BEGIN
    SELECT * INTO misfit FROM turnstile.misfits(in_definitions) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'action %: no definition has such a value in %', left(misfit.ref, 200), misfit.field
            USING ERRCODE = 'check_violation';
    END IF;
    -- One that comes back has queues, with nobody in them, and whatever limit it had.
    PERFORM turnstile.roll_out(s.id, 1000) FROM unnest(turnstile.store_actions(in_definitions, true, 'worker')) s(id);
    RETURN QUERY
    SELECT a.* FROM action a
    WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d);
END
$$;

-- put_actions: store these definitions, and let a changed limit or pause act at once: on the first 1,000 queues here,
-- on the others slice by slice, by the watchdog.
CREATE FUNCTION turnstile.put_actions(
    in_definitions jsonb,
    in_changed_by text DEFAULT NULL,
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
AS $$
DECLARE
    stored_id bigint;
    slice record;
    left_to_look integer := 1000;
BEGIN
    FOREACH stored_id IN ARRAY turnstile.store_actions(in_definitions, false, in_changed_by) LOOP
        SELECT * INTO slice FROM turnstile.roll_out(stored_id, left_to_look, 2000);
        granted := granted || slice.granted;
        more_queue_ids := more_queue_ids || slice.more_queue_ids;
        left_to_look := left_to_look - slice.looked_at;
        EXIT WHEN left_to_look <= 0;
    END LOOP;
END
$$;
