-- present_roles: which of these accounts exist, what their comments say, and which databases name them.
SELECT r.rolname::text AS name,
       shobj_description(r.oid, 'pg_authid') AS comment,
       ARRAY(
           SELECT DISTINCT d.datname::text
           FROM pg_database d CROSS JOIN LATERAL aclexplode(d.datacl) granted
           WHERE granted.privilege_type = 'CONNECT' AND granted.grantee = r.oid
       ) AS databases
FROM pg_roles r
WHERE r.rolname = ANY ($1)
