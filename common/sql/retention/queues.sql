-- delete_idle_queues: deletes the queues of concurrency keys that were idle for `in_idle_seconds`, among the
-- next `in_limit` queues after `in_after_id`. `next_id`: where to continue; 0: from the start.
--
-- Their totals are added to the action's row in `deleted_queue_total`; a key that is used again gets a new
-- queue. Everything that was enqueued is terminal and settled, so nothing of such a queue is waiting,
-- delayed, in a slot or unpublished, and only an admission, under the lock of the queue, could change that. A
-- queue whose limit or pause differs from what it has to be stays. A session that found the queue before and
-- locks it now finds no row: admit is repeated, and every other function has nothing to do there.
--
-- Their flows at the total of the action are deleted with them, and the turns of these: nothing can arrive
-- there again. As everything else at a gate, under its lock.
--
-- Waits for no lock: a locked queue is in use, and an action whose total another session changes is left for
-- later, as is a queue with a flow whose gate another session holds. The total is locked first, so no session
-- waits for a queue while its holder waits for a total.
CREATE FUNCTION turnstile.delete_idle_queues(
    in_after_id bigint,
    in_idle_seconds double precision,
    in_limit integer,
    OUT deleted integer,
    OUT next_id bigint
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    idle_since timestamptz := clock_timestamp() - make_interval(secs => in_idle_seconds);
    idle_ids bigint[];
    action_ids bigint[];
    gate_ids bigint[];
    held_ids bigint[];
BEGIN
    deleted := 0;
    SELECT array_agg(q.id) FILTER (
               WHERE q.concurrency_key <> '' AND q.depth = 0 AND q.total_enqueued = q.total_completed
                 AND q.updated_at < idle_since),
           CASE WHEN count(*) = in_limit THEN max(q.id) ELSE 0 END
    INTO idle_ids, next_id
    FROM (SELECT n.id FROM action_queue n WHERE n.id > in_after_id ORDER BY n.id LIMIT in_limit) n
    JOIN turnstile.current_queue q ON q.id = n.id;

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
    gate_ids := ARRAY(
        SELECT g.id FROM gate g
        WHERE g.kind = 'action' AND g.name = ANY (ARRAY(SELECT a.id::text FROM unnest(action_ids) a(id)))
          AND EXISTS (SELECT FROM gate_flow f WHERE f.gate_id = g.id AND f.flow_id = ANY (idle_ids))
        ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED);
    held_ids := ARRAY(
        SELECT s.queue_id FROM turnstile.live_slot s WHERE s.queue_id = ANY (idle_ids)
        UNION ALL
        SELECT w.queue_id FROM waiting w
        WHERE w.queue_id IS NOT NULL AND w.queue_id = ANY (idle_ids) AND EXISTS (SELECT FROM gate)
        UNION ALL
        SELECT f.flow_id FROM gate g JOIN gate_flow f ON f.gate_id = ANY (ARRAY[g.id])
        WHERE g.kind = 'action' AND g.name = ANY (ARRAY(SELECT a.id::text FROM unnest(action_ids) a(id)))
          AND g.id <> ALL (gate_ids) AND f.flow_id = ANY (idle_ids));
    -- Checked again under the lock, with a newer snapshot: an admission may have come first.
    idle_ids := ARRAY(
        SELECT q.id FROM turnstile.current_queue q JOIN action a ON a.id = ANY (ARRAY[q.action_id])
        LEFT JOIN key_override k
               ON k.action_id = ANY (ARRAY[q.action_id])
               AND k.concurrency_key = ANY (ARRAY[q.concurrency_key])
        WHERE q.id = ANY (idle_ids)
          AND q.depth = 0 AND q.held = 0 AND q.total_enqueued = q.total_completed
          AND q.updated_at < idle_since
          AND q.max_concurrent IS NOT DISTINCT FROM CASE WHEN k.has_limit THEN k.max_concurrent
                                                         ELSE a.max_concurrent END
          AND q.paused = a.paused
          -- The counters say the same; if they are wrong, the rows decide.
          AND (SELECT w.place FROM turnstile.first_waiting(q.id, q.head_id, q.heads, 1) w) IS NULL
          AND q.id <> ALL (held_ids));

    IF cardinality(gate_ids) > 0 THEN
        WITH flow AS (
            DELETE FROM gate_flow f USING action_queue q, gate g
            WHERE q.id = ANY (idle_ids)
              AND g.kind = 'action' AND g.name = ANY (ARRAY[q.action_id::text])
              AND f.gate_id = ANY (ARRAY[g.id]) AND f.flow_id = ANY (ARRAY[q.id])
            RETURNING f.id
        )
        DELETE FROM flow_turn t USING flow f WHERE t.line_id = ANY (ARRAY[f.id]);
    END IF;
    WITH deleted_queue AS (
        DELETE FROM action_queue q WHERE q.id = ANY (idle_ids) RETURNING q.id, q.action_id
    ),
    deleted_state AS (
        DELETE FROM queue_state s WHERE s.queue_id = ANY (idle_ids)
        RETURNING s.queue_id, s.total_completed, s.updated_at
    ),
    -- Pruning locks the queues that it counts in this table, so no row can appear again.
    pruned AS (
        DELETE FROM pruned_count p WHERE p.queue_id = ANY (idle_ids) RETURNING p.queue_id, p.executions
    )
    UPDATE deleted_queue_total t
    SET executions = t.executions + n.executions, pruned = t.pruned + n.pruned,
        updated_at = greatest(t.updated_at, n.updated_at)
    FROM (
        SELECT g.action_id, sum(s.total_completed) AS executions, coalesce(sum(p.executions), 0) AS pruned,
               max(s.updated_at) AS updated_at
        FROM deleted_queue g
        JOIN deleted_state s ON s.queue_id = g.id
        LEFT JOIN pruned p ON p.queue_id = g.id
        GROUP BY g.action_id
    ) n
    WHERE t.action_id = n.action_id;
    deleted := cardinality(idle_ids);
END
$$;
