-- The history of a run, written by triggers in the transactions that make it. Append-only.

CREATE SCHEMA history;

CREATE TABLE history.log (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    txid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    session text NOT NULL DEFAULT current_setting('application_name'),
    table_name text NOT NULL,
    step text NOT NULL,
    queue_id bigint,
    execution_id bigint,
    attempt integer,
    worker_id text,
    old jsonb,
    new jsonb
);

CREATE FUNCTION history.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'history is append-only';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON history.log
    FOR EACH STATEMENT EXECUTE FUNCTION history.refuse();

-- note(key, column, ...): log the row before and after, with the columns named. `key` is the column that the
-- table's `id` is logged as, or empty; `line` for rows of `waiting`, whose line is a queue unless they name
-- their queue.
CREATE FUNCTION history.note() RETURNS trigger
LANGUAGE plpgsql
-- The role that makes the change needs no right to the history.
SECURITY DEFINER
SET search_path = history, pg_temp
AS $$
DECLARE
    before jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    after jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    known jsonb := coalesce(after, before);
    key text := TG_ARGV[0];
BEGIN
    INSERT INTO history.log (table_name, step, queue_id, execution_id, attempt, worker_id, old, new)
    SELECT TG_TABLE_NAME, lower(TG_OP),
           (known ->> CASE WHEN key = 'queue_id' THEN 'id'
                           WHEN key = 'line' AND known ->> 'queue_id' IS NULL THEN 'line_id'
                            ELSE 'queue_id' END)::bigint,
           CASE key WHEN 'line' THEN turnstile.id_of_place((known ->> 'place')::bigint)
                    WHEN 'execution_id' THEN (known ->> 'id')::bigint
                    ELSE (known ->> 'execution_id')::bigint END,
           (known ->> 'attempt')::integer,
           known ->> CASE key WHEN 'worker_id' THEN 'id' ELSE 'worker_id' END,
           (SELECT jsonb_object_agg(k, before -> k) FROM unnest(TG_ARGV[1:]) k WHERE before IS NOT NULL),
           (SELECT jsonb_object_agg(k, after -> k) FROM unnest(TG_ARGV[1:]) k WHERE after IS NOT NULL);
    RETURN NULL;
END $$;

-- When each change of a definition was committed: until then, the earlier definition is in force for other
-- sessions.
CREATE TABLE history.committed_change (
    kind text NOT NULL,
    changed_at timestamptz NOT NULL,
    committed_at timestamptz NOT NULL
);

CREATE FUNCTION history.note_commit() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = history, pg_temp
AS $$
BEGIN
    INSERT INTO history.committed_change VALUES (NEW.subject_kind, NEW.recorded_at, clock_timestamp());
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER committed AFTER INSERT ON audit_log
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.subject_kind IN ('action', 'resource', 'pool'))
    EXECUTE FUNCTION history.note_commit();

CREATE TRIGGER logged_inserts AFTER INSERT OR DELETE ON execution
    FOR EACH ROW EXECUTE FUNCTION history.note('execution_id', 'status', 'result', 'error_type',
                                               'error_message', 'metadata');
-- A row that has ended must never change, so every change to it is logged.
CREATE TRIGGER logged_updates AFTER UPDATE ON execution
    FOR EACH ROW WHEN (
        OLD.completed_at IS NOT NULL
        OR (OLD.status, OLD.attempt, OLD.worker_id, OLD.queue_id) IS DISTINCT FROM
           (NEW.status, NEW.attempt, NEW.worker_id, NEW.queue_id))
    EXECUTE FUNCTION history.note('execution_id', 'status', 'result', 'error_type', 'error_message',
                                  'metadata');
CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON slot
    FOR EACH ROW EXECUTE FUNCTION history.note('', 'finished_at', 'gate_ids');
CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON waiting
    FOR EACH ROW EXECUTE FUNCTION history.note('line', 'queue_id');
CREATE TRIGGER logged_inserts AFTER INSERT OR DELETE ON action_queue
    FOR EACH ROW EXECUTE FUNCTION history.note('queue_id', 'action_id', 'max_concurrent', 'paused');
CREATE TRIGGER logged_updates AFTER UPDATE OF max_concurrent, paused ON action_queue
    FOR EACH ROW WHEN ((OLD.max_concurrent, OLD.paused) IS DISTINCT FROM (NEW.max_concurrent, NEW.paused))
    EXECUTE FUNCTION history.note('queue_id', 'action_id', 'max_concurrent', 'paused');
CREATE TRIGGER logged_inserts AFTER INSERT ON action
    FOR EACH ROW EXECUTE FUNCTION history.note('', 'id', 'ref', 'pool', 'runner', 'entrypoint');
CREATE TRIGGER logged_updates AFTER UPDATE OF pool, runner, entrypoint ON action
    FOR EACH ROW WHEN ((OLD.pool, OLD.runner, OLD.entrypoint) IS DISTINCT FROM (NEW.pool, NEW.runner,
                                                                                NEW.entrypoint))
    EXECUTE FUNCTION history.note('', 'id', 'ref', 'pool', 'runner', 'entrypoint');
CREATE TRIGGER logged AFTER UPDATE OF paused ON worker_pool
    FOR EACH ROW WHEN (OLD.paused IS DISTINCT FROM NEW.paused)
    EXECUTE FUNCTION history.note('', 'name', 'paused');
CREATE TRIGGER logged_inserts AFTER INSERT OR DELETE ON worker
    FOR EACH ROW EXECUTE FUNCTION history.note(
        'worker_id', 'renewed_at', 'lost_at', 'stopped_at', 'draining_at', 'pools', 'concurrency',
        'served_refs');
CREATE TRIGGER logged_updates AFTER UPDATE OF lost_at, stopped_at, draining_at ON worker
    FOR EACH ROW WHEN (
        (OLD.lost_at, OLD.stopped_at, OLD.draining_at) IS DISTINCT FROM (NEW.lost_at, NEW.stopped_at,
                                                                         NEW.draining_at))
    EXECUTE FUNCTION history.note(
        'worker_id', 'renewed_at', 'lost_at', 'stopped_at', 'draining_at', 'pools', 'concurrency',
        'served_refs');
CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON attempt
    FOR EACH ROW EXECUTE FUNCTION history.note('', 'outcome');

-- What was there before, if the log begins late: which workers serve what, and which pools are paused.
INSERT INTO history.log (table_name, step, new)
SELECT 'action', 'insert', to_jsonb(a) FROM action a;
INSERT INTO history.log (table_name, step, new)
SELECT 'worker_pool', 'insert', to_jsonb(p) FROM worker_pool p WHERE p.paused;
INSERT INTO history.log (table_name, step, worker_id, new)
SELECT 'worker', 'insert', w.id, to_jsonb(w) FROM worker w
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL;
