-- audit_tally: how many rows a check looked at, and how many of them are wrong. A check yields one row for each
-- thing that it looks at: its id, whether it is wrong, what was expected and what was found.
SELECT :name AS name, count(*) AS rows, count(*) FILTER (WHERE c.wrong) AS faults FROM (:check) c
