-- Where sweeps begin to read, so that their cost does not grow under an old snapshot (P15): bounds below
-- which no live row is left. The watchdog raises them from time to time, past what was deleted.
--
-- A live row below its bound would be lost to the sweeps (P7). So a bound is raised only when every
-- transaction that could still commit a row below it has ended, and what is left below it by then moves up,
-- or keeps the bound down. The clock decides nothing: it may be set back or ahead at any time.
--
-- Slots, unpublished messages and early cancels have tickets of one sequence, and sweeps read all of them.
-- Delays and deadlines may be many and far in the future, so they are read in the order of their instants.

-- live_slot and the others: all rows, found without those that were deleted long ago. A limited search takes
-- them by ticket, because in another order it would read what was deleted.
CREATE VIEW turnstile.ticket_bound AS
SELECT w.first_ticket FROM public.slot_window w ORDER BY w.version DESC LIMIT 1;

CREATE VIEW turnstile.live_slot AS
SELECT * FROM public.slot s WHERE s.ticket >= (SELECT b.first_ticket FROM turnstile.ticket_bound b);

CREATE VIEW turnstile.live_unpublished_completion AS
SELECT * FROM public.unpublished_completion u
WHERE u.ticket >= (SELECT b.first_ticket FROM turnstile.ticket_bound b);

CREATE VIEW turnstile.live_unpublished_cancel AS
SELECT * FROM public.unpublished_cancel u
WHERE u.ticket >= (SELECT b.first_ticket FROM turnstile.ticket_bound b);

CREATE VIEW turnstile.live_early_cancel AS
SELECT * FROM public.early_cancel c WHERE c.ticket >= (SELECT b.first_ticket FROM turnstile.ticket_bound b);

-- due_bound: sweeps read `delayed` and `expiring` from `first_at` to now or `next_at`, whichever is later.
--
-- What is inserted there, or gets an earlier instant, gets `next_at` at the earliest, in a transaction that
-- has written before: that is what move_due_window relies on. `next_at` lies in the past, so this delays
-- nothing, unless the clock was set back; then `execution.run_at` and `execution.expires_at` say whether it
-- is due.
CREATE VIEW turnstile.due_bound AS
SELECT w.first_at, w.next_at FROM public.due_window w ORDER BY w.version DESC LIMIT 1;

-- is_writing: whether a transaction with one of these ids is open: from the first on, and before the second.
CREATE FUNCTION turnstile.is_writing(in_first_xid bigint, in_next_xid bigint)
RETURNS boolean
LANGUAGE sql
:settings
AS $$
    SELECT EXISTS (
        SELECT FROM pg_snapshot_xip(pg_current_snapshot()) x
        WHERE x::text::bigint >= in_first_xid AND x::text::bigint < in_next_xid)
$$;

-- move_slot_window: raises the bound of the tickets to those that were drawn before the last call, and gives
-- older rows new tickets. Does nothing within `in_seconds` after that call, or `in_busy_seconds` where many
-- tickets were drawn since: sweeps read what was deleted since the bound, and at a high rate that is most of
-- their cost. Slots that are held for long would be renewed that often too, so it waits if they are many.
-- Returns the number of renewed tickets.
--
-- Tickets are drawn in transactions that have written before. A foreign transaction that writes and stays
-- open for hours must not stop the bound: after as many calls as take `in_seconds_max`, longer than any of
-- our statements, it is not waited for, and never again.
CREATE FUNCTION turnstile.move_slot_window(
    in_seconds double precision DEFAULT 30,
    in_seconds_max double precision DEFAULT 600,
    in_busy_seconds double precision DEFAULT 2,
    in_busy_tickets integer DEFAULT 2000
)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    -- Read before this transaction has an id: whatever drew one of these tickets has a lower id. A sequence
    -- of which nothing was drawn shows its first value.
    drawn_ticket bigint := (SELECT t.last_value - (NOT t.is_called)::integer FROM slot_ticket_seq t);
    newest slot_window;
    now_at timestamptz := clock_timestamp();
    is_waited_for boolean;
    renewed integer;
    remaining_ticket bigint;
