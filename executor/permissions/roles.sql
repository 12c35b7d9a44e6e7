-- The roles of the services. A statement that cannot take parameters takes settings of the transaction, so
-- that no statement in a server's log shows a name or verifier.

-- server: who is connected to what, and may do what. One row.
SELECT current_database()::text AS database, session_user::text AS "user",
       quote_ident(session_user) AS quoted, to_regclass('ledger.execution') IS NOT NULL AS has_tables,
       (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = session_user) AS may_create

-- present: which of these accounts exist, what their comments say, and which databases name them.
SELECT r.rolname::text AS name,
       shobj_description(r.oid, 'pg_authid') AS comment,
       ARRAY(
           SELECT DISTINCT d.datname::text
           FROM pg_database d CROSS JOIN LATERAL aclexplode(d.datacl) granted
           WHERE granted.privilege_type = 'CONNECT' AND granted.grantee = r.oid
       ) AS databases
FROM pg_roles r
WHERE r.rolname = ANY ($1)

-- note: a row of the audit log about an account.
INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)
VALUES ($1, $2, $3, $4, 'account', $5, '{}', $6)

-- group: a group that holds rights.
DO $$
BEGIN
    -- Of two who set up this database at once, one waits here.
    PERFORM pg_advisory_xact_lock(hashtext('turnstile.setup_permissions'));
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = current_setting('turnstile.group')) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN', current_setting('turnstile.group'));
    END IF;
END $$

-- account: an account in a group, which logs in.
--
-- Without a verifier it keeps its password; one that is to be created must not exist. Rights to connect
-- belong to the account: a group would give them to the accounts of other installations.
DO $$
DECLARE
    role_group text := current_setting('turnstile.group');
    login text := current_setting('turnstile.login');
    verifier text := current_setting('turnstile.verifier');
    purpose text := current_setting('turnstile.purpose');
    present_purpose text;
BEGIN
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
