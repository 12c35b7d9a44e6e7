-- Every call of the protocol that a service makes, with the types of its parameters and columns, and every
-- row type that comes back. A call is added here and not changed: services of an older version still make it
-- while a newer version is started. It is removed once no version that may run beside this one makes it, as
-- the calls of executors before migration 0013, which stop first. A failing test prints what is to be added.

-- takes int8[], int4[]
-- gives early_ids int8[], granted turnstile.granted[], more_queue_ids int8[], settled_count int4,
--   unknown_ids int8[]
SELECT * FROM turnstile.settle($1, $2);

-- takes int8[]
-- gives granted turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.grant_slots($1);

-- takes int8[], text[]
-- gives action_id int8, action_ref text, attempt int4, execution_id int8, moved_at timestamptz,
--   previous_status text, status text, worker_id text
SELECT * FROM turnstile.cancel($1, $2);

-- takes jsonb
-- gives granted turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.put_actions($1);

-- takes text[], jsonb[], text[], text[], uuid[], uuid[], timestamptz[], float8[], float8[], text[],
--   jsonb[], text[]
-- gives admitted turnstile.admitted[], granted turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- takes int8, int4
-- gives next_id int8, queue_ids int8[]
SELECT * FROM turnstile.drifted_queues($1, $2);

-- takes int8[]
-- gives granted turnstile.granted[], more_queue_ids int8[], repaired turnstile.repaired[]
SELECT * FROM turnstile.repair_queues($1);

-- takes int4, timestamptz
-- gives ended turnstile.moved[], granted turnstile.granted[], more_queue_ids int8[], returned
--   turnstile.moved[]
SELECT * FROM turnstile.reclaim($1, $2);

-- takes float8, int4, int4
-- gives asked turnstile.moved[], ended turnstile.moved[]
SELECT * FROM turnstile.stop_overdue($1, $2, $3);

-- takes int4
-- gives granted turnstile.granted[], more_queue_ids int8[], woken turnstile.moved[]
SELECT * FROM turnstile.wake_due($1);

-- takes int4
-- gives action_id int8, action_ref text, attempt int4, execution_id int8, moved_at timestamptz,
--   previous_status text, status text, worker_id text
SELECT * FROM turnstile.expire_due($1);

-- takes float8, int4
-- gives due_completions int8
SELECT * FROM turnstile.due_completions($1, $2);

-- takes text, float8
-- gives alive bool, draining bool
SELECT * FROM turnstile.renew($1, $2);

-- takes text, float8, text
-- gives alive bool, draining bool
SELECT * FROM turnstile.renew($1, $2, $3);

-- takes text, int8[], int4[], text[], int8[], int4[], text[], jsonb[], text[], text[], text[],
--   float8[]
-- gives claimed turnstile.claimed[], finished turnstile.finished[]
SELECT ARRAY(SELECT c FROM turnstile.claim($1, $2, $3, $4) c) AS claimed,
       ARRAY(SELECT f FROM turnstile.finish($1, $5, $6, $7, $8, $9, $10, $11, $12) f) AS finished;

-- takes text, int8[], int4[]
-- gives execution_id int8
SELECT execution_id FROM turnstile.hand_back($1, $2, $3);

-- takes jsonb
-- gives ref text, stored jsonb
SELECT ref, to_jsonb(a) AS stored FROM turnstile.register_actions($1) a;

-- takes text, text, text, int4, text[], int4, float8
-- gives register_worker void
SELECT turnstile.register_worker($1, $2, $3, $4, $5, $6, $7);

-- takes text
-- gives sign_off void
SELECT turnstile.sign_off($1);

-- takes
-- gives code text, detail text, duplicate bool, execution_id int8, queue_position int8, status text
SELECT (NULL::turnstile.admitted).*;

-- takes
-- gives action_id int8, action_ref text, attempt int4, entrypoint jsonb, execution_id int8,
--   failures int4, parameters jsonb, retry_delay_seconds float8, retry_factor float8, retry_jitter
--   float8, retry_max_attempts int4, retry_max_delay_seconds float8, runner text, timeout_seconds
--   float8, traceparent text, verdict text
SELECT (NULL::turnstile.claimed).*;

-- takes
-- gives attempt int4, ended_at timestamptz, execution_id int8, status text, verdict text
SELECT (NULL::turnstile.finished).*;

-- takes
-- gives action_ref text, attempt int4, execution_id int8, pool text, traceparent text
SELECT (NULL::turnstile.granted).*;

