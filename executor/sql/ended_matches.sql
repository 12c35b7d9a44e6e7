-- ended_matches: executions that have ended and pass the filters, oldest first: who asks for many again asks in the
-- order in which they first came.
--
-- A page looks at no more than $11 executions. The first row carries in `next_id` behind which id the next page
-- starts (null: nothing is left), and may be otherwise empty.
--
-- What was made under the key $13, or is a retry of that, is passed over: a call that is repeated must not ask again
-- for what its first time asked for. So many generations are looked at; without a key, none.
--
-- To be planned for its values (`plan_cache_mode`).
--
-- $1 after id, $2 action id, $3 statuses, $4 concurrency key, $5 created from, $6 created before, $7 worker id,
-- $8 metadata keys, $9 their values, $10 rows, $11 rows looked at, $12 up to id,
-- $13 idempotency key, $14 generations
WITH
candidate AS MATERIALIZED (
    (
        SELECT e.id FROM execution e
        WHERE $2::bigint IS NULL AND e.id > $1::bigint AND e.id <= $12::bigint
        ORDER BY e.id LIMIT $11::integer
    )
    UNION ALL
    (
        SELECT e.id FROM execution e
        WHERE $2::bigint IS NOT NULL AND e.action_id = $2::bigint AND e.id > $1::bigint AND e.id <= $12::bigint
        ORDER BY e.id LIMIT $11::integer
    )
),
page AS MATERIALIZED (
    SELECT e.id, e.status::text AS status
    FROM candidate c
    JOIN execution e ON e.id = c.id
    WHERE e.completed_at IS NOT NULL
      AND ($3::text[] IS NULL OR e.status::text = ANY ($3::text[]))
      AND ($4::text IS NULL OR e.concurrency_key = $4::text)
      AND ($5::timestamptz IS NULL OR e.created_at >= $5::timestamptz)
      AND ($6::timestamptz IS NULL OR e.created_at < $6::timestamptz)
      AND ($7::text IS NULL OR e.worker_id = $7::text)
      AND (cardinality($8::text[]) = 0 OR NOT EXISTS (
          SELECT FROM unnest($8::text[], $9::text[]) m(key, value)
          WHERE e.metadata ->> m.key IS DISTINCT FROM m.value
      ))
      AND ($13::text IS NULL OR e.retry_of IS NULL OR NOT EXISTS (
          WITH RECURSIVE line(retry_of, idempotency_key, generation) AS (
              SELECT e.retry_of, e.idempotency_key, 1
              UNION ALL
              SELECT o.retry_of, o.idempotency_key, l.generation + 1
              FROM line l JOIN execution o ON o.id = l.retry_of
              WHERE l.generation < $14::integer
          )
          SELECT FROM line l WHERE l.idempotency_key = $13::text || '/' || l.retry_of
      ))
    ORDER BY e.id LIMIT $10::integer + 1
),
taken AS (
    SELECT p.* FROM page p ORDER BY p.id LIMIT $10::integer
),
-- Where the next page goes on: behind the last one taken, or where the look ended.
rest AS (
    SELECT CASE
        WHEN (SELECT count(*) FROM page) > $10::integer THEN (SELECT max(t.id) FROM taken t)
        ELSE (SELECT CASE WHEN count(*) >= $11::integer THEN max(c.id) END FROM candidate c)
    END AS next_id
)
SELECT r.next_id, t.id, t.status FROM rest r LEFT JOIN taken t ON true ORDER BY t.id