BEGIN
    SELECT w.* INTO newest FROM slot_window w ORDER BY w.version DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND OR newest.moved_at BETWEEN now_at - make_interval(secs => in_busy_seconds) AND now_at
                    AND in_seconds > 0 THEN
        RETURN 0;
    END IF;
    -- A deferred move is repeated every `in_seconds`, as `deferrals` counts on.
    IF newest.moved_at BETWEEN now_at - make_interval(secs => in_seconds) AND now_at
       AND (newest.deferrals > 0 OR drawn_ticket - newest.next_ticket < greatest(in_busy_tickets, 4 * (
                SELECT count(*) FROM slot s
                WHERE s.ticket >= newest.first_ticket AND s.ticket < newest.next_ticket)))
    THEN
        RETURN 0;
    END IF;
    is_waited_for := newest.deferrals * in_seconds < in_seconds_max;
    IF is_waited_for AND turnstile.is_writing(newest.foreign_xid, newest.next_xid) THEN
        UPDATE slot_window w SET deferrals = w.deferrals + 1, moved_at = clock_timestamp()
        WHERE w.version = newest.version;
        RETURN 0;
    END IF;
    WITH old_slot AS MATERIALIZED (
        SELECT s.execution_id FROM slot s
        WHERE s.ticket >= newest.first_ticket AND s.ticket < newest.next_ticket
        ORDER BY s.execution_id FOR NO KEY UPDATE SKIP LOCKED
    ),
    slots AS (
        UPDATE slot s SET ticket = DEFAULT FROM old_slot o WHERE s.execution_id = ANY (ARRAY[o.execution_id])
        RETURNING 1
    ),
    old_completion AS MATERIALIZED (
        SELECT u.execution_id FROM unpublished_completion u
        WHERE u.ticket >= newest.first_ticket AND u.ticket < newest.next_ticket
        ORDER BY u.execution_id FOR NO KEY UPDATE SKIP LOCKED
    ),
    completions AS (
        UPDATE unpublished_completion u SET ticket = DEFAULT
        FROM old_completion o WHERE u.execution_id = ANY (ARRAY[o.execution_id])
        RETURNING 1
    ),
    old_cancel AS MATERIALIZED (
        SELECT u.execution_id, u.attempt FROM unpublished_cancel u
        WHERE u.ticket >= newest.first_ticket AND u.ticket < newest.next_ticket
        ORDER BY u.execution_id, u.attempt FOR NO KEY UPDATE SKIP LOCKED
    ),
    cancels AS (
        UPDATE unpublished_cancel u SET ticket = DEFAULT
        FROM old_cancel o WHERE u.execution_id = ANY (ARRAY[o.execution_id]) AND u.attempt = o.attempt
        RETURNING 1
    ),
    old_early_cancel AS MATERIALIZED (
        SELECT c.id FROM early_cancel c
        WHERE c.ticket >= newest.first_ticket AND c.ticket < newest.next_ticket
        ORDER BY c.id FOR NO KEY UPDATE SKIP LOCKED
    ),
    early_cancels AS (
        UPDATE early_cancel c SET ticket = DEFAULT FROM old_early_cancel o WHERE c.id = ANY (ARRAY[o.id])
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM slots) + (SELECT count(*) FROM completions) + (SELECT count(*) FROM cancels)
           + (SELECT count(*) FROM early_cancels)
    INTO renewed;
    -- Another session held these.
    SELECT min(r.ticket) INTO remaining_ticket
    FROM (
        SELECT min(s.ticket) AS ticket FROM slot s
        WHERE s.ticket >= newest.first_ticket AND s.ticket < newest.next_ticket
        UNION ALL
        SELECT min(u.ticket) FROM unpublished_completion u
        WHERE u.ticket >= newest.first_ticket AND u.ticket < newest.next_ticket
        UNION ALL
        SELECT min(u.ticket) FROM unpublished_cancel u
        WHERE u.ticket >= newest.first_ticket AND u.ticket < newest.next_ticket
        UNION ALL
        SELECT min(c.ticket) FROM early_cancel c
        WHERE c.ticket >= newest.first_ticket AND c.ticket < newest.next_ticket
    ) r;
    WITH written AS (
        INSERT INTO slot_window (version, first_ticket, next_ticket, next_xid, foreign_xid, moved_at)
        SELECT newest.version + 1, coalesce(remaining_ticket, newest.next_ticket), drawn_ticket + 1,
               pg_current_xact_id()::text::bigint,
               CASE WHEN is_waited_for THEN newest.foreign_xid ELSE newest.next_xid END, clock_timestamp()
    )
    DELETE FROM slot_window w WHERE w.version = newest.version;
    RETURN renewed;
