-- The rights of the groups of accounts, where these exist. May be run at any time; `executor migrate` and
-- `executor setup-permissions` do.
--
-- turnstile_executor reads and writes the rows of the ledger, except that it only adds rows to the audit log;
-- `prune_audit_log` deletes old ones with the rights of its owner. It cannot change definitions of tables.
-- turnstile_submitter may submit, and ask what became of a request. A worker has no account here.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger, turnstile FROM PUBLIC;

DO $$
DECLARE
    table_owner text := (SELECT tableowner FROM pg_tables
                         WHERE schemaname = 'ledger' AND tablename = 'execution');
BEGIN
    IF to_regrole('turnstile_submitter') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA turnstile TO turnstile_submitter;
        GRANT EXECUTE ON FUNCTION turnstile.submit, turnstile.submission TO turnstile_submitter;
    END IF;
    IF to_regrole('turnstile_executor') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA ledger, turnstile, public TO turnstile_executor;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ledger, turnstile TO turnstile_executor;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ledger TO turnstile_executor;
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA ledger TO turnstile_executor;
        REVOKE UPDATE, DELETE ON ledger.audit_log FROM turnstile_executor;
        -- Only `migrate` changes the revision.
        IF to_regclass('public.alembic_version') IS NOT NULL THEN
            GRANT SELECT ON public.alembic_version TO turnstile_executor;
        END IF;
        -- Also for the tables of later migrations.
        EXECUTE format(
            'ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA ledger'
            ' GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO turnstile_executor',
            table_owner
        );
        EXECUTE format(
            'ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA ledger'
            ' GRANT USAGE, SELECT ON SEQUENCES TO turnstile_executor',
            table_owner
        );
        EXECUTE format(
            'ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA ledger'
            ' GRANT EXECUTE ON FUNCTIONS TO turnstile_executor',
            table_owner
        );
    END IF;
END $$;
