-- delete: what tests leave behind once every execution has ended.
SELECT turnstile.prune_action(a.id, 0, 0, 0, 0, 1000000) FROM action a;
DELETE FROM dead_letter;
DELETE FROM submission_outcome;
DELETE FROM early_cancel;
DELETE FROM webhook_delivery;
