-- Resources, which are gates of the kind 'resource', and the settings of single concurrency keys. Each change
-- is recorded with its author in the transaction of the change.
--
-- Locks: actions, then queues, then gates, each by id. A grant locks the gate too, so a change waits for a
-- grant and a grant for a change, each for milliseconds.

-- definition_of_resource: a resource as a flat definition, for comparing and for the log of changes.
CREATE FUNCTION turnstile.definition_of_resource(in_resource gate)
RETURNS jsonb
LANGUAGE sql
STABLE
:settings
AS $$
    SELECT turnstile.written(jsonb_build_object(
        'capacity', in_resource.capacity, 'rank', in_resource.rank, 'fair', in_resource.fair,
        'rate_starts', in_resource.rate_starts, 'rate_per_seconds', in_resource.rate_per_seconds,
        'paused', in_resource.paused))
$$;

-- users_of: the actions that use a resource, by name.
CREATE FUNCTION turnstile.users_of(in_resource text)
RETURNS SETOF action
LANGUAGE sql
STABLE
AS $$
    SELECT a.* FROM public.action a
    WHERE a.deleted_at IS NULL AND a.uses @> jsonb_build_array(jsonb_build_object('resource', in_resource))
    ORDER BY a.ref COLLATE "C"
$$;

-- used_by: how many actions use a resource, and the first of them as JSON: action_ref, units, weight.
CREATE FUNCTION turnstile.used_by(in_resource text, in_limit integer, OUT users bigint, OUT used_by text)
LANGUAGE sql
STABLE
AS $$
    SELECT count(*),
           jsonb_agg(jsonb_build_object('action_ref', n.ref, 'units', n.use -> 'units', 'weight',
                                        n.use -> 'weight')
                     ORDER BY n.rank) FILTER (WHERE n.rank <= in_limit)
    FROM (
        SELECT a.ref, i.use, row_number() OVER (ORDER BY a.ref COLLATE "C") AS rank
        FROM turnstile.users_of(in_resource) a
        JOIN LATERAL jsonb_array_elements(a.uses) i(use) ON i.use ->> 'resource' = in_resource
    ) n
$$;

-- put_resource: stores the definition of a resource, whose columns are the keys of `in_definition`. The
-- caller then calls `advance_gates`, and grants in the queues that are returned: what waits there may go on
-- if the resource opens.
CREATE FUNCTION turnstile.put_resource(
    in_definition jsonb, in_changed_by text DEFAULT NULL, in_caller jsonb DEFAULT NULL
)
RETURNS SETOF bigint
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    wanted gate := jsonb_populate_record(NULL::gate, in_definition);
    stored gate;
    old jsonb := '{}';
    new jsonb := turnstile.definition_of_resource(wanted);
    problem text;
