"""Defects of the SQL functions: guards, locks, counters and order."""

# ruff: noqa: E501  (quoted lines are as long as they are)

from typing import Final

from tests.proof.mutants.defect import Defect

_SQL: Final = "common/sql"
_TESTS: Final = "tests/integration/protocol/test"

PROTOCOL_DEFECTS: Final = (
    Defect(
        name="a finish does not name its attempt",
        file=f"{_SQL}/31_finish.sql",
        before="e.id = ANY (ARRAY[r.id]) AND e.attempt = r.attempt AND e.worker_id = in_worker_id\n",
        after="e.id = ANY (ARRAY[r.id]) AND e.worker_id = in_worker_id\n",
        caught_by=(f"{_TESTS}_attempts.py",),
    ),
    Defect(
        name="a finish does not name its worker",
        file=f"{_SQL}/31_finish.sql",
        before="e.attempt = r.attempt AND e.worker_id = in_worker_id\n          AND e.status = ANY",
        after="e.attempt = r.attempt\n          AND e.status = ANY",
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
        before="e.id = ANY (ARRAY[c.id]) AND e.attempt = c.attempt AND e.status = ANY (:sources_of_claim)\n"
        "          AND c.id <> ALL",
        after="e.id = ANY (ARRAY[c.id]) AND e.status = ANY (:sources_of_claim)\n          AND c.id <> ALL",
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
        before="overdue_at = claimed_now + make_interval(secs => m.timeout_seconds)",
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
        before=") held WHERE q.id = ANY (in_queue_ids) AND NOT q.paused AND q.depth > 0",
        after=") held WHERE q.id = ANY (in_queue_ids) AND q.depth > 0",
        caught_by=(f"{_TESTS}_grant.py",),
    ),
    Defect(
        name="the tail of the queue is granted",
        file=f"{_SQL}/10_grant.sql",
        before="                ORDER BY queued.execution_id LIMIT r.take\n",
        after="                ORDER BY queued.execution_id DESC LIMIT r.take\n",
        caught_by=(f"{_TESTS}_grant.py",),
    ),
    Defect(
        name="a grant has the attempt of the grant before it",
        file=f"{_SQL}/10_grant.sql",
        before="attempt = e.attempt + 1",
        after="attempt = greatest(e.attempt, 1)",
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
        before="head_id = least(q.head_id, n.first_id), ",
        after="",
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
        before="k.offered_at IS NULL OR k.rank <= k.offered - k.ready\n",
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
        before="SET depth = q.depth - n.removed",
        after="SET depth = q.depth",
        caught_by=(f"{_TESTS}_cancel.py",),
    ),
    Defect(
        name="a queue is deleted by its state before the lock",
        file=f"{_SQL}/retention/queues.sql",
        before="    idle_ids := ARRAY(\n"
        "        SELECT q.id FROM action_queue q JOIN action a ON a.id = ANY (ARRAY[q.action_id])\n"
        "        WHERE q.id = ANY (idle_ids)\n"
        "          AND q.depth = 0 AND q.total_enqueued = q.total_completed AND q.updated_at < idle_since\n"
        "          AND q.max_concurrent IS NOT DISTINCT FROM a.max_concurrent AND q.paused = a.paused\n"
        "          AND (SELECT w.execution_id FROM waiting w WHERE w.queue_id = q.id LIMIT 1) IS NULL\n"
        "          AND (SELECT s.execution_id FROM slot s WHERE s.queue_id = q.id LIMIT 1) IS NULL);\n",
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
        name="a queue is deleted while its executions are pruned",
        file=f"{_SQL}/retention/executions.sql",
        before="        FOR KEY SHARE SKIP LOCKED);\n",
        after="        );\n",
        caught_by=("tests/integration/retention/test_idle_key_races.py",),
    ),
)
