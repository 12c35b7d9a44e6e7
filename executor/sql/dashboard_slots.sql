-- dashboard_slots: held slots by queue, as two arrays side by side: one row, however many queues there are.
-- What holds slots is as many as the limits in use, whatever waits.
SELECT coalesce(array_agg(h.queue_id), '{}') AS queue_ids, coalesce(array_agg(h.held), '{}') AS held
FROM (SELECT s.queue_id, count(*) AS held FROM slot s GROUP BY s.queue_id) h