BEGIN
    PERFORM turnstile.note_caller(in_caller, in_changed_by);
    -- What changes the routes of actions locks them first.
    PERFORM 1 FROM action a
    WHERE a.id = ANY (ARRAY(SELECT u.id FROM turnstile.users_of(wanted.name) u)) AND EXISTS (
        SELECT FROM gate g
        WHERE g.kind = 'resource' AND g.name = wanted.name
          AND (g.rank, g.fair, g.rate_starts, g.rate_per_seconds)
              IS DISTINCT FROM (wanted.rank, wanted.fair, wanted.rate_starts, wanted.rate_per_seconds))
    ORDER BY a.id FOR NO KEY UPDATE;

    -- And the gates of these routes, in ascending id.
    PERFORM 1 FROM gate g
    WHERE g.id = ANY (turnstile.neighbouring_gates(ARRAY(
        SELECT r.id FROM gate r
        WHERE r.kind = 'resource' AND r.name = wanted.name
          AND (r.rank, r.fair, r.rate_starts, r.rate_per_seconds)
              IS DISTINCT FROM (wanted.rank, wanted.fair, wanted.rate_starts, wanted.rate_per_seconds))))
    ORDER BY g.id FOR NO KEY UPDATE;

    INSERT INTO gate (kind, name) VALUES ('resource', wanted.name)
    ON CONFLICT (kind, name) DO NOTHING RETURNING * INTO stored;
    IF FOUND THEN
        INSERT INTO gate_state (gate_id, version, held, depth, head_id, virtual_times, starts_taken,
                                updated_at)
        VALUES (stored.id, 1, 0, 0, 0, '{0,0,0,0,0}', 0, clock_timestamp());
    ELSE
        SELECT * INTO stored FROM gate g WHERE g.kind = 'resource' AND g.name = wanted.name FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the resource was deleted meanwhile'
                USING ERRCODE = 'serialization_failure', HINT = 'Repeat the statement.';
        END IF;
        old := turnstile.definition_of_resource(stored);
    END IF;
    IF old = new THEN
        RETURN;
    END IF;
    IF stored.fair <> wanted.fair
       AND (SELECT s.depth FROM gate_state s WHERE s.gate_id = stored.id ORDER BY s.version DESC LIMIT 1) > 0
    THEN
        RAISE EXCEPTION 'order: executions wait for this resource; pause it, change the order, resume it'
            USING ERRCODE = 'object_in_use';
    END IF;
    IF stored.fair <> wanted.fair THEN
        PERFORM turnstile.forget_heads(ARRAY[stored.id]);
    END IF;
    -- What waits there returns to its queue if the resource is closed for it now.
    UPDATE gate g SET capacity = wanted.capacity, rank = wanted.rank, fair = wanted.fair,
        paused = wanted.paused,
                      rate_starts = wanted.rate_starts, rate_per_seconds = wanted.rate_per_seconds,
                      returning_from = CASE WHEN wanted.paused
                                                 OR wanted.capacity < coalesce(g.capacity,
                                                                               wanted.capacity + 1)
                                            THEN -9223372036854775808 ELSE g.returning_from END,
                      updated_at = clock_timestamp()
    WHERE g.id = stored.id;
    IF old -> 'rank' IS DISTINCT FROM new -> 'rank' THEN
        SELECT format('resource %L: rank: the action %L uses both: %s', wanted.name, u.ref,
                      turnstile.same_rank(u.uses))
        INTO problem
        FROM turnstile.users_of(wanted.name) u WHERE turnstile.same_rank(u.uses) IS NOT NULL LIMIT 1;
        IF FOUND THEN
            PERFORM turnstile.refuse_definition(problem);
        END IF;
    END IF;
    PERFORM turnstile.record_change('resource', wanted.name, old, new);
    IF old - 'capacity' - 'paused' <> new - 'capacity' - 'paused' AND old <> '{}' THEN
        PERFORM turnstile.reroute(ARRAY(SELECT u.id FROM turnstile.users_of(wanted.name) u ORDER BY u.id));
    END IF;
    RETURN QUERY SELECT q.id FROM turnstile.queues_behind(stored.id, 1000) q(id);
END
$$;

-- delete_resource: deletes a resource that no action uses and at which nothing holds units or waits.
-- `used_by` are the first actions of `users`; all are null if there is no such resource.
CREATE FUNCTION turnstile.delete_resource(
    in_name text,
    in_changed_by text DEFAULT NULL,
    in_caller jsonb DEFAULT NULL,
    OUT users bigint,
    OUT used_by text[],
    OUT held bigint,
    OUT waiting bigint,
    OUT deleted boolean
)
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    stored gate;
BEGIN
    deleted := false;
    -- Waits for definitions that name it (see check_uses), and stops grants.
    SELECT * INTO stored FROM gate g WHERE g.kind = 'resource' AND g.name = in_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*), (array_agg(u.ref))[1:10] INTO users, used_by FROM turnstile.users_of(in_name) u;
    SELECT g.held, g.depth INTO held, waiting FROM turnstile.current_gate g WHERE g.id = stored.id;
    IF users > 0 OR held > 0 OR waiting > 0 THEN
        RETURN;
    END IF;
    DELETE FROM flow_turn t WHERE t.gate_id = stored.id;
    DELETE FROM gate_window w WHERE w.gate_id = stored.id;
    DELETE FROM gate_flow f WHERE f.gate_id = stored.id;
    DELETE FROM rate_start s WHERE s.gate_id = stored.id;
    DELETE FROM gate_state s WHERE s.gate_id = stored.id;
    DELETE FROM gate g WHERE g.id = stored.id;
    PERFORM turnstile.note_caller(in_caller, in_changed_by);
    PERFORM turnstile.record_change('resource', in_name, turnstile.definition_of_resource(stored), '{}');
    deleted := true;
