-- unserved: actions whose code no live worker of their pool has, though the pool has some; as `turnstile.is_unserved`
-- says for one. A worker's account writes its row itself: its pools and actions are counted up to a bound.
WITH live AS MATERIALIZED (
    SELECT w.pools[1:100] AS pools, w.served_refs[1:10000] AS refs FROM worker w
    WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
      AND w.lease_expires_at > clock_timestamp()
),
worked AS (
    -- Who does not say what it serves counts for everything of its pools.
    SELECT p.pool FROM live l CROSS JOIN LATERAL unnest(l.pools) p(pool)
    GROUP BY p.pool HAVING bool_and(l.refs IS NOT NULL)
),
served AS (
    SELECT DISTINCT p.pool, r.ref
    FROM live l CROSS JOIN LATERAL unnest(l.pools) p(pool) CROSS JOIN LATERAL unnest(l.refs) r(ref)
)
SELECT a.ref FROM action a JOIN worked w ON w.pool = a.pool
WHERE a.deleted_at IS NULL AND a.runner = 'python' AND a.entrypoint IS NULL
  AND NOT EXISTS (SELECT FROM served s WHERE s.pool = a.pool AND s.ref = a.ref)
LIMIT 10000
