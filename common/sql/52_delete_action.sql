-- delete_action: deletes an action that has nothing waiting or running, or whose waiting executions may be
-- cancelled.
--
-- Its row stays, marked as deleted: executions refer to it, and a new definition of the same name restores
-- it. The queues are locked first and then the executions with a slot, as everywhere, so nothing is admitted,
-- granted, claimed or finished while the function counts and decides. An admission that waited for these
-- queues checks the action again (see admit).
--
-- `waiting` and `running` are the counts, null if there is no such action. It was deleted if nothing ran and
-- at most `in_cancel_max` waited; then `ended` are the cancelled executions.
CREATE FUNCTION turnstile.delete_action(
    in_action_ref text,
    in_cancel_max integer,
    in_reason text,
    in_changed_by text DEFAULT NULL,
    in_caller jsonb DEFAULT NULL,
    OUT waiting bigint,
    OUT running bigint,
    OUT deleted boolean,
    OUT ended turnstile.moved[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    found_id bigint;
    queue_ids bigint[];
    held_ids bigint[];
    waiting_ids bigint[];
BEGIN
    deleted := false;
    SELECT a.id INTO found_id FROM action a
    WHERE a.ref = in_action_ref AND a.deleted_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    queue_ids := ARRAY(SELECT q.id FROM action_queue q WHERE q.action_id = found_id);
    PERFORM 1 FROM action_queue q WHERE q.id = ANY (queue_ids) ORDER BY q.id FOR NO KEY UPDATE;
    PERFORM turnstile.lock_gates(queue_ids);
    -- A claim locks the slot, and a finish the execution.
    held_ids := ARRAY(SELECT s.execution_id FROM turnstile.live_slot s WHERE s.queue_id = ANY (queue_ids));
    PERFORM 1 FROM execution e WHERE e.id = ANY (held_ids) ORDER BY e.id FOR NO KEY UPDATE;
    PERFORM 1 FROM slot s WHERE s.execution_id = ANY (held_ids) ORDER BY s.execution_id FOR NO KEY UPDATE;

    SELECT count(*) INTO running FROM slot s
    WHERE s.execution_id = ANY (held_ids) AND s.claimed_at IS NOT NULL AND s.finished_at IS NULL;
    SELECT sum(n.waiting) INTO waiting
    FROM (
        SELECT coalesce(sum(q.depth), 0) AS waiting FROM turnstile.current_queue q
        WHERE q.id = ANY (queue_ids)
        UNION ALL
        SELECT count(*) FROM waiting w WHERE w.queue_id = ANY (queue_ids)
        UNION ALL
        SELECT count(*) FROM delayed d WHERE d.queue_id = ANY (queue_ids)
        UNION ALL
        SELECT count(*) FROM slot s
        WHERE s.execution_id = ANY (held_ids) AND s.claimed_at IS NULL AND s.finished_at IS NULL
    ) n;
    IF running > 0 OR waiting > in_cancel_max THEN
        RETURN;
    END IF;

    waiting_ids := ARRAY(
        SELECT turnstile.id_of_place(w.place) FROM turnstile.current_queue q
        CROSS JOIN LATERAL turnstile.first_waiting(q.id, q.head_id, q.heads, q.depth) w
        WHERE q.id = ANY (queue_ids)
        UNION ALL
        SELECT turnstile.id_of_place(w.place) FROM waiting w WHERE w.queue_id = ANY (queue_ids)
        UNION ALL
        SELECT d.execution_id FROM delayed d WHERE d.queue_id = ANY (queue_ids)
        UNION ALL
        SELECT s.execution_id FROM slot s
        WHERE s.execution_id = ANY (held_ids) AND s.claimed_at IS NULL AND s.finished_at IS NULL
    );
    ended := ARRAY(
        SELECT c::turnstile.moved
        FROM turnstile.cancel(waiting_ids, array_fill(in_reason, ARRAY[cardinality(waiting_ids)])) c
    );
    PERFORM turnstile.note_caller(in_caller, in_changed_by);
    PERFORM turnstile.record_change('action', in_action_ref, turnstile.definition_of(a), '{}')
    FROM action a WHERE a.id = found_id;
    IF in_caller IS NOT NULL THEN
        PERFORM turnstile.log_cancels(ended, in_reason);
    END IF;
    DELETE FROM key_override k WHERE k.action_id = found_id;
    UPDATE action a SET deleted_at = clock_timestamp(), updated_at = clock_timestamp() WHERE a.id = found_id;
    PERFORM turnstile.reroute(ARRAY[found_id]);
    deleted := true;
END
$$;
