-- API tokens. Only digests are stored; creation and revocation are recorded in the audit log with their
-- author.

-- token_fields: what the audit log shows of a token.
CREATE FUNCTION turnstile.token_fields(in_token api_token)
RETURNS jsonb
LANGUAGE sql
STABLE
AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'name', in_token.name, 'role', in_token.role, 'scope', in_token.scope, 'expires_at',
        in_token.expires_at))
$$;

-- create_token: stores a token that expires in `in_seconds`; null: never.
CREATE FUNCTION turnstile.create_token(
    in_name text, in_role text, in_scope text[], in_digest bytea, in_seconds double precision, in_caller jsonb
)
RETURNS bigint
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    created api_token;
BEGIN
    INSERT INTO api_token (name, role, scope, digest, created_at, created_by, expires_at)
    VALUES (in_name, in_role, in_scope, in_digest, clock_timestamp(), in_caller ->> 'name',
            clock_timestamp() + make_interval(secs => in_seconds))
    RETURNING * INTO created;
    PERFORM turnstile.note_caller(in_caller);
    PERFORM turnstile.log_operations('created', 'token', ARRAY[created.id::text], NULL, NULL,
                                     ARRAY[turnstile.token_fields(created)]);
    RETURN created.id;
END
$$;

-- revoke_token: revokes a token for good. False: there is no such token; true also if it was revoked before.
CREATE FUNCTION turnstile.revoke_token(in_id bigint, in_caller jsonb)
RETURNS boolean
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    revoked api_token;
BEGIN
    UPDATE api_token t SET revoked_at = clock_timestamp(), revoked_by = in_caller ->> 'name'
    WHERE t.id = in_id AND t.revoked_at IS NULL
    RETURNING t.* INTO revoked;
    IF FOUND THEN
        PERFORM turnstile.note_caller(in_caller);
        PERFORM turnstile.log_operations('revoked', 'token', ARRAY[in_id::text], NULL,
                                         ARRAY[turnstile.token_fields(revoked)], NULL);
        RETURN true;
    END IF;
    RETURN EXISTS (SELECT FROM api_token t WHERE t.id = in_id);
END
$$;

-- note_token_use: stores that a token was used now, at most once a minute over all executors. A row that
-- another session holds is skipped: no request waits for it.
CREATE FUNCTION turnstile.note_token_use(in_id bigint)
RETURNS void
LANGUAGE sql
:settings
AS $$
    UPDATE api_token t SET last_used_at = clock_timestamp()
    FROM (
        SELECT u.id FROM api_token u
        WHERE u.id = in_id AND (u.last_used_at < clock_timestamp() - interval '1 min') IS NOT FALSE
        FOR NO KEY UPDATE SKIP LOCKED
    ) d
    WHERE t.id = d.id;
$$;
