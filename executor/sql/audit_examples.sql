-- audit_examples: the first wrong rows of a check that found some. $8 rows
SELECT c.id, c.expected, c.found FROM (:check) c WHERE c.wrong ORDER BY c.id LIMIT $8
