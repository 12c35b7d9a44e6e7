-- grants: what the two services' database roles may do, where those roles exist.
--
-- turnstile_worker calls the worker's functions, which run with their owner's rights, and sees no table.
-- turnstile_executor calls every function, and reads and writes rows; it can change no definition.
-- What a worker may call is listed in `common.statements`. May be said again at any time.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA turnstile FROM PUBLIC;

DO $$
DECLARE
    worker_functions text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ')
        FROM pg_proc p
        WHERE p.pronamespace = 'turnstile'::regnamespace AND p.proname = ANY (:worker_functions)
    );
    table_owner text := (SELECT tableowner FROM pg_tables WHERE schemaname = 'public' AND tablename = 'execution');
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'turnstile_worker') THEN
        GRANT USAGE ON SCHEMA turnstile TO turnstile_worker;
        EXECUTE 'GRANT EXECUTE ON FUNCTION ' || worker_functions || ' TO turnstile_worker';
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'turnstile_executor') THEN
        GRANT USAGE ON SCHEMA turnstile, public TO turnstile_executor;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA turnstile TO turnstile_executor;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO turnstile_executor;
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO turnstile_executor;
        -- Which revision this is, `migrate` alone decides.
        REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM turnstile_executor;
        -- A later migration's tables too, whether or not it comes with another protocol.
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
