-- live_tokens: the tokens that are valid now, and in one row with null columns whether there is any token at
-- all.
SELECT e.exists, t.id, t.name, t.role, t.scope, t.digest,
       extract(epoch FROM t.expires_at - clock_timestamp())::double precision AS seconds_left
FROM (SELECT EXISTS (SELECT FROM api_token) AS exists) e
LEFT JOIN api_token t ON t.revoked_at IS NULL AND (t.expires_at > clock_timestamp()) IS NOT FALSE

-- tokens: all tokens, newest first.
--
-- $1 before this id, $2 only this id, or null, $3 rows
SELECT t.id, t.name, t.role, t.scope, t.created_at, t.created_by, t.expires_at, t.last_used_at, t.revoked_at,
       t.revoked_by,
       CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked'
            WHEN t.expires_at <= clock_timestamp() THEN 'expired' ELSE 'valid' END AS state
FROM api_token t
WHERE t.id < $1 AND ($2::bigint IS NULL OR t.id = $2)
ORDER BY t.id DESC LIMIT $3
