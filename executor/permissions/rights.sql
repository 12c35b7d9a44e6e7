-- Written from executor/permissions/rights.py by `make reference`.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger, turnstile FROM PUBLIC;

DO $$
DECLARE
    owner text := (SELECT tableowner FROM pg_tables WHERE schemaname = 'ledger' AND tablename = 'execution');
BEGIN
    IF to_regrole('turnstile_executor') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA ledger, turnstile, public TO turnstile_executor;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ledger, turnstile TO turnstile_executor;
        EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA ledger'
            ' GRANT EXECUTE ON FUNCTIONS TO turnstile_executor', owner);
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ledger TO turnstile_executor;
        REVOKE UPDATE, DELETE ON ledger.audit_log FROM turnstile_executor;
        EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA ledger'
            ' GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO turnstile_executor', owner);
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA ledger TO turnstile_executor;
        EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA ledger'
            ' GRANT USAGE, SELECT ON SEQUENCES TO turnstile_executor', owner);
        GRANT SELECT ON public.alembic_version TO turnstile_executor;
    END IF;
END $$;

DO $$
DECLARE
    owner text := (SELECT tableowner FROM pg_tables WHERE schemaname = 'ledger' AND tablename = 'execution');
BEGIN
    IF to_regrole('turnstile_submitter') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA turnstile TO turnstile_submitter;
        GRANT EXECUTE ON FUNCTION turnstile.submit, turnstile.submission TO turnstile_submitter;
    END IF;
END $$;
