-- depose: let no turn of the present leader commit any more, as a takeover does. It loads again then.
UPDATE ledger.leadership l
SET epoch = greatest(l.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
    executor = 'turnstile.testing', taken_at = clock_timestamp()
RETURNING l.epoch
