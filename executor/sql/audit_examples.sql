-- audit_examples: the first wrong rows of a check that found some. $7 rows
SELECT c.id, c.expected, c.found FROM (:check) c WHERE c.wrong ORDER BY c.id LIMIT $7