-- takes
-- gives action_id int8, action_ref text, attempt int4, execution_id int8, moved_at timestamptz,
--   previous_status text, status text, worker_id text
SELECT (NULL::turnstile.moved).*;

-- takes
-- gives depth int8, depth_before int8, queue_id int8
SELECT (NULL::turnstile.repaired).*;

-- takes text, int8[], int4[], text[], int8[], int4[], text[], jsonb[], text[], text[], text[],
--   float8[], int8[]
-- gives claimed turnstile.claimed[], finished turnstile.finished[]
SELECT ARRAY(SELECT c FROM turnstile.claim($1, $2, $3, $4) c) AS claimed,
       ARRAY(SELECT f FROM turnstile.finish($1, $5, $6, $7, $8, $9, $10, $11, $12, $13) f) AS finished;

-- takes text, int8[], int4[], int8[], text[]
-- gives append_logs bool
SELECT turnstile.append_logs($1, $2, $3, $4, $5);

-- takes int8[], text[], text
-- gives granted turnstile.granted[], more_queue_ids int8[], retried turnstile.retried[]
SELECT * FROM turnstile.retry($1, $2, $3);

-- takes jsonb, text
-- gives granted turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.put_actions($1, $2);

-- takes text, int4, text, text
-- gives deleted bool, ended turnstile.moved[], running int8, waiting int8
SELECT * FROM turnstile.delete_action($1, $2, $3, $4);

-- takes text
-- gives drain_worker bool
SELECT turnstile.drain_worker($1);

-- takes
-- gives action_ref text, code text, detail text, duplicate bool, execution_id int8, previous_status
--   text, queue_position int8, retry_of int8, status text
SELECT (NULL::turnstile.retried).*;

-- takes float8, int4
-- gives prune_workers int4
SELECT turnstile.prune_workers($1, $2);

-- takes float8, int4
-- gives clean_webhooks int4
SELECT turnstile.clean_webhooks($1, $2);

-- takes int8, float8, int4
-- gives given_up int4, next_id int8
SELECT * FROM turnstile.give_up_webhooks($1, $2, $3);

-- takes int8, int8, float8, int8, float8, int4
-- gives next_action_id int8, next_id int8, pruned int4
SELECT * FROM turnstile.prune($1, $2, $3, $4, $5, $6);

-- takes text, float8, int4, int4
-- gives claimed turnstile.webhook[], next_origin text
SELECT * FROM turnstile.claim_webhooks($1, $2, $3, $4);

-- takes int8[], int4
-- gives left_count int8, pending_ids int8[], replayed_ids int8[]
SELECT * FROM turnstile.replay_webhooks($1, $2);

-- takes
-- gives attempts int4, claimed_until timestamptz, event_id uuid, execution_id int8, url text
SELECT (NULL::turnstile.webhook).*;

-- takes text, int8[], int4[], text[], int8[], int4[], text[], jsonb[], text[], text[], text[],
--   float8[], int8[]
-- gives claimed turnstile.claimed[], finished turnstile.finished[]
SELECT ARRAY(SELECT f FROM turnstile.finish($1, $5, $6, $7, $8, $9, $10, $11, $12, $13) f) AS finished,
       ARRAY(SELECT c FROM turnstile.claim($1, $2, $3, $4) c) AS claimed;

-- takes int8[]
-- gives delete_dead_letters int4
SELECT turnstile.delete_dead_letters($1);

-- takes jsonb, bytea[]
-- gives store_dead_letters text
SELECT turnstile.store_dead_letters($1, $2);

-- takes float8, int8, int8, int4
-- gives by_age int4, by_bytes int4, by_count int4
SELECT * FROM turnstile.prune_dead_letters($1, $2, $3, $4);

-- takes int4
-- gives execution_id int8, id int8, reason text
SELECT * FROM turnstile.known_early_cancels($1);

-- takes float8, int4
-- gives id int8, messages bytea
SELECT * FROM turnstile.overdue_early_cancels($1, $2);

-- takes text, int4
-- gives counts int4[], due_ats timestamptz[], next_origin text, origins text[]
SELECT * FROM turnstile.due_webhooks($1, $2);

-- takes text, float8, int4, int4, text[], int4[]
-- gives claimed turnstile.webhook[], claimed_origins text[], next_origin text
SELECT * FROM turnstile.claim_webhooks($1, $2, $3, $4, $5, $6);

