-- present_roles: which of these accounts exist, what their comments say, and which databases name them.
--
-- Earlier versions wrote no comment; they granted the right to connect to the group of the account.
SELECT r.rolname::text AS name,
       shobj_description(r.oid, 'pg_authid') AS comment,
       ARRAY(
           SELECT DISTINCT d.datname::text
           FROM pg_database d CROSS JOIN LATERAL aclexplode(d.datacl) granted
           WHERE granted.privilege_type = 'CONNECT'
             AND (granted.grantee = r.oid OR granted.grantee IN (
                 SELECT m.roleid FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
                 WHERE m.member = r.oid AND g.rolname = ANY ($2)))
       ) AS databases
FROM pg_roles r
WHERE r.rolname = ANY ($1)
