-- pools: those that somebody who may still renew serves.
SELECT DISTINCT unnest(pools) AS pool FROM worker WHERE lost_at IS NULL AND stopped_at IS NULL