-- takes int8, float8, int4
-- gives deleted int4, next_id int8
SELECT * FROM turnstile.delete_idle_queues($1, $2, $3);

-- takes int4, int8[], int8[], text[]
-- gives blocked_ids int8[], blocked_queue_ids int8[], free_queue_ids int8[], moves
--   turnstile.moved[]
SELECT * FROM turnstile.cancel_unless_held($3, $4, $1, $2);

-- takes int4, int8[], text[], jsonb[], text[], text[], uuid[], uuid[], timestamptz[], float8[],
--   float8[], text[], jsonb[], text[]
-- gives admitted turnstile.admitted[], blocked_queue_ids int8[], free_queue_ids int8[], granted
--   turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.admit($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, in_wait_ms => $1,
                              in_suspect_ids => $2);

-- takes int4, int8[], int8[], int4[], text[]
-- gives blocked_ids int8[], blocked_queue_ids int8[], callback_count int4, early_ids int8[],
--   free_queue_ids int8[], granted turnstile.granted[], more_queue_ids int8[], settled_count int4,
--   settled_ids int8[], unknown_ids int8[]
SELECT * FROM turnstile.settle($3, $4, $1, $2, $5);

-- takes int4, int8[], int8[]
-- gives blocked_queue_ids int8[], free_queue_ids int8[], granted turnstile.granted[],
--   more_queue_ids int8[]
SELECT * FROM turnstile.grant_slots($3, $1, $2);

-- takes int4, int8[], int8[], text[], text
-- gives blocked_queue_ids int8[], free_queue_ids int8[], granted turnstile.granted[],
--   more_queue_ids int8[], retried turnstile.retried[]
SELECT * FROM turnstile.retry($3, $4, $5, $1, $2);

-- takes text, int8[], int4[], text[], int8[], int4[], text[], jsonb[], text[], text[], text[],
--   float8[], int8[], int4, int8[]
-- gives claimed turnstile.claimed[], finished turnstile.finished[]
SELECT ARRAY(
           SELECT f FROM turnstile.finish($1, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) f
       ) AS finished,
       ARRAY(SELECT c FROM turnstile.claim($1, $2, $3, $4, $14, $15) c) AS claimed;

-- takes int4
-- gives rollouts_due int8
SELECT turnstile.rollouts_due($1);

-- takes int8, int4
-- gives changed int4, granted turnstile.granted[], looked_at int4, more_queue_ids int8[]
SELECT * FROM turnstile.roll_out($1, $2);

-- takes int8[], int4[]
-- gives withhold_offers int8
SELECT turnstile.withhold_offers($1, $2);

-- takes float8
-- gives looked_at timestamptz, offered int8, pool text
SELECT * FROM turnstile.due_pools($1);

-- takes float8, timestamptz, text[], int8[], int8[], int4
-- gives action_ref text, attempt int4, execution_id int8, pool text, traceparent text,
--   waited_seconds float8
SELECT * FROM turnstile.missing_offers($1, $2, $3, $4, $5, $6);

-- takes text, text, text, int4, text[], int4, float8, text[]
-- gives register_worker void
SELECT turnstile.register_worker($1, $2, $3, $4, $5, $6, $7, $8);

-- takes int8, int4
-- gives next_id int8, queue_ids int8[]
SELECT * FROM turnstile.grantable_queues($1, $2);

-- takes float8, int4
-- gives attempt int4, execution_id int8, worker_id text
SELECT * FROM turnstile.due_cancels($1, $2);

-- takes int8[], int4[]
-- gives cancels_published void
SELECT turnstile.cancels_published($1, $2);

-- takes bool
-- gives clamp_future_instants int8
SELECT turnstile.clamp_future_instants($1);

-- takes int8[], text[], text[], uuid[], bytea[], float8[], int4
-- gives store_early_cancels int4
SELECT turnstile.store_early_cancels($1, $2, $3, $4, $5, $6, $7);

-- takes int8[]
-- gives delete_early_cancels void
SELECT turnstile.delete_early_cancels($1);

-- takes int8[], timestamptz[], text[], int4[], text[], float8[]
-- gives record_webhooks int8
SELECT * FROM turnstile.record_webhooks($1, $2, $3, $4, $5, $6);

-- takes
-- gives move_slot_window int4
SELECT turnstile.move_slot_window();

-- takes
-- gives move_due_window int4
SELECT turnstile.move_due_window();