END
$$;

-- move_due_window: raises `first_at` of due_bound. Does nothing within `in_seconds` after the last call.
-- Returns the number of delays and deadlines that were left below it and moved up.
--
-- An instant becomes the bound in three calls. The first one announces it as `next_at`. The second one takes
-- it as `closing_at`, and gets its transaction id only after it has read it: whatever did not see the
-- announcement has a lower id. The third one, when all transactions with lower ids have ended, finds what
-- they left below, and raises the bound. Announced instants increase, even while the clock is set back.
CREATE FUNCTION turnstile.move_due_window(
    in_seconds double precision DEFAULT 5,
    in_seconds_max double precision DEFAULT 600,
    in_limit integer DEFAULT 1000
)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    newest due_window;
    is_waited_for boolean;
    announced_at timestamptz;
    renewed integer;
    remaining_at timestamptz;
BEGIN
    SELECT w.* INTO newest FROM due_window w ORDER BY w.version DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND
        OR newest.moved_at BETWEEN clock_timestamp() - make_interval(secs => in_seconds) AND clock_timestamp()
    THEN
        RETURN 0;
    END IF;
    is_waited_for := newest.deferrals * in_seconds < in_seconds_max;
    IF is_waited_for AND turnstile.is_writing(newest.foreign_xid, newest.closing_xid) THEN
        UPDATE due_window w SET deferrals = w.deferrals + 1, moved_at = clock_timestamp()
        WHERE w.version = newest.version;
        RETURN 0;
    END IF;
    announced_at := greatest(clock_timestamp(), newest.next_at + interval '1 us');
    -- These are due and cannot be handled yet: a slot is not settled, or another session holds the queue.
    WITH old_delay AS MATERIALIZED (
        SELECT d.execution_id FROM delayed d
        WHERE d.due_at >= newest.first_at AND d.due_at < newest.closing_at
        ORDER BY d.due_at LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    delays AS (
        UPDATE delayed d SET due_at = announced_at FROM old_delay o
        WHERE d.execution_id = ANY (ARRAY[o.execution_id])
        RETURNING 1
    ),
    old_deadline AS MATERIALIZED (
        SELECT x.execution_id FROM expiring x
        WHERE x.expires_at >= newest.first_at AND x.expires_at < newest.closing_at
        ORDER BY x.expires_at LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    deadlines AS (
        UPDATE expiring x SET expires_at = announced_at
        FROM old_deadline o WHERE x.execution_id = ANY (ARRAY[o.execution_id])
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM delays) + (SELECT count(*) FROM deadlines) INTO renewed;
    -- More than the limit, or another session held them.
    remaining_at := least(
        (SELECT min(d.due_at) FROM delayed d
         WHERE d.due_at >= newest.first_at AND d.due_at < newest.closing_at),
        (SELECT min(x.expires_at) FROM expiring x
         WHERE x.expires_at >= newest.first_at AND x.expires_at < newest.closing_at));
    WITH written AS (
        INSERT INTO due_window (version, first_at, closing_at, closing_xid, next_at, foreign_xid, moved_at)
        SELECT newest.version + 1, coalesce(remaining_at, newest.closing_at), newest.next_at,
               pg_current_xact_id()::text::bigint, announced_at,
               CASE WHEN is_waited_for THEN newest.foreign_xid ELSE newest.closing_xid END, clock_timestamp()
    )
    DELETE FROM due_window w WHERE w.version = newest.version;
    RETURN renewed;
END
$$;
