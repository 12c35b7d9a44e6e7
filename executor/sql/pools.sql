-- pools: those that somebody who may still renew serves; of those that claim to serve very many, some.
SELECT DISTINCT unnest(pools) AS pool FROM worker WHERE lost_at IS NULL AND stopped_at IS NULL LIMIT 1000
