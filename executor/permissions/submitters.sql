-- submitters: the group of accounts that may submit in their own transactions. An operator grants it.
DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('turnstile.setup_permissions'));
    IF to_regrole('turnstile_submitter') IS NULL THEN
        CREATE ROLE turnstile_submitter NOLOGIN;
    END IF;
END $$
