-- live_workers: the ids of those that take offers.
SELECT array_agg(w.id ORDER BY w.id) FROM worker w
WHERE w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL AND w.lease_expires_at > clock_timestamp()
