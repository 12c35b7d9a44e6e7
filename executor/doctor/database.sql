-- Reads of `executor doctor`, by any role that may connect.

-- surroundings: what the server, the database and the role have, and what a session cannot set. One row.
SELECT quote_ident(d.datname) AS database, quote_ident(session_user) AS role,
       current_setting('server_version') AS version, pg_backend_pid() AS pid,
       pg_is_in_recovery() AS is_standby,
       current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true)::integer, 0) AS connections_max,
       (SELECT sum(s.numbackends)::integer FROM pg_stat_database s) AS connections,
       nullif(d.datconnlimit, -1) AS database_limit, nullif(r.rolconnlimit, -1) AS role_limit,
       d.datcollversion AS collation_version,
       pg_database_collation_actual_version(d.oid) AS library_version
FROM pg_database d JOIN pg_roles r ON r.rolname = session_user
WHERE d.datname = current_database()

-- settings: these settings of the session.
SELECT s.name, current_setting(s.name) AS setting FROM unnest($1::text[]) AS s(name)

-- closed: a right on a table of the ledger that this role lacks, or null.
--
-- $1 the rights on each table, $2 tables with fewer rights, $3 the rights on those
SELECT min(p.privilege || ' on ' || c.oid::regclass::text)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL unnest(
    CASE WHEN n.nspname || '.' || c.relname = ANY ($2::text[]) THEN $3::text[] ELSE $1::text[] END
) p(privilege)
WHERE n.nspname = 'ledger' AND c.relkind IN ('r', 'p')
  AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, p.privilege))

-- dropped: how many dead letters the broker has dropped by a policy, by code.
SELECT d.code, count(*) AS number FROM ledger.dead_letter d
WHERE d.code IN ('maxlen', 'expired') GROUP BY d.code
