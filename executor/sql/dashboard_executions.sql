-- dashboard_executions: how these executions stand; by primary key, as many as are looked at.
-- $1 ids
SELECT e.id, e.status::text AS status, e.attempt FROM execution e WHERE e.id = ANY ($1::bigint[])
