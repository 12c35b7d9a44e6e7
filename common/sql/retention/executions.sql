-- Retention of terminal executions: they are pruned by age and number, as their action says, with their
-- attempts, logs and delivered webhooks. Off the hot path: a bounded number of rows per call, no lock that a
-- grant, a claim or a settle waits for, and no waiting for locks. One replica prunes at a time.

-- lock_prunable: locks those of these executions that no other session holds, and their queues. `queue_ids`:
-- the locked queues; an execution whose queue is not among them belongs to a deleted one.
CREATE FUNCTION turnstile.lock_prunable(
    in_execution_ids bigint[], OUT prunable_ids bigint[], OUT queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    -- A locked row is skipped: its webhook is being replayed, or a cancel is checking it.
    prunable_ids := ARRAY(
        SELECT e.id FROM execution e WHERE e.id = ANY (in_execution_ids) ORDER BY e.id
        FOR UPDATE SKIP LOCKED);
    -- Checked again under the lock: its webhook may have been replayed in between.
    prunable_ids := ARRAY(
        SELECT g.id FROM unnest(prunable_ids) g(id)
        WHERE (SELECT d.execution_id FROM webhook_delivery d
               WHERE d.execution_id = g.id AND d.state <> 'delivered') IS NULL);
    -- A queue stays until this commits, or is already deleted: this decides where its pruned executions are
    -- counted. The lock conflicts only with the deletion of the queue; executions of a queue that is being
    -- deleted are skipped.
    queue_ids := ARRAY(
        SELECT q.id FROM action_queue q
        WHERE q.id = ANY (ARRAY(SELECT e.queue_id FROM execution e WHERE e.id = ANY (prunable_ids)))
        FOR KEY SHARE SKIP LOCKED);
    prunable_ids := ARRAY(
        SELECT e.id FROM execution e
        WHERE e.id = ANY (prunable_ids)
          AND (e.queue_id = ANY (queue_ids)
               OR (SELECT q.id FROM action_queue q WHERE q.id = e.queue_id) IS NULL));
END
$$;

-- prune_action: prunes among the next `in_limit` executions of one action after `in_after_id`. `next_id`:
-- where to continue; 0: no older ones are left.
--
-- Keeps every execution that is still in use: not terminal, with an unsettled slot or completion, or with an
-- unpublished cancel message or an undelivered webhook. Also keeps what ended less than `in_rest_seconds`
-- ago: a late copy of its messages would find nothing.
CREATE FUNCTION turnstile.prune_action(
    in_action_id bigint,
    in_after_id bigint,
    in_keep_seconds double precision,
    in_keep_count bigint,
    in_rest_seconds double precision,
    in_limit integer,
    OUT scanned_count integer,
    OUT pruned integer,
    OUT next_id bigint
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    rested_before timestamptz := clock_timestamp() - make_interval(secs => in_rest_seconds);
    kept_since timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    last_created_at timestamptz;
    excess bigint := 0;
    prunable_ids bigint[];
    locked_queue_ids bigint[];
BEGIN
    scanned_count := 1;
    pruned := 0;
    next_id := 0;
    -- From the totals: the number of settled executions that are not pruned.
    IF in_keep_count IS NOT NULL THEN
        SELECT sum(n.executions) - in_keep_count INTO excess
        FROM (
            SELECT q.total_completed - coalesce(
                       (SELECT p.executions FROM pruned_count p WHERE p.queue_id = q.id), 0) AS executions
            FROM turnstile.current_queue q WHERE q.action_id = in_action_id
            UNION ALL
            SELECT t.executions - t.pruned FROM deleted_queue_total t WHERE t.action_id = in_action_id
        ) n;
    END IF;
    -- Ids and creation times have the same order: all after the first that is too young are too young. The
    -- action as bounds: as a constant it would not be part of the order, and executions of other actions
    -- would be read one by one.
    SELECT e.created_at INTO last_created_at FROM execution e
    WHERE e.action_id BETWEEN in_action_id AND in_action_id AND e.id > in_after_id
    ORDER BY e.action_id, e.id LIMIT 1;
    IF last_created_at IS NULL
        OR (coalesce(excess, 0) <= 0 AND (last_created_at < kept_since) IS NOT TRUE) THEN
        RETURN;
    END IF;

    WITH scanned AS MATERIALIZED (
        SELECT e.id, e.created_at, e.completed_at FROM execution e
        WHERE e.action_id BETWEEN in_action_id AND in_action_id AND e.id > in_after_id
        ORDER BY e.action_id, e.id LIMIT in_limit
    ),
    -- Terminal, settled, and nothing about them is under way.
    prunable AS (
        SELECT l.id, l.completed_at, row_number() OVER (ORDER BY l.id) AS rank
        FROM scanned l
        WHERE l.completed_at < rested_before
          AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = l.id) IS NULL
          AND (SELECT u.execution_id FROM unpublished_completion u WHERE u.execution_id = l.id) IS NULL
          AND (SELECT u.execution_id FROM unpublished_cancel u WHERE u.execution_id = l.id LIMIT 1) IS NULL
          AND (SELECT d.execution_id FROM webhook_delivery d
               WHERE d.execution_id = l.id AND d.state <> 'delivered') IS NULL
    )
    SELECT array_agg(p.id) FILTER (WHERE p.completed_at < kept_since OR p.rank <= excess),
           (SELECT count(*) FROM scanned), (SELECT max(l.created_at) FROM scanned l),
           (SELECT max(l.id) FROM scanned l)
    INTO prunable_ids, scanned_count, last_created_at, next_id FROM prunable p;

    SELECT l.prunable_ids, l.queue_ids INTO prunable_ids, locked_queue_ids
    FROM turnstile.lock_prunable(prunable_ids) l;
    WITH deleted_execution AS MATERIALIZED (
        DELETE FROM execution e WHERE e.id = ANY (prunable_ids) RETURNING e.queue_id
    ),
    attempts AS (
        DELETE FROM attempt t WHERE t.execution_id = ANY (prunable_ids)
    ),
    logs AS (
        DELETE FROM attempt_log l WHERE l.execution_id = ANY (prunable_ids)
    ),
    progress AS (
        DELETE FROM attempt_progress g WHERE g.execution_id = ANY (prunable_ids)
    ),
    returns AS (
        DELETE FROM gate_return r WHERE r.execution_id = ANY (prunable_ids)
    ),
    -- A deadline stays until it has passed, even if its execution is terminal.
    deadlines AS (
        DELETE FROM expiring x WHERE x.execution_id = ANY (prunable_ids)
    ),
    webhooks AS (
        DELETE FROM webhook_delivery d WHERE d.execution_id = ANY (prunable_ids)
    ),
    of_deleted_queues AS (
        UPDATE deleted_queue_total t SET pruned = t.pruned + n.executions
        FROM (SELECT count(*) AS executions FROM deleted_execution g
              WHERE g.queue_id <> ALL (locked_queue_ids)) n
        WHERE t.action_id = in_action_id AND n.executions > 0
    )
    INSERT INTO pruned_count AS p (queue_id, executions)
    SELECT g.queue_id, count(*) FROM deleted_execution g WHERE g.queue_id = ANY (locked_queue_ids)
    GROUP BY g.queue_id ORDER BY g.queue_id
    ON CONFLICT (queue_id) DO UPDATE SET executions = p.executions + excluded.executions;

    pruned := cardinality(prunable_ids);
    IF scanned_count < in_limit
        OR (coalesce(excess, 0) <= pruned AND (last_created_at < kept_since) IS NOT TRUE) THEN
        next_id := 0;
    END IF;
END
$$;

-- prune: continues through the actions, from the execution after `in_after_id` of `in_action_id`, until
-- `in_limit` rows were read. `in_keep_seconds` and `in_keep_count` are the defaults of actions without own
-- values; null: keep all. `next_action_id`, `next_id`: where to continue; 0: all actions are done. `pruned`
-- is null while another replica prunes.
CREATE FUNCTION turnstile.prune(
    in_action_id bigint,
    in_after_id bigint,
    in_keep_seconds double precision,
    in_keep_count bigint,
    in_rest_seconds double precision,
    in_limit integer,
    OUT pruned integer,
    OUT next_action_id bigint,
    OUT next_id bigint
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    kept record;
    batch record;
    rows_left integer := in_limit;
BEGIN
    next_action_id := in_action_id;
    next_id := in_after_id;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('turnstile.prune', 0)) THEN
        RETURN;
    END IF;
    pruned := 0;
    WHILE rows_left > 0 LOOP
        SELECT a.id, coalesce(a.keep_for_seconds, in_keep_seconds) AS seconds,
               coalesce(a.keep_count, in_keep_count) AS executions
        INTO kept FROM action a WHERE a.id >= next_action_id ORDER BY a.id LIMIT 1;
        IF NOT FOUND THEN
            next_action_id := 0;
            next_id := 0;
            RETURN;
        END IF;
        IF kept.id <> next_action_id THEN
            next_id := 0;
        END IF;
        SELECT * INTO batch FROM turnstile.prune_action(
            kept.id, next_id, kept.seconds, kept.executions, in_rest_seconds, rows_left);
        rows_left := rows_left - batch.scanned_count;
        pruned := pruned + batch.pruned;
        next_id := batch.next_id;
        next_action_id := CASE WHEN batch.next_id = 0 THEN kept.id + 1 ELSE kept.id END;
    END LOOP;
END
$$;
