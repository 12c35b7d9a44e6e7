-- permissions: the rights of the database roles of the services and of submitters, where these roles exist.
--
-- turnstile_worker may call the worker's functions (`common.statements` lists them), which run with their
-- owner's rights, and reads no table. turnstile_submitter may submit, and ask what became of a request.
-- turnstile_executor may call every function, and read and write rows, except that it only reads the audit
-- log; it cannot change definitions. May be run at any time.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA turnstile FROM PUBLIC;

DO $$
DECLARE
    worker_functions text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ')
        FROM pg_proc p
        WHERE p.pronamespace = 'turnstile'::regnamespace AND p.proname = ANY (:worker_functions)
    );
    submitter_functions text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ')
        FROM pg_proc p
        WHERE p.pronamespace = 'turnstile'::regnamespace AND p.proname = ANY (:submitter_functions)
    );
    table_owner text := (SELECT tableowner FROM pg_tables
                         WHERE schemaname = 'public' AND tablename = 'execution');
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'turnstile_worker') THEN
        GRANT USAGE ON SCHEMA turnstile TO turnstile_worker;
        EXECUTE 'GRANT EXECUTE ON FUNCTION ' || worker_functions || ' TO turnstile_worker';
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'turnstile_submitter') THEN
        GRANT USAGE ON SCHEMA turnstile TO turnstile_submitter;
        EXECUTE 'GRANT EXECUTE ON FUNCTION ' || submitter_functions || ' TO turnstile_submitter';
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'turnstile_executor') THEN
        GRANT USAGE ON SCHEMA turnstile, public TO turnstile_executor;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA turnstile TO turnstile_executor;
        GRANT SELECT ON ALL TABLES IN SCHEMA turnstile TO turnstile_executor;
        -- The sweeps lock rows through these views, which needs the right to update them.
        GRANT UPDATE ON turnstile.live_slot, turnstile.live_unpublished_completion,
            turnstile.live_unpublished_cancel,
            turnstile.live_early_cancel TO turnstile_executor;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO turnstile_executor;
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO turnstile_executor;
        -- Only `migrate` changes the revision.
        REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM turnstile_executor;
        -- Only `log_operations` adds rows, and only `prune_audit_log` deletes old ones.
        REVOKE INSERT, UPDATE, DELETE ON audit_log, action_change, resource_change FROM turnstile_executor;
        -- Also for tables of later migrations, whether or not the protocol changes with them.
        EXECUTE format(
            'ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA public'
            ' GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO turnstile_executor',
            table_owner
        );
        EXECUTE format(
            'ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA public'
            ' GRANT USAGE, SELECT ON SEQUENCES TO turnstile_executor',
            table_owner
        );
    END IF;
END $$;
