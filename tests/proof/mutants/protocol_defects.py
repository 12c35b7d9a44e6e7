"""Defects of the SQL functions: guards, locks, counters and order."""

# ruff: noqa: E501  (quoted lines are as long as they are)

from typing import Final

from tests.proof.mutants.defect import Defect

_SQL: Final = "common/sql"
_TESTS: Final = "tests/integration/protocol/test"

PROTOCOL_DEFECTS: Final = (
    Defect(
        name="a finish does not name its worker",
        file=f"{_SQL}/31_finish.sql",
        before="s.attempt = r.attempt AND s.worker_id = in_worker_id\n",
        after="s.attempt = r.attempt\n",
        caught_by=(f"{_TESTS}_attempts.py",),
    ),
    Defect(
        name="a finish needs no live lease",
        file=f"{_SQL}/31_finish.sql",
        before="lease_live := FOUND;",
        after="lease_live := true;",
        caught_by=(f"{_TESTS}_attempts.py",),
    ),
    Defect(
        name="a claim does not name its attempt",
        file=f"{_SQL}/30_claim.sql",
        before="s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt\n          AND s.claimed_at IS NULL",
        after="s.execution_id = ANY (ARRAY[c.id])\n          AND s.claimed_at IS NULL",
        caught_by=(f"{_TESTS}_attempts.py",),
    ),
    Defect(
        name="a lease is revoked beside a claim in progress",
        file=f"{_SQL}/62_reclaim.sql",
        before="        FOR UPDATE SKIP LOCKED\n",
        after="        FOR NO KEY UPDATE SKIP LOCKED\n",
        caught_by=(f"{_TESTS}_races.py",),
    ),
    Defect(
        name="a claim sets no deadline for the attempt",
        file=f"{_SQL}/30_claim.sql",
        before="overdue_at = claimed_now + make_interval(secs => e.timeout_seconds)",
        after="overdue_at = NULL",
        caught_by=(f"{_TESTS}_reclaim.py",),
    ),
    Defect(
        name="a retry survives a cancel request",
        file=f"{_SQL}/31_finish.sql",
        before="r.due_at IS NOT NULL AND e.cancel_requested_at IS NULL",
        after="r.due_at IS NOT NULL",
        caught_by=(f"{_TESTS}_attempts.py",),
    ),
    Defect(
        name="a grant does not lock its queue",
        file=f"{_SQL}/10_grant.sql",
        before="    blocked_queue_ids := turnstile.lock_queues(in_queue_ids, in_wait_ms, in_suspect_ids);\n",
        after="    blocked_queue_ids := '{}';\n",
        caught_by=(f"{_TESTS}_concurrency.py", f"{_TESTS}_races.py"),
    ),
    Defect(
        name="execution ids are drawn before the lock",
        file=f"{_SQL}/20_admit.sql",
        before="    blocked_queue_ids := turnstile.lock_queues(queue_ids, in_wait_ms, in_suspect_ids);\n"
        "    tickets := ARRAY(SELECT nextval('execution_id_seq')"
        " FROM generate_series(1, cardinality(in_action_refs)));\n",
        after="    tickets := ARRAY(SELECT nextval('execution_id_seq')"
        " FROM generate_series(1, cardinality(in_action_refs)));\n"
        "    blocked_queue_ids := turnstile.lock_queues(queue_ids, in_wait_ms, in_suspect_ids);\n",
        caught_by=(f"{_TESTS}_concurrency.py",),
    ),
    Defect(
        name="a paused queue is granted",
        file=f"{_SQL}/10_grant.sql",
        before="CASE WHEN n.paused THEN 0\n                         ELSE ",
        after="CASE WHEN false THEN 0\n                         ELSE ",
        caught_by=(f"{_TESTS}_grant.py",),
    ),
    Defect(
        name="the tail of the queue is granted",
        file=f"{_SQL}/10_grant.sql",
        before="                ORDER BY queued.execution_id LIMIT s.take\n",
        after="                ORDER BY queued.execution_id DESC LIMIT s.take\n",
        caught_by=(f"{_TESTS}_grant.py",),
    ),
    Defect(
        name="a grant has the attempt of the grant before it",
        file=f"{_SQL}/10_grant.sql",
        before="e.attempt + 1 AS attempt",
        after="greatest(e.attempt, 1) AS attempt",
        caught_by=(f"{_TESTS}_grant.py", f"{_TESTS}_attempts.py"),
    ),
    Defect(
        name="a slot is released without its attempt",
        file=f"{_SQL}/40_settle.sql",
        before="WHERE s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt AND s.finished_at IS NOT NULL",
        after="WHERE s.execution_id = ANY (ARRAY[c.id]) AND s.finished_at IS NOT NULL",
        caught_by=(f"{_TESTS}_settle.py",),
    ),
    Defect(
        name="a slot is released before its attempt has ended",
        file=f"{_SQL}/40_settle.sql",
        before="s.attempt = c.attempt AND s.finished_at IS NOT NULL",
        after="s.attempt = c.attempt",
        caught_by=(f"{_TESTS}_settle.py",),
    ),
    Defect(
        name="a requeued execution is outside the range that grants read",
        file=f"{_SQL}/32_requeue.sql",
        before="n.returned, -n.returned, n.first_id, 0, 0)",
        after="n.returned, -n.returned, NULL, 0, 0)",
        caught_by=(f"{_TESTS}_attempts.py", f"{_TESTS}_reclaim.py"),
    ),
    Defect(
        name="reclaims are not counted",
        file=f"{_SQL}/32_requeue.sql",
        before="reclaims = e.reclaims + in_counts::integer",
        after="reclaims = e.reclaims",
        caught_by=(f"{_TESTS}_reclaim.py",),
    ),
    Defect(
        name="a reclaim compares leases with the time at which it runs",
        file=f"{_SQL}/62_reclaim.sql",
        before="w.lease_expires_at < coalesce(in_as_of, clock_timestamp())",
        after="w.lease_expires_at < clock_timestamp()",
        caught_by=(f"{_TESTS}_reclaim.py",),
    ),
    Defect(
        name="a reclaimed worker may renew",
        file=f"{_SQL}/50_workers.sql",
        before="WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.stopped_at IS NULL",
        after="WHERE w.id = in_worker_id AND w.stopped_at IS NULL",
        caught_by=(f"{_TESTS}_reclaim.py",),
    ),
    Defect(
        name="a retry is enqueued before its last slot is settled",
        file=f"{_SQL}/61_due.sql",
        before="d.due_at <= woken_at\n"
        "              AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = d.execution_id) IS NULL\n",
        after="d.due_at <= woken_at\n",
        caught_by=(f"{_TESTS}_sweeps.py",),
    ),
    Defect(
        name="a cancel ends a running execution",
        file=f"{_SQL}/33_end_unstarted.sql",
        before="e.status = ANY (:sources_of_expire)",
        after="e.status = ANY (:sources_of_cancel)",
        caught_by=(f"{_TESTS}_cancel.py",),
    ),
    Defect(
        name="a completion without a slot is never published",
        file=f"{_SQL}/33_end_unstarted.sql",
        before="        WHERE b.status IN ('queued', 'delayed')\n",
        after="        WHERE b.status IN ('delayed')\n",
        caught_by=(f"{_TESTS}_cancel.py", f"{_TESTS}_sweeps.py"),
    ),
    Defect(
        name="a message about a slot counts as the completion of an execution",
        file=f"{_SQL}/40_settle.sql",
        before="(SELECT c.published_status = e.status::text OR in_statuses IS NULL AND c.attempt = 0\n",
        after="(SELECT true\n",
        caught_by=(f"{_TESTS}_settle.py",),
    ),
    Defect(
        name="a completion beside an unsettled slot is never published",
        file=f"{_SQL}/33_end_unstarted.sql",
        before="        WHERE b.status IN ('queued', 'delayed')\n",
        after="        WHERE b.status IN ('queued', 'delayed')\n"
        "          AND NOT EXISTS (SELECT FROM slot s WHERE s.execution_id = b.id)\n",
        caught_by=(f"{_TESTS}_settle.py",),
    ),
    Defect(
        name="an execution beside an unsettled slot is counted twice",
        file=f"{_SQL}/40_settle.sql",
        before="        WHERE (SELECT u.execution_id FROM unpublished_completion u WHERE u.execution_id = f.execution_id) IS NULL\n",
        after="",
        caught_by=(f"{_TESTS}_settle.py",),
    ),
    Defect(
        name="offers that the broker holds are repeated",
        file=f"{_SQL}/60_redelivery.sql",
        before="k.offered_at IS NULL OR k.rank <= k.offered - k.held\n",
        after="k.offered_at IS NULL OR k.rank <= k.offered\n",
        caught_by=(f"{_TESTS}_offers.py",),
    ),
    Defect(
        name="an overtaken offer is repeated without bound",
        file=f"{_SQL}/60_redelivery.sql",
        before="           OR k.is_overtaken AND k.rank <= 2 * k.offered - k.ready\n",
        after="           OR k.is_overtaken\n",
        caught_by=(f"{_TESTS}_offers.py",),
    ),
    Defect(
        name="an offer that no worker could run is refused and repeated for ever",
        file=f"{_SQL}/30_claim.sql",
        before="                WHEN c.id = ANY (withheld_ids) THEN 'stale'\n",
        after="",
        caught_by=(f"{_TESTS}_offers.py",),
    ),
    Defect(
        name="a cancelled execution is still counted as waiting",
        file=f"{_SQL}/33_end_unstarted.sql",
        before="ROW(n.queue_id, -n.removed, 0, NULL, 0, 0)",
        after="ROW(n.queue_id, 0, 0, NULL, 0, 0)",
        caught_by=(f"{_TESTS}_cancel.py",),
    ),
    Defect(
        name="a queue is deleted by its state before the lock",
        file=f"{_SQL}/retention/queues.sql",
        before="    idle_ids := ARRAY(\n"
        "        SELECT q.id FROM turnstile.current_queue q JOIN action a ON a.id = ANY (ARRAY[q.action_id])\n"
        "        WHERE q.id = ANY (idle_ids)\n"
        "          AND q.depth = 0 AND q.held = 0 AND q.total_enqueued = q.total_completed AND q.updated_at < idle_since\n"
        "          AND q.max_concurrent IS NOT DISTINCT FROM a.max_concurrent AND q.paused = a.paused\n"
        "          AND (SELECT w.execution_id FROM waiting w WHERE w.queue_id = q.id AND w.execution_id >= q.head_id LIMIT 1) IS NULL\n"
        "          AND q.id <> ALL (held_ids));\n",
        after="",
        caught_by=("tests/integration/retention/test_idle_key_races.py",),
    ),
    Defect(
        name="the totals of a deleted queue are lost",
        file=f"{_SQL}/retention/queues.sql",
        before="SET executions = t.executions + n.executions, pruned = t.pruned + n.pruned,",
        after="SET pruned = t.pruned,",
        caught_by=("tests/integration/retention/test_idle_keys.py",),
    ),
    Defect(
        name="an admission continues without a deleted queue",
        file=f"{_SQL}/20_admit.sql",
        before="    IF (SELECT count(*) FROM action_queue q WHERE q.id = ANY (queue_ids))\n",
        after="    IF (SELECT count(*) + 1000 FROM action_queue q WHERE q.id = ANY (queue_ids))\n",
        caught_by=("tests/integration/retention/test_idle_key_races.py",),
    ),
    Defect(
        name="the version before a grant stays",
        file=f"{_SQL}/10_grant.sql",
        before="        WHERE v.queue_id = ANY (ARRAY[c.queue_id]) AND v.version BETWEEN c.version AND c.version\n",
        after="        WHERE v.queue_id = ANY (ARRAY[c.queue_id]) AND v.version < c.version - 1\n",
        caught_by=(f"{_TESTS}_grant.py",),
    ),
    Defect(
        name="the version before a change without grant stays",
        file=f"{_SQL}/02_state.sql",
        before="    WHERE v.queue_id = ANY (ARRAY[s.queue_id]) AND v.version BETWEEN s.version AND s.version;\n",
        after="    WHERE v.queue_id = ANY (ARRAY[s.queue_id]) AND v.version < s.version - 1;\n",
        caught_by=(f"{_TESTS}_grant.py",),
    ),
    Defect(
        name="the oldest version of a queue is read",
        file=f"{_SQL}/02_state.sql",
        before="FROM public.queue_state v WHERE v.queue_id = q.id ORDER BY v.version DESC LIMIT 1\n",
        after="FROM public.queue_state v WHERE v.queue_id = q.id ORDER BY v.version LIMIT 1\n",
        caught_by=(f"{_TESTS}_old_snapshot.py",),
    ),
    Defect(
        name="a settle leaves the slot counted",
        file=f"{_SQL}/40_settle.sql",
        before="ROW(c.queue_id, 0, -c.freed, NULL, 0, c.ended)",
        after="ROW(c.queue_id, 0, 0, NULL, 0, c.ended)",
        caught_by=(f"{_TESTS}_settle.py", f"{_TESTS}_grant.py"),
    ),
    Defect(
        name="a grant counts one slot too few",
        file=f"{_SQL}/10_grant.sql",
        before="c.held + c.started, coalesce",
        after="c.held + greatest(c.started - 1, 0), coalesce",
        caught_by=(f"{_TESTS}_grant.py", f"{_TESTS}_concurrency.py"),
    ),
    Defect(
        name="a returned execution keeps its slot counted",
        file=f"{_SQL}/32_requeue.sql",
        before="n.returned, -n.returned, n.first_id, 0, 0)",
        after="n.returned, 0, n.first_id, 0, 0)",
        caught_by=(f"{_TESTS}_attempts.py", f"{_TESTS}_reclaim.py"),
    ),
    Defect(
        name="a woken retry is outside the range that grants read",
        file=f"{_SQL}/61_due.sql",
        before="ROW(n.queue_id, n.woken, 0, n.first_id, 0, 0)",
        after="ROW(n.queue_id, n.woken, 0, NULL, 0, 0)",
        caught_by=(f"{_TESTS}_sweeps.py", f"{_TESTS}_attempts.py"),
    ),
    Defect(
        name="a finish overwrites the end that a sweep wrote",
        file=f"{_SQL}/31_finish.sql",
        before="e.attempt = r.attempt - 1 AND e.completed_at IS NULL\n",
        after="true\n",
        caught_by=(f"{_TESTS}_races.py",),
    ),
    Defect(
        name="a cancel decides before a claim in progress has committed",
        file=f"{_SQL}/41_cancel.sql",
        before="    PERFORM 1 FROM slot s WHERE s.execution_id = ANY (in_execution_ids) ORDER BY s.execution_id FOR NO KEY UPDATE;\n",
        after="",
        caught_by=(f"{_TESTS}_races.py",),
    ),
    Defect(
        name="the window of the slots moves past a grant in progress",
        file=f"{_SQL}/02_state.sql",
        before="pg_snapshot_xmin(pg_current_snapshot())::text::bigint < newest.next_xid",
        after="false",
        caught_by=(f"{_TESTS}_old_snapshot.py",),
    ),
    Defect(
        name="the window of the slots moves past a slot that is held",
        file=f"{_SQL}/02_state.sql",
        before="coalesce(remaining_ticket, newest.next_ticket)",
        after="newest.next_ticket",
        caught_by=(f"{_TESTS}_old_snapshot.py",),
    ),
    Defect(
        name="a retry leaves no attempt behind",
        file=f"{_SQL}/31_finish.sql",
        before="FROM moved m WHERE m.status = 'delayed' OR m.log <> ''\n",
        after="FROM moved m WHERE m.log <> ''\n",
        caught_by=(f"{_TESTS}_attempts.py",),
    ),
    Defect(
        name="a settle with a callback does not wait for the disk",
        file=f"{_SQL}/40_settle.sql",
        before="    ELSE\n",
        after="    END IF;\n    IF true THEN\n",
        caught_by=(f"{_TESTS}_settle.py",),
    ),
    Defect(
        name="a queue is deleted while its executions are pruned",
        file=f"{_SQL}/retention/executions.sql",
        before="        FOR KEY SHARE SKIP LOCKED);\n",
        after="        );\n",
        caught_by=("tests/integration/retention/test_idle_key_races.py",),
    ),
)
