-- roles: the groups that hold the rights, and one account that logs in.
--
-- The account's name and verifier come as settings of the transaction, so that no statement in a server's log
-- shows them. An account without a verifier keeps its password; one that is to be created must not exist.
-- Rights to connect belong to the account: a group would give them to the accounts of other installations.
DO $$
DECLARE
    role_group text := current_setting('turnstile.group');
    login text := current_setting('turnstile.login');
    verifier text := current_setting('turnstile.verifier');
    purpose text := current_setting('turnstile.purpose');
    present_purpose text;
BEGIN
    -- Of two who set up this database at once, one waits here.
    PERFORM pg_advisory_xact_lock(hashtext('turnstile.setup_permissions'));
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_group) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN', role_group);
    END IF;
    IF current_setting('turnstile.creates')::boolean THEN
        EXECUTE format('CREATE ROLE %I', login);
    END IF;
    EXECUTE format('ALTER ROLE %I LOGIN NOCREATEDB NOCREATEROLE INHERIT', login);
    IF verifier <> '' THEN
        EXECUTE format('ALTER ROLE %I PASSWORD %L', login, verifier);
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_auth_members m
        WHERE m.roleid = to_regrole(quote_ident(role_group)) AND m.member = to_regrole(quote_ident(login))
    ) THEN
        EXECUTE format('GRANT %I TO %I', role_group, login);
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), login);
    present_purpose := shobj_description(to_regrole(quote_ident(login)), 'pg_authid');
    -- The comment of an operator stays.
    IF purpose <> '' AND coalesce(present_purpose, purpose) LIKE 'Turnstile: %' THEN
        EXECUTE format('COMMENT ON ROLE %I IS %L', login, purpose);
    END IF;
END $$
