-- release: end the session whose lock shows that a leader lives, so that an executor takes over at once.
SELECT pg_terminate_backend(l.pid) FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.classid = 1953853038 AND l.objid = 1 AND l.objsubid = 2 AND l.granted
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
