-- The statements on API tokens.

-- valid: the tokens that are valid now, and in one row with null columns whether there is any token at all.
SELECT e.exists, t.id, t.name, t.role, t.scope, t.digest,
       extract(epoch FROM t.expires_at - clock_timestamp())::double precision AS seconds_left
FROM (SELECT EXISTS (SELECT FROM ledger.api_token) AS exists) e
LEFT JOIN ledger.api_token t ON t.revoked_at IS NULL AND (t.expires_at > clock_timestamp()) IS NOT FALSE

-- page: all tokens, newest first.
--
-- $1 before this id, $2 only this id, or null, $3 rows
SELECT t.id, t.name, t.role, t.scope, t.created_at, t.created_by, t.expires_at, t.last_used_at, t.revoked_at,
       t.revoked_by,
       CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked'
            WHEN t.expires_at <= clock_timestamp() THEN 'expired' ELSE 'valid' END AS state
FROM ledger.api_token t
WHERE t.id < $1 AND ($2::bigint IS NULL OR t.id = $2)
ORDER BY t.id DESC LIMIT $3

-- create: stores a token, with the change in the audit log; returns its id.
--
-- $1 to $3 name, address and channel of the caller, $4 name, $5 role, $6 scope, $7 digest, $8 seconds until
-- it expires, or null
WITH created AS (
    INSERT INTO ledger.api_token AS t (name, role, scope, digest, created_by, expires_at)
    VALUES ($4, $5, $6, $7, $1, clock_timestamp() + make_interval(secs => $8))
    RETURNING t.*
),
noted AS (
    INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)
    SELECT left($1::text, 200), left($2::text, 200), $3::text, 'created', 'token', t.id::text, '{}',
           jsonb_strip_nulls(jsonb_build_object(
               'name', t.name, 'role', t.role, 'scope', t.scope, 'expires_at', t.expires_at))
    FROM created t
)
SELECT t.id FROM created t

-- revoke: revokes a token for good, with the change in the audit log. False: there is no such token; true
-- also if it was revoked before.
--
-- $1 to $3 name, address and channel of the caller, $4 id
WITH revoked AS (
    UPDATE ledger.api_token t SET revoked_at = clock_timestamp(), revoked_by = $1
    WHERE t.id = $4 AND t.revoked_at IS NULL
    RETURNING t.*
),
noted AS (
    INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)
    SELECT left($1::text, 200), left($2::text, 200), $3::text, 'revoked', 'token', t.id::text,
           jsonb_strip_nulls(jsonb_build_object(
               'name', t.name, 'role', t.role, 'scope', t.scope, 'expires_at', t.expires_at)),
           '{}'
    FROM revoked t
)
SELECT EXISTS (SELECT FROM ledger.api_token t WHERE t.id = $4)

-- note_file_change: that the token file of an executor was changed.
--
-- $1 to $3 name, address and channel of the caller, $4 host of the executor, $5 tokens before, $6 tokens
-- after
INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)
VALUES ($1, $2, $3, 'changed', 'token_file', $4, $5, $6)

-- note_use: that a token was used now, at most once a minute over all executors. A row that another session
-- has locked is skipped: no request waits for it.
--
-- $1 id
UPDATE ledger.api_token t SET last_used_at = clock_timestamp()
FROM (
    SELECT u.id FROM ledger.api_token u
    WHERE u.id = $1 AND (u.last_used_at < clock_timestamp() - interval '1 min') IS NOT FALSE
    FOR NO KEY UPDATE SKIP LOCKED
) d
WHERE t.id = d.id

-- audit_log_rights: whether the role of this session may change or delete rows of the audit log, and whether
-- the database has a valid token. One row.
SELECT current_user::text AS role,
       has_table_privilege('ledger.audit_log', 'UPDATE, DELETE, TRUNCATE') AS may_change,
       EXISTS (
           SELECT FROM ledger.api_token t
           WHERE t.revoked_at IS NULL AND (t.expires_at > clock_timestamp()) IS NOT FALSE
       ) AS has_tokens
