-- executions: newest first, those before the cursor that pass the filters.
--
-- A page looks at no more than $12 executions and carries about $11 bytes of documents, so that no filter makes
-- it slow and no content makes it large: it may come out short. The first row carries in `next_before` where
-- the next page goes on (null: nothing is left), and may be otherwise empty.
--
-- To be planned for its values (`plan_cache_mode`): a plan for any filter reads everything.
--
-- $1 before id, $2 action id, $3 statuses, $4 concurrency key, $5 created from, $6 created before, $7 worker id,
-- $8 metadata keys, $9 their values, $10 rows, $11 bytes, $12 rows looked at
WITH
-- Only one branch runs, and only as far as the page needs. Executions that hold a slot or are not due are
-- found where they live, however long the record and the line are.
candidate AS NOT MATERIALIZED (
    (
        SELECT e.id FROM execution e
        WHERE $2::bigint IS NULL AND NOT coalesce($3::text[] <@ '{scheduled,running,delayed}', false)
          AND e.id < $1::bigint
        ORDER BY e.id DESC LIMIT $12::integer
    )
    UNION ALL
    (
        SELECT e.id FROM execution e
        WHERE $2::bigint IS NOT NULL AND NOT coalesce($3::text[] <@ '{scheduled,running,delayed}', false)
          AND e.action_id = $2::bigint AND e.id < $1::bigint
        ORDER BY e.id DESC LIMIT $12::integer
    )
    UNION ALL
    (
        SELECT live.execution_id
        FROM (SELECT s.execution_id FROM slot s UNION SELECT d.execution_id FROM delayed d) live
        WHERE coalesce($3::text[] <@ '{scheduled,running,delayed}', false) AND live.execution_id < $1::bigint
        ORDER BY live.execution_id DESC LIMIT $12::integer
    )
),
page AS MATERIALIZED (
    SELECT e.id, a.ref AS action_ref, e.concurrency_key, e.idempotency_key, e.status::text AS status, e.attempt,
           e.parameters::text AS parameters, e.result::text AS result, e.metadata::text AS metadata,
           e.error_type, e.error_message, e.worker_id,
           e.created_at, e.queued_at, e.scheduled_at, e.started_at, e.completed_at, e.run_at, e.expires_at, e.retry_of
    FROM candidate c
    JOIN execution e ON e.id = c.id
    JOIN action a ON a.id = e.action_id
    WHERE ($2::bigint IS NULL OR e.action_id = $2::bigint)
      AND ($3::text[] IS NULL OR e.status::text = ANY ($3::text[]))
      AND ($4::text IS NULL OR e.concurrency_key = $4::text)
      AND ($5::timestamptz IS NULL OR e.created_at >= $5::timestamptz)
      AND ($6::timestamptz IS NULL OR e.created_at < $6::timestamptz)
      AND ($7::text IS NULL OR e.worker_id = $7::text)
      AND (cardinality($8::text[]) = 0 OR NOT EXISTS (
          SELECT FROM unnest($8::text[], $9::text[]) m(key, value)
          WHERE e.metadata ->> m.key IS DISTINCT FROM m.value
      ))
    ORDER BY c.id DESC LIMIT $10::integer + 1
),
weighed AS (
    SELECT p.*, row_number() OVER newest AS rank,
           sum(length(p.parameters) + length(p.metadata) + coalesce(length(p.result), 0)) OVER newest AS bytes
    FROM page p
    WINDOW newest AS (ORDER BY p.id DESC)
),
taken AS (
    SELECT w.* FROM weighed w WHERE w.rank <= $10::integer AND (w.rank = 1 OR w.bytes <= $11::bigint)
),
-- Where the next page goes on: behind the last one taken, or where the look ended.
rest AS (
    SELECT CASE
        WHEN (SELECT count(*) FROM page) > (SELECT count(*) FROM taken) THEN (SELECT min(t.id) FROM taken t)
        ELSE (SELECT CASE WHEN count(*) >= $12::integer THEN min(c.id) END FROM candidate c)
    END AS next_before
)
SELECT r.next_before, t.* FROM rest r LEFT JOIN taken t ON true ORDER BY t.id DESC
