-- restored_state: what a backup, or a restored copy, contains.
--
-- The newest execution says when the state was written, at the latest that the rows prove.
SELECT coalesce(pg_sequence_last_value('execution_id_seq'), 0) AS last_id,
       now() AS at,
       coalesce(
           (SELECT e.created_at FROM execution e ORDER BY e.id DESC LIMIT 1),
           (SELECT max(w.moved_at) FROM due_window w),
           now()
       ) AS newest_at,
       (SELECT count(*) FROM slot s WHERE s.claimed_at IS NOT NULL AND s.finished_at IS NULL) AS running,
       (SELECT count(*) FROM slot s WHERE s.claimed_at IS NULL AND s.finished_at IS NULL) AS offered,
       (SELECT count(*) FROM waiting) AS waiting,
       (SELECT count(*) FROM delayed) AS delayed,
       ARRAY(SELECT a.pool FROM action a UNION SELECT unnest(w.pools) FROM worker w ORDER BY 1) AS pools,
       to_regrole('turnstile_executor') IS NOT NULL AS has_roles

-- service_sessions: the sessions of executors and workers in this database.
SELECT s.pid, s.application_name
FROM pg_stat_activity s
WHERE s.datname = current_database() AND s.application_name ~ '^turnstile (executor|worker)'
ORDER BY s.application_name, s.pid
