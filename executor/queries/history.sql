-- Reads what executions did, by action and minute: the rows of `ledger.action_minute`.

-- until: the end of the last minute whose rows the leader has written.
SELECT date_trunc('minute', now() - interval '3 s', 'UTC')

-- history: adds up minutes: one row per point, one per action, and one of all. In the first two one of
-- `point` and `action_ref` is null, in the last one both.
--
-- $1 from, $2 until, $3 duration of a point, $4 only this action, $5 prefixes of actions; null: all
WITH found AS (
    SELECT date_bin(make_interval(secs => $3), m.at, $1) AS point, m.*
    FROM ledger.action_minute m
    WHERE m.at >= $1 AND m.at < $2 AND ($4::text IS NULL OR m.action_ref = $4)
      AND ($5::text[] IS NULL OR m.action_ref ^@ ANY ($5))
)
SELECT f.point, f.action_ref, sum(f.admitted) AS admitted, sum(f.started) AS started,
       sum(f.completed) AS completed, sum(f.failed) AS failed, sum(f.timeout) AS timeout,
       sum(f.cancelled) AS cancelled, sum(f.expired) AS expired, sum(f.abandoned) AS abandoned,
       sum(f.slot_seconds) AS slot_seconds, sum(f.waiting)::text AS waiting, sum(f.running)::text AS running
FROM found f GROUP BY GROUPING SETS ((f.point), (f.action_ref), ())
