-- audit_log_rights: whether the role of this session may change or delete rows of the audit log, and whether
-- the database has a valid token. One row.
SELECT current_user::text AS role,
       has_table_privilege('ledger.audit_log', 'UPDATE, DELETE, TRUNCATE') AS may_change,
       EXISTS (
           SELECT FROM ledger.api_token t
           WHERE t.revoked_at IS NULL AND (t.expires_at > clock_timestamp()) IS NOT FALSE
       ) AS has_tokens
