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

-- note(key, column, ...): log the row before and after, with the columns named. `key` is the column that the table's
-- `id` is logged as, or empty.
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
    SELECT CASE key WHEN 'gate line' THEN key ELSE TG_TABLE_NAME END, lower(TG_OP),
           (known ->> CASE key WHEN 'queue_id' THEN 'id' WHEN 'line' THEN 'line_id' ELSE 'queue_id' END)::bigint,
           CASE WHEN key IN ('line', 'gate line') THEN turnstile.id_of_place((known ->> 'place')::bigint)
                    WHEN key = 'execution_id' THEN (known ->> 'id')::bigint
                    ELSE (known ->> 'execution_id')::bigint END,
           (known ->> 'attempt')::integer,
           known ->> CASE key WHEN 'worker_id' THEN 'id' ELSE 'worker_id' END,
           (SELECT jsonb_object_agg(k, before -> k) FROM unnest(TG_ARGV[1:]) k WHERE before IS NOT NULL),
           (SELECT jsonb_object_agg(k, after -> k) FROM unnest(TG_ARGV[1:]) k WHERE after IS NOT NULL);
    RETURN NULL;
END $$;

CREATE TRIGGER logged_inserts AFTER INSERT OR DELETE ON execution
    FOR EACH ROW EXECUTE FUNCTION history.note('execution_id', 'status', 'result', 'error_type', 'error_message', 'metadata');
-- A row that has ended must never change, so every change to it is logged.
CREATE TRIGGER logged_updates AFTER UPDATE ON execution
    FOR EACH ROW WHEN (
        OLD.completed_at IS NOT NULL
        OR (OLD.status, OLD.attempt, OLD.worker_id, OLD.queue_id) IS DISTINCT FROM
           (NEW.status, NEW.attempt, NEW.worker_id, NEW.queue_id))
    EXECUTE FUNCTION history.note('execution_id', 'status', 'result', 'error_type', 'error_message', 'metadata');
CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON slot
    FOR EACH ROW EXECUTE FUNCTION history.note('', 'finished_at');
-- The lines of the queues, and, under another name, those of later gates.
CREATE TRIGGER logged_inserts AFTER INSERT OR UPDATE ON waiting
    FOR EACH ROW WHEN (NEW.queue_id IS NULL) EXECUTE FUNCTION history.note('line');
CREATE TRIGGER logged_deletes AFTER DELETE ON waiting
    FOR EACH ROW WHEN (OLD.queue_id IS NULL) EXECUTE FUNCTION history.note('line');
CREATE TRIGGER gate_lines_logged_inserts AFTER INSERT ON waiting
    FOR EACH ROW WHEN (NEW.queue_id IS NOT NULL) EXECUTE FUNCTION history.note('gate line');
CREATE TRIGGER gate_lines_logged_deletes AFTER DELETE ON waiting
    FOR EACH ROW WHEN (OLD.queue_id IS NOT NULL) EXECUTE FUNCTION history.note('gate line');
CREATE TRIGGER logged_inserts AFTER INSERT OR DELETE ON action_queue
    FOR EACH ROW EXECUTE FUNCTION history.note('queue_id', 'max_concurrent', 'paused');
CREATE TRIGGER logged_updates AFTER UPDATE OF max_concurrent, paused ON action_queue
    FOR EACH ROW WHEN ((OLD.max_concurrent, OLD.paused) IS DISTINCT FROM (NEW.max_concurrent, NEW.paused))
    EXECUTE FUNCTION history.note('queue_id', 'max_concurrent', 'paused');
CREATE TRIGGER logged_inserts AFTER INSERT OR DELETE ON worker
    FOR EACH ROW EXECUTE FUNCTION history.note('worker_id', 'renewed_at', 'lost_at', 'stopped_at');
CREATE TRIGGER logged_updates AFTER UPDATE OF lost_at, stopped_at ON worker
    FOR EACH ROW WHEN ((OLD.lost_at, OLD.stopped_at) IS DISTINCT FROM (NEW.lost_at, NEW.stopped_at))
    EXECUTE FUNCTION history.note('worker_id', 'renewed_at', 'lost_at', 'stopped_at');
CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON attempt
    FOR EACH ROW EXECUTE FUNCTION history.note('', 'outcome');
