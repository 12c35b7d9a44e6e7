-- audit_log: what operators did, newest first.
--
-- $1 before this id, $2 kind of subject, $3 subject, $4 action, $5 verb, $6 actor, $7 from this instant on,
-- $8 before this instant, $9 prefixes of actions, $10 rows; null: no condition
SELECT l.id, l.recorded_at, l.actor AS user, l.address, l.channel, l.verb, l.subject_kind, l.subject,
       l.action_ref, l.before::text AS before, l.after::text AS after
FROM audit_log l
WHERE l.id < $1
  AND ($2::text IS NULL OR l.subject_kind = $2)
  AND ($3::text IS NULL OR l.subject = $3)
  AND ($4::text IS NULL OR l.action_ref = $4)
  AND ($5::text IS NULL OR l.verb = $5)
  AND ($6::text IS NULL OR l.actor = $6)
  AND ($7::timestamptz IS NULL OR l.recorded_at >= $7)
  AND ($8::timestamptz IS NULL OR l.recorded_at < $8)
  AND ($9::text[] IS NULL OR l.action_ref ^@ ANY ($9))
ORDER BY l.id DESC LIMIT $10

-- audit_log_rights: whether the role of this session may change or delete rows of the audit log, and whether
-- the database has a valid token. One row.
SELECT current_user::text AS role,
       has_table_privilege('ledger.audit_log', 'UPDATE, DELETE, TRUNCATE') AS may_change,
       EXISTS (
           SELECT FROM ledger.api_token t
           WHERE t.revoked_at IS NULL AND (t.expires_at > clock_timestamp()) IS NOT FALSE
       ) AS has_tokens