-- takes text, text, text, int4, text[], int4, float8, text[], int4
-- gives register_worker void
SELECT turnstile.register_worker($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- takes float8, timestamptz, text[], int8[], int8[], int4, int8[]
-- gives action_ref text, attempt int4, execution_id int8, pool text, traceparent text,
--   waited_seconds float8
SELECT * FROM turnstile.missing_offers($1, $2, $3, $4, $5, $6, $7);

-- takes text, text, jsonb, text
-- gives action_found bool, granted turnstile.granted[], key_found bool, more_queue_ids int8[]
SELECT * FROM turnstile.set_key($1, $2, $3, $4);

-- takes jsonb, text
-- gives put_resource int8
SELECT * FROM turnstile.put_resource($1, $2);

-- takes text, text
-- gives deleted bool, held int8, used_by text[], users int8, waiting int8
SELECT * FROM turnstile.delete_resource($1, $2);

-- takes int4, int8[], text[], jsonb[], text[], text[], uuid[], uuid[], timestamptz[], float8[],
--   float8[], text[], jsonb[], text[], int2[], bool[]
-- gives admitted turnstile.admitted[], blocked_queue_ids int8[], free_queue_ids int8[], granted
--   turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.admit($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, in_wait_ms => $1,
                              in_suspect_ids => $2, in_priorities => $15, in_may_be_urgent => $16);

-- takes int4
-- gives granted turnstile.granted[], more_queue_ids int8[], remaining bool
SELECT * FROM turnstile.advance_gates($1);

-- takes
-- gives granted turnstile.granted[], has_rates bool, more_queue_ids int8[], next_seconds float8
SELECT * FROM turnstile.pass_rates();

-- takes int4
-- gives tidy_gates void
SELECT turnstile.tidy_gates($1);

-- takes int8
-- gives skip_ids void
SELECT turnstile.skip_ids($1);

-- takes
-- gives restart_windows void
SELECT turnstile.restart_windows();

-- takes int4, int8[], int8[], text[], jsonb
-- gives blocked_ids int8[], blocked_queue_ids int8[], free_queue_ids int8[], moves
--   turnstile.moved[]
SELECT * FROM turnstile.cancel_unless_held($3, $4, $1, $2, $5);

-- takes int4, int8[], int8[], text[], text, jsonb
-- gives blocked_queue_ids int8[], free_queue_ids int8[], granted turnstile.granted[],
--   more_queue_ids int8[], retried turnstile.retried[]
SELECT * FROM turnstile.retry($3, $4, $5, $1, $2, $6);

-- takes text, text, jsonb, jsonb
-- gives action_found bool, granted turnstile.granted[], key_found bool, more_queue_ids int8[]
SELECT * FROM turnstile.set_key($1, $2, $3, in_caller => $4);

-- takes jsonb, jsonb
-- gives put_resource int8
SELECT * FROM turnstile.put_resource($1, in_caller => $2);

-- takes text, jsonb
-- gives deleted bool, held int8, used_by text[], users int8, waiting int8
SELECT * FROM turnstile.delete_resource($1, in_caller => $2);

-- takes jsonb, text, text, jsonb
-- gives log_bulk void
SELECT turnstile.log_bulk($1, $2, $3, $4);

-- takes jsonb, jsonb
-- gives granted turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.put_actions($1, in_caller => $2);

-- takes text, int4, text, jsonb
-- gives deleted bool, ended turnstile.moved[], running int8, waiting int8
SELECT * FROM turnstile.delete_action($1, $2, $3, in_caller => $4);

-- takes text, jsonb
-- gives drain_worker bool
SELECT turnstile.drain_worker($1, $2);

-- takes float8, int4
-- gives prune_audit_log int4
SELECT turnstile.prune_audit_log($1, $2);

-- takes int8[], text, bool, jsonb
-- gives delete_dead_letters int4
SELECT turnstile.delete_dead_letters($1, $2, $3, $4);

-- takes int8[], int4, jsonb
-- gives left_count int8, pending_ids int8[], replayed_ids int8[]
SELECT * FROM turnstile.replay_webhooks($1, $2, $3);

-- takes text, text, text[], bytea, float8, jsonb
-- gives create_token int8
SELECT turnstile.create_token($1, $2, $3, $4, $5, $6);

-- takes int8
-- gives note_token_use void
SELECT turnstile.note_token_use($1);

-- takes int8, jsonb
-- gives revoke_token bool
SELECT turnstile.revoke_token($1, $2);
-- takes text, int8[], int4[], bool
-- gives more_queue_ids int8[], repaired int4, totals jsonb, workers text
SELECT * FROM turnstile.refresh_pools($1, $2, $3, $4);

-- takes int4
-- gives prune_pools int4
SELECT turnstile.prune_pools($1);

-- takes text, text, text, int4, text[], int4, float8, text[], int4, text, float8, float8, text[],
--   jsonb
-- gives register_worker void
SELECT turnstile.register_worker($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- takes int4, int8[], int8[], text[], jsonb[], text[], text[], uuid[], uuid[], timestamptz[],
--   float8[], float8[], text[], jsonb[], text[], int2[]
-- gives admitted turnstile.admitted[], blocked_queue_ids int8[], free_queue_ids int8[], granted
--   turnstile.granted[], more_queue_ids int8[]
SELECT * FROM turnstile.admit_submissions($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $1,
                                          $2);

-- takes int8, int4, int8, text[], float8
-- gives newest_ticket int8, request_ids uuid[], requests text[], tickets int8[], traceparents
--   text[]
SELECT * FROM turnstile.next_submissions($1, $2, $3, $4, $5);

-- takes int8, int4, int8, text[], float8, bool
-- gives entering text[], newest_ticket int8, oldest_ticket int8, request_ids uuid[], requests text[],
--   tickets int8[], traceparents text[]
SELECT * FROM turnstile.next_submissions($1, $2, $3, $4, $5, $6);

-- takes int8, int4, int8, text[], float8, bool, int8
-- gives entering text[], newest_ticket int8, oldest_ticket int8, request_ids uuid[], requests text[],
--   tickets int8[], traceparents text[]
SELECT * FROM turnstile.next_submissions($1, $2, $3, $4, $5, $6, $7);

-- takes int8[], text[], text[]
-- gives reject_submissions void
SELECT turnstile.reject_submissions($1, $2, $3);

-- takes text, int8[], int4[], float8[], float8[], text[]
-- gives report_progress bool
SELECT turnstile.report_progress($1, $2, $3, $4, $5, $6);

-- takes text
-- gives start_drain void
SELECT turnstile.start_drain($1);

-- takes float8, int4
-- gives prune_submission_outcomes int4
SELECT turnstile.prune_submission_outcomes($1, $2);

-- takes uuid
-- gives code text, execution_id int8, message text, status text
SELECT * FROM turnstile.submission($1);

-- takes
-- gives pg_advisory_lock void
SELECT pg_advisory_lock(turnstile.submissions_lock('busy'));

-- takes
-- gives pg_advisory_unlock bool
SELECT pg_advisory_unlock(turnstile.submissions_lock('busy'));

-- takes text
-- gives pg_advisory_unlock bool
SELECT pg_advisory_unlock(turnstile.submissions_lock($1));

-- takes text
-- gives pg_try_advisory_lock bool
SELECT pg_try_advisory_lock(turnstile.submissions_lock($1));

-- takes text, jsonb, text, text, int4, timestamptz, float8, float8, text, jsonb, text
-- gives submit uuid
SELECT turnstile.submit(action_ref => $1, parameters => $2, idempotency_key => $3, concurrency_key => $4,
                        priority => $5, run_at => $6, timeout => make_interval(secs => $7),
                        ttl => make_interval(secs => $8), callback_url => $9, metadata => $10,
                        traceparent => $11);

-- takes
-- gives schema_revision text
SELECT turnstile.schema_revision();

-- takes text, text[]
-- gives contents jsonb, judges jsonb, version text
SELECT * FROM turnstile.read_schemas($1, $2);

-- takes text, int8[], int4[], text[], int8[], int4[], text[], jsonb[], text[], text[], text[],
--   float8[], int8[], int4, int8[]
-- gives claimed turnstile.claimed, finished turnstile.finished
SELECT finished, claimed
FROM turnstile.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15);

-- takes jsonb, text, text, text, jsonb, jsonb
-- gives log_operation void
SELECT turnstile.log_operation($1, $2, $3, $4, $5, $6);

-- takes
-- gives gate text, gate_id int8, new_depth int8, new_held int8, old_depth int8, old_held int8
SELECT * FROM turnstile.repair_gates();

-- takes jsonb, jsonb
-- gives put_pool int8
SELECT * FROM turnstile.put_pool($1, in_caller => $2);
