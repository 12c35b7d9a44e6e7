-- What is kept: ended executions go when they are older, or more, than their action keeps; with them go their
-- attempts, logs and delivered webhooks. Queues of idle keys go too. Off the hot path: a bounded number of rows per
-- call, no lock that a grant, a claim or a settle waits for, and waiting for nobody. One replica prunes at a time.

-- prune_action: prune among the next `in_limit` executions of one action after `in_after_id`. `next_id`: where to
-- go on; 0: nothing older is left to look at.
--
-- Never one that lives in any way: not ended, a slot or an end to be settled, a stop or a webhook under way. Nor one
-- that ended less than `in_rest_seconds` ago: a late copy of its messages would find nothing.
CREATE FUNCTION turnstile.prune_action(
    in_action_id bigint,
    in_after_id bigint,
    in_keep_seconds double precision,
    in_keep_count bigint,
    in_rest_seconds double precision,
    in_limit integer,
    OUT looked_at integer,
    OUT pruned integer,
    OUT next_id bigint
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    rested_before timestamptz := clock_timestamp() - make_interval(secs => in_rest_seconds);
    kept_since timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    last_created_at timestamptz;
    excess bigint := 0;
    gone_ids bigint[];
    locked_queue_ids bigint[];
BEGIN
    looked_at := 1;
    pruned := 0;
    next_id := 0;
    -- Counted from the totals: what was settled and not pruned is in the record.
    IF in_keep_count IS NOT NULL THEN
        SELECT sum(n.executions) - in_keep_count INTO excess
        FROM (
            SELECT q.total_completed - coalesce(
                       (SELECT p.executions FROM pruned_count p WHERE p.queue_id = q.id), 0) AS executions
            FROM action_queue q WHERE q.action_id = in_action_id
            UNION ALL
            SELECT t.executions - t.pruned FROM deleted_queue_total t WHERE t.action_id = in_action_id
        ) n;
    END IF;
    -- Ids and births are in one order: behind the first that is too young all are. The action by its bounds: as a
    -- constant it would be no part of the order, and other actions' executions be passed by one by one.
    SELECT e.created_at INTO last_created_at FROM execution e
    WHERE e.action_id BETWEEN in_action_id AND in_action_id AND e.id > in_after_id
    ORDER BY e.action_id, e.id LIMIT 1;
    IF last_created_at IS NULL OR (coalesce(excess, 0) <= 0 AND (last_created_at < kept_since) IS NOT TRUE) THEN
        RETURN;
    END IF;

    WITH looked AS MATERIALIZED (
        SELECT e.id, e.created_at, e.completed_at FROM execution e
        WHERE e.action_id BETWEEN in_action_id AND in_action_id AND e.id > in_after_id
        ORDER BY e.action_id, e.id LIMIT in_limit
    ),
    prunable AS (
        SELECT l.id, l.completed_at, row_number() OVER (ORDER BY l.id) AS rank
        FROM looked l
        WHERE l.completed_at < rested_before
          AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = l.id) IS NULL
          AND (SELECT u.execution_id FROM untold_end u WHERE u.execution_id = l.id) IS NULL
          AND (SELECT u.execution_id FROM untold_stop u WHERE u.execution_id = l.id LIMIT 1) IS NULL
          AND (SELECT d.execution_id FROM webhook_delivery d
               WHERE d.execution_id = l.id AND d.state <> 'delivered') IS NULL
    )
    SELECT array_agg(p.id) FILTER (WHERE p.completed_at < kept_since OR p.rank <= excess),
           (SELECT count(*) FROM looked), (SELECT max(l.created_at) FROM looked l),
           (SELECT max(l.id) FROM looked l)
    INTO gone_ids, looked_at, last_created_at, next_id FROM prunable p;

    -- Skipped where somebody holds it: a replay of its webhook, a cancel that finds it ended.
    gone_ids := ARRAY(
        SELECT e.id FROM execution e WHERE e.id = ANY (gone_ids) ORDER BY e.id FOR UPDATE SKIP LOCKED);
    -- Judged again under the lock: its webhook may have been replayed meanwhile.
    gone_ids := ARRAY(
        SELECT g.id FROM unnest(gone_ids) g(id)
        WHERE (SELECT d.execution_id FROM webhook_delivery d
               WHERE d.execution_id = g.id AND d.state <> 'delivered') IS NULL);
    -- A queue stays until this commits, or is gone already: what is pruned of it is counted where it is looked for.
    -- This lock conflicts with the deletion of the queue only; whatever is just being deleted is passed over.
    locked_queue_ids := ARRAY(
        SELECT q.id FROM action_queue q
        WHERE q.id = ANY (ARRAY(SELECT e.queue_id FROM execution e WHERE e.id = ANY (gone_ids)))
        FOR KEY SHARE SKIP LOCKED);
    gone_ids := ARRAY(
        SELECT e.id FROM execution e
        WHERE e.id = ANY (gone_ids)
          AND (e.queue_id = ANY (locked_queue_ids)
               OR (SELECT q.id FROM action_queue q WHERE q.id = e.queue_id) IS NULL));
    WITH gone AS MATERIALIZED (
        DELETE FROM execution e WHERE e.id = ANY (gone_ids) RETURNING e.queue_id
    ),
    attempts AS (
        DELETE FROM attempt t WHERE t.execution_id = ANY (gone_ids)
    ),
    logs AS (
        DELETE FROM attempt_log l WHERE l.execution_id = ANY (gone_ids)
    ),
    -- A deadline stays until it has passed, whatever became of its execution.
    deadlines AS (
        DELETE FROM expiring x WHERE x.execution_id = ANY (gone_ids)
    ),
    webhooks AS (
        DELETE FROM webhook_delivery d WHERE d.execution_id = ANY (gone_ids)
    ),
    of_deleted_queues AS (
        UPDATE deleted_queue_total t SET pruned = t.pruned + n.executions
        FROM (SELECT count(*) AS executions FROM gone g WHERE g.queue_id <> ALL (locked_queue_ids)) n
        WHERE t.action_id = in_action_id AND n.executions > 0
    )
    INSERT INTO pruned_count AS p (queue_id, executions)
    SELECT g.queue_id, count(*) FROM gone g WHERE g.queue_id = ANY (locked_queue_ids)
    GROUP BY g.queue_id ORDER BY g.queue_id
    ON CONFLICT (queue_id) DO UPDATE SET executions = p.executions + excluded.executions;

    pruned := cardinality(gone_ids);
    IF looked_at < in_limit OR (coalesce(excess, 0) <= pruned AND (last_created_at < kept_since) IS NOT TRUE) THEN
        next_id := 0;
    END IF;
