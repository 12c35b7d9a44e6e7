-- dashboard_slots: held slots by queue. What holds slots is as many as the limits in use, whatever waits.
SELECT s.queue_id, count(*) AS held FROM slot s GROUP BY s.queue_id
