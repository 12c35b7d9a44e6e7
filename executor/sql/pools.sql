-- pools: those that somebody who may still renew serves, the longest served first. A worker's account writes its
-- pools itself: of those of one worker the first hundred count, so that no worker crowds out the others.
SELECT p.pool
FROM worker w CROSS JOIN LATERAL unnest(w.pools[1:100]) p(pool)
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL
GROUP BY p.pool ORDER BY min(w.started_at), p.pool LIMIT 1000