END
$$;

-- prune: go on through the actions, from the execution after `in_after_id` of `in_action_id`, until `in_limit` rows
-- were looked at. Where an action does not say what it keeps, `in_keep_seconds` and `in_keep_count` do; null: all.
-- `next_action_id`, `next_id`: where to go on; 0: the round is done. `pruned` is null while another replica prunes.
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
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    kept record;
    batch record;
    left_to_look integer := in_limit;
BEGIN
    next_action_id := in_action_id;
    next_id := in_after_id;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('turnstile.prune', 0)) THEN
        RETURN;
    END IF;
    pruned := 0;
    WHILE left_to_look > 0 LOOP
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
            kept.id, next_id, kept.seconds, kept.executions, in_rest_seconds, left_to_look);
        left_to_look := left_to_look - batch.looked_at;
        pruned := pruned + batch.pruned;
        next_id := batch.next_id;
        next_action_id := CASE WHEN batch.next_id = 0 THEN kept.id + 1 ELSE kept.id END;
    END LOOP;
END
$$;

-- delete_idle_queues: delete the queues of concurrency keys that nothing happened to for `in_idle_seconds`, among the
-- next `in_limit` queues after `in_after_id`. `next_id`: where to go on; 0: from the start.
--
-- What they counted is added to their action's `deleted_queue_total`; a key that comes back gets a new queue. All
-- that was enqueued has ended and is settled: so nothing of such a queue waits, is delayed, holds a slot or is
-- still to be told, and only an admission, under the lock of the queue, could change that. A queue whose limit or
-- pause is not its action's stays. Whoever found the queue before and locks it now finds no row: admit says itself
-- again, everybody else has nothing to do there.
--
-- Waits for nobody: a queue that somebody holds is in use, and an action whose total another replica or pruning is
-- adding to has its turn later. The total comes first: nobody waits for a queue that waits for it.
CREATE FUNCTION turnstile.delete_idle_queues(
    in_after_id bigint,
    in_idle_seconds double precision,
    in_limit integer,
    OUT deleted integer,
    OUT next_id bigint
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    idle_since timestamptz := clock_timestamp() - make_interval(secs => in_idle_seconds);
    idle_ids bigint[];
    action_ids bigint[];
BEGIN
    deleted := 0;
    SELECT array_agg(q.id) FILTER (
               WHERE q.concurrency_key <> '' AND q.depth = 0 AND q.total_enqueued = q.total_completed
                 AND q.updated_at < idle_since),
           CASE WHEN count(*) = in_limit THEN max(q.id) ELSE 0 END
    INTO idle_ids, next_id
    FROM (SELECT * FROM action_queue q WHERE q.id > in_after_id ORDER BY q.id LIMIT in_limit) q;

    IF idle_ids IS NULL THEN
        RETURN;
    END IF;
    action_ids := ARRAY(SELECT DISTINCT q.action_id FROM action_queue q WHERE q.id = ANY (idle_ids));
    INSERT INTO deleted_queue_total (action_id, executions, pruned, updated_at)
    SELECT a.id, 0, 0, '-infinity' FROM unnest(action_ids) a(id)
    WHERE (SELECT t.action_id FROM deleted_queue_total t WHERE t.action_id = a.id) IS NULL
    ORDER BY a.id ON CONFLICT DO NOTHING;
    action_ids := ARRAY(
        SELECT t.action_id FROM deleted_queue_total t WHERE t.action_id = ANY (action_ids)
        ORDER BY t.action_id FOR NO KEY UPDATE SKIP LOCKED);
    idle_ids := ARRAY(
        SELECT q.id FROM action_queue q WHERE q.id = ANY (idle_ids) AND q.action_id = ANY (action_ids)
        ORDER BY q.id FOR UPDATE SKIP LOCKED);
    -- Judged again under the lock, by a snapshot that is newer than it: an admission may have come first.
    idle_ids := ARRAY(
        SELECT q.id FROM action_queue q JOIN action a ON a.id = ANY (ARRAY[q.action_id])
        WHERE q.id = ANY (idle_ids)
          AND q.depth = 0 AND q.total_enqueued = q.total_completed AND q.updated_at < idle_since
          AND q.max_concurrent IS NOT DISTINCT FROM a.max_concurrent AND q.paused = a.paused
          -- The counters say so already; where they are off, the rows count.
          AND (SELECT w.execution_id FROM waiting w WHERE w.queue_id = q.id LIMIT 1) IS NULL
          AND (SELECT s.execution_id FROM slot s WHERE s.queue_id = q.id LIMIT 1) IS NULL);

    WITH gone AS (
        DELETE FROM action_queue q WHERE q.id = ANY (idle_ids)
        RETURNING q.id, q.action_id, q.total_completed, q.updated_at
    ),
    -- Pruning holds the queues that it counts here, so none of these comes back.
    pruned AS (
        DELETE FROM pruned_count p WHERE p.queue_id = ANY (idle_ids) RETURNING p.queue_id, p.executions
    )
    UPDATE deleted_queue_total t
    SET executions = t.executions + n.executions, pruned = t.pruned + n.pruned,
        updated_at = greatest(t.updated_at, n.updated_at)
    FROM (
        SELECT g.action_id, sum(g.total_completed) AS executions, coalesce(sum(p.executions), 0) AS pruned,
               max(g.updated_at) AS updated_at
        FROM gone g LEFT JOIN pruned p ON p.queue_id = g.id GROUP BY g.action_id
    ) n
    WHERE t.action_id = n.action_id;
    deleted := cardinality(idle_ids);
END
$$;

-- prune_workers: forget workers that left or were lost longer than `in_keep_seconds` ago and that nothing names.
-- Their ids stay in the record of what they ran.
CREATE FUNCTION turnstile.prune_workers(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    gone_since timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    pruned integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT w.id FROM worker w
        -- Who began before that is looked at by the index; who left before that is meant.
        WHERE (w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL) AND w.started_at < gone_since
          AND greatest(w.lost_at, w.stopped_at, w.renewed_at) < gone_since
          AND NOT EXISTS (SELECT FROM slot s WHERE s.worker_id = w.id)
          AND NOT EXISTS (SELECT FROM untold_stop u WHERE u.worker_id = w.id)
        ORDER BY w.started_at LIMIT in_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM worker w USING old o WHERE w.id = ANY (ARRAY[o.id]);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;

-- prune_changes: forget what was changed about actions longer than `in_keep_seconds` ago.
CREATE FUNCTION turnstile.prune_changes(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    pruned integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT c.id, c.changed_at FROM action_change c ORDER BY c.id LIMIT in_limit
    )
    DELETE FROM action_change c USING old o
    WHERE c.id = ANY (ARRAY[o.id]) AND o.changed_at < clock_timestamp() - make_interval(secs => in_keep_seconds);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;
