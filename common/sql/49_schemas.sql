-- JSON Schemas of parameters. An executor checks requests against them before it admits them; the worker's
-- own check, before the run, has the last word.

-- store_schemas: stores what a worker derived from its code, and returns the ids. `in_schemas` is an array of
-- objects with `ref`, `parameters` and `result`. A worker's account may pass anything: what is too large is
-- left out, which means that everything fits. Schemas that no live worker has are deleted, except those of
-- this call.
CREATE FUNCTION turnstile.store_schemas(in_schemas jsonb)
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    stored_ids bigint[];
BEGIN
    IF in_schemas IS NULL THEN
        RETURN NULL;
    END IF;
    -- In the order of actions: two workers that start never wait for each other in a circle.
    WITH derived AS MATERIALIZED (
        SELECT DISTINCT ON (a.id) a.id AS action_id, nullif(s.value -> 'parameters', 'null') AS parameters,
               nullif(s.value -> 'result', 'null') AS result
        FROM jsonb_array_elements(in_schemas) s(value)
        JOIN action a ON a.ref = ANY (ARRAY[s.value ->> 'ref'])
        WHERE octet_length((s.value -> 'parameters')::text) <= 131072
          AND octet_length((s.value -> 'result')::text) <= 131072
        ORDER BY a.id
    ),
    stored AS (
        INSERT INTO action_schema AS t (action_id, content_hash, parameters, result, registered_at)
        SELECT d.action_id, md5(concat(d.parameters, '|', d.result)), d.parameters, d.result,
               clock_timestamp()
        FROM derived d ORDER BY d.action_id
        ON CONFLICT (action_id, content_hash) DO UPDATE SET registered_at = clock_timestamp()
        RETURNING t.id
    )
    SELECT coalesce(array_agg(s.id), '{}') INTO stored_ids FROM stored s;
    -- A row that another worker registers again at this moment is locked by it, or was registered just now:
    -- it stays.
    DELETE FROM action_schema t
    WHERE t.id = ANY (ARRAY(
        SELECT old.id
        FROM action_schema s
        JOIN action_schema old ON old.action_id = s.action_id AND old.id <> ALL (stored_ids)
        WHERE s.id = ANY (stored_ids) AND old.registered_at < clock_timestamp() - interval '1 min'
          AND NOT EXISTS (SELECT FROM worker w WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
                                                 AND old.id = ANY (w.schema_ids))
        FOR UPDATE OF old SKIP LOCKED));
    RETURN stored_ids;
END
$$;

-- code_schemas: by action, the schemas that workers derived from their code and that count now.
--
-- They are those of the live workers that take new executions of the action; each of them may take any.
-- `takes_all`: one of these workers has no schema for it. Without such a worker, the schema that was
-- registered last counts. An action that is not a function of a worker, or that no worker registered, has no
-- row.
CREATE FUNCTION turnstile.code_schemas(in_ref text DEFAULT NULL)
RETURNS TABLE (action_id bigint, schema_ids bigint[], workers integer, takes_all boolean)
LANGUAGE sql
STABLE
:settings
AS $$
    -- Workers of one version are alike: they count as one.
    WITH kind AS MATERIALIZED (
        SELECT row_number() OVER () AS id, w.pools[1 : 100] AS pools, w.served_refs, w.schema_ids,
               count(*) AS workers
        FROM worker w
        WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
        GROUP BY w.pools, w.served_refs, w.schema_ids
    ),
    derived AS MATERIALIZED (
        SELECT k.id AS kind_id, s.id, s.action_id
        FROM kind k CROSS JOIN LATERAL unnest(k.schema_ids) u(id) JOIN action_schema s ON s.id = u.id
    ),
    newest AS MATERIALIZED (
        SELECT DISTINCT ON (s.action_id) s.action_id, s.id FROM action_schema s
        ORDER BY s.action_id, s.registered_at DESC, s.id DESC
    )
    SELECT a.id, coalesce(array_agg(DISTINCT d.id) FILTER (WHERE d.id IS NOT NULL), ARRAY[n.id]),
           coalesce(sum(k.workers), 0)::integer,
           coalesce(bool_or(k.id IS NOT NULL AND d.id IS NULL), false)
    FROM newest n
    JOIN action a ON a.id = n.action_id AND a.deleted_at IS NULL AND a.runner = 'python'
        AND (in_ref IS NULL OR a.ref = in_ref)
    LEFT JOIN kind k ON a.pool = ANY (k.pools)
        AND (a.entrypoint IS NOT NULL OR k.served_refs IS NULL OR a.ref = ANY (k.served_refs))
    LEFT JOIN derived d ON d.kind_id = k.id AND d.action_id = a.id
    GROUP BY a.id, n.id
$$;

-- read_schemas: the schemas that requests must fit, if they are others than those of `in_version`.
--
-- `judges` has an object for each action with one: `ref`; `given`, the key of the schema in its definition;
-- or `derived`, the keys of those that workers derived. `contents` are the schemas by key, without those of
-- `in_known_keys`: the content of a key never changes.
CREATE FUNCTION turnstile.read_schemas(
    in_version text, in_known_keys text[], OUT version text, OUT judges jsonb, OUT contents jsonb
)
LANGUAGE plpgsql
STABLE
:settings
AS $$
BEGIN
    -- Cheap to compare: which workers live, and every change of an action. Code is only registered by new
    -- workers.
    version := concat(
        (SELECT md5(string_agg(w.id, ',' ORDER BY w.id)) FROM worker w
         WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL), ' ',
        (SELECT sum(hashtextextended(concat(a.id, ' ', a.updated_at, ' ', a.deleted_at), 0)) FROM action a));
    IF version = in_version THEN
        RETURN;
    END IF;
    WITH judge AS MATERIALIZED (
        SELECT a.id, a.ref, NULL::text[] AS derived, 'given ' || md5(a.parameters_schema::text) AS given
        FROM action a WHERE a.deleted_at IS NULL AND a.parameters_schema IS NOT NULL
        UNION ALL
        SELECT a.id, a.ref, ARRAY(SELECT 'derived ' || i.id FROM unnest(c.schema_ids) i(id) ORDER BY i.id),
               NULL
        FROM turnstile.code_schemas() c JOIN action a ON a.id = c.action_id
        WHERE a.parameters_schema IS NULL AND NOT c.takes_all
          AND NOT EXISTS (SELECT FROM action_schema s
                          WHERE s.id = ANY (c.schema_ids) AND s.parameters IS NULL)
    ),
    content AS (
        SELECT j.given AS key, a.parameters_schema AS schema
        FROM judge j JOIN action a ON a.id = j.id WHERE j.given IS NOT NULL AND j.given <> ALL (in_known_keys)
        UNION
        SELECT d.key, s.parameters
        FROM judge j CROSS JOIN LATERAL unnest(j.derived) d(key)
        JOIN action_schema s ON s.id = split_part(d.key, ' ', 2)::bigint
        WHERE d.key <> ALL (in_known_keys)
    )
    SELECT coalesce(
        (SELECT jsonb_agg(jsonb_build_object('ref', j.ref, 'given', j.given, 'derived', j.derived))
         FROM judge j), '[]'),
           coalesce((SELECT jsonb_object_agg(c.key, c.schema) FROM content c), '{}')
    INTO judges, contents;
END
$$;