END
$$;

-- written_key: the settings of a key as users write them, under the name of the field; '{}' if it has none.
CREATE FUNCTION turnstile.written_key(in_override key_override)
RETURNS jsonb
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN in_override.action_id IS NULL THEN '{}'
                ELSE jsonb_build_object('keys.' || in_override.concurrency_key,
                    CASE WHEN in_override.has_limit
                         THEN jsonb_build_object('max_concurrent', in_override.max_concurrent) ELSE '{}' END
                    || jsonb_build_object('weight', coalesce(in_override.weight, 1))) END
$$;

-- set_key: stores the settings of one concurrency key of an action, or deletes them if `in_override` is null.
-- A changed limit takes effect at once. `action_found`, `key_found`: whether the action exists, and had
-- settings of the key.
CREATE FUNCTION turnstile.set_key(
    in_action_ref text,
    in_key text,
    in_override jsonb,
    in_changed_by text DEFAULT NULL,
    in_caller jsonb DEFAULT NULL,
    OUT action_found boolean,
    OUT key_found boolean,
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    changed action;
    wanted key_override := jsonb_populate_record(NULL::key_override, in_override);
    stored key_override;
    old jsonb;
    new jsonb := '{}';
BEGIN
    SELECT * INTO changed FROM action a WHERE a.ref = in_action_ref AND a.deleted_at IS NULL
    FOR NO KEY UPDATE;
    action_found := FOUND;
    IF NOT action_found THEN
        RETURN;
    END IF;
    SELECT * INTO stored FROM key_override k WHERE k.action_id = changed.id AND k.concurrency_key = in_key;
    key_found := FOUND;
    old := turnstile.written_key(stored);
    IF in_override IS NULL THEN
        DELETE FROM key_override k WHERE k.action_id = changed.id AND k.concurrency_key = in_key;
    ELSE
        IF changed.concurrency_key IS NULL AND NOT changed.submitter_keys THEN
            PERFORM turnstile.refuse_definition(format(
                'key: the action %L has no concurrency keys; set its concurrency_key or submitter_keys'
                ' first, or change the limit of the action', in_action_ref));
        END IF;
        wanted.action_id := changed.id;
        wanted.concurrency_key := in_key;
        INSERT INTO key_override AS k (action_id, concurrency_key, has_limit, max_concurrent, weight)
        VALUES (changed.id, in_key, wanted.has_limit, wanted.max_concurrent, wanted.weight)
        ON CONFLICT (action_id, concurrency_key) DO UPDATE
        SET has_limit = excluded.has_limit, max_concurrent = excluded.max_concurrent,
            weight = excluded.weight;
        new := turnstile.written_key(wanted);
    END IF;
    IF old = new THEN
        RETURN;
    END IF;
    PERFORM turnstile.note_caller(in_caller, in_changed_by);
    PERFORM turnstile.log_operations('changed', 'action', ARRAY[in_action_ref], ARRAY[in_action_ref],
                                     ARRAY[old], ARRAY[new]);
    -- The queue, if there is one, like a queue that was skipped by a rollout: if another session holds it for
    -- too long, the watchdog changes it later.
    UPDATE action a
    SET updated_at = clock_timestamp(),
        rollout_held_ids = nullif(coalesce(a.rollout_held_ids, '{}') || ARRAY(
            SELECT q.id FROM action_queue q WHERE q.action_id = a.id AND q.concurrency_key = in_key), '{}')
    WHERE a.id = changed.id;
    SELECT r.granted, r.more_queue_ids INTO granted, more_queue_ids
    FROM turnstile.roll_out(changed.id, 1000, 2000) r;
END
$$;
