-- roles: the groups that hold the rights, and one account of each that logs in.
--
-- The account's name and verifier come as settings of the transaction, so that no statement in a server's log
-- shows them. May be said again at any time.
DO $$
DECLARE
    role_group text := current_setting('turnstile.group');
    login text := current_setting('turnstile.login');
BEGIN
    -- Roles belong to the server: of two who set up at once, one waits here.
    PERFORM pg_advisory_xact_lock(hashtext('turnstile.setup_permissions'));
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_group) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN', role_group);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) THEN
        EXECUTE format('CREATE ROLE %I', login);
    END IF;
    EXECUTE format(
        'ALTER ROLE %I LOGIN NOCREATEDB NOCREATEROLE INHERIT PASSWORD %L',
        login, current_setting('turnstile.verifier')
    );
    EXECUTE format('GRANT %I TO %I', role_group, login);
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), role_group);
END $$
