-- dashboard_workers: the workers that are there, counted, and the pools that they serve. One row.
SELECT now() AS read_at,
       count(*) FILTER (WHERE w.lease_expires_at > now() AND w.draining_at IS NULL) AS live,
       count(*) FILTER (WHERE w.lease_expires_at > now() AND w.draining_at IS NOT NULL) AS draining,
       count(*) FILTER (WHERE w.lease_expires_at <= now()) AS overdue,
       coalesce(sum(w.concurrency) FILTER (WHERE w.lease_expires_at > now() AND w.draining_at IS NULL), 0) AS places,
       coalesce((
           SELECT array_agg(DISTINCT p.pool)
           FROM worker l CROSS JOIN LATERAL unnest(l.pools) p(pool)
           WHERE l.lost_at IS NULL AND l.stopped_at IS NULL AND l.draining_at IS NULL AND l.lease_expires_at > now()
       ), '{}') AS pools
FROM worker w
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
