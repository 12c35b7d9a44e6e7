"""Metrics of the executor service; docs/telemetry.md describes each, and a test compares the two.

The leader's process counts what it decides (`leader.instrumentation`), the HTTP process the rest. For a
scrape `executor.leader_counts` adds up both, and `executor.gauges` asks the leader for the present state.
"""

import time
from typing import Final

from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.telemetry.metrics import OTHER, LabelValues, Meter, ServiceMetrics
from turnstile.executor.best_effort import KINDS

_OUTCOMES: Final = tuple(status for status in Status if is_terminal(status))
FAILURES: Final = frozenset({Status.FAILED, Status.TIMEOUT, Status.ABANDONED})
"""The outcomes that count as failures."""
SOURCES: Final = ("requests", "completions", "heartbeats", "inbox")
"""Where the inputs of a turn come from."""

METER: Final = Meter()
_SHARED: Final = ServiceMetrics(METER)
ENDED_REFS: Final = LabelValues(500)
"""Actions with their own label value in `EXECUTIONS_ENDED`: more than elsewhere, for the alert per action."""
FAILING_REFS: Final = LabelValues(500)
"""Further ones that get one when they fail: as `other` they would hide among those that do not."""

ADMITTED: Final = METER.counter("turnstile_admitted_total", "Executions admitted.", "action_ref")
DUPLICATES: Final = METER.counter(
    "turnstile_duplicates_total", "Requests that repeat an admitted execution.", "action_ref"
)
REFUSED: Final = METER.counter("turnstile_refused_total", "Requests rejected, by code.", "code", known=Code)
GRANTED: Final = METER.counter("turnstile_granted_total", "Slots granted.", "action_ref")
ATTEMPTS_ENDED: Final = METER.counter(
    "turnstile_attempts_ended_total",
    "Attempts that ended, and executions that ended without one; delayed or queued: it runs again.",
    "status",
    known=(status for status in Status if is_terminal(status)),
)
EXECUTIONS_ENDED: Final = METER.counter(
    "turnstile_executions_ended_total",
    "Executions that ended, by their final status.",
    "action_ref",
    "status",
)
NOT_APPLIED: Final = METER.counter(
    "turnstile_not_applied_total",
    "Writes that were not applied because another came first; expected in races.",
    "write",
    "reason",
)
OCCURRENCES: Final = METER.counter(
    "turnstile_schedule_occurrences_total",
    "Occurrences of schedules by what became of them; missed counts outages, not occurrences.",
    "result",
    known=("admitted", "skipped", "refused", "missed"),
)
REPAIRS: Final = METER.counter(
    "turnstile_repairs_total",
    "Offers repeated because a worker's session did not hold them.",
    "repair",
    known=("offer_repeated",),
)
RECLAIMS: Final = METER.counter(
    "turnstile_reclaims_total",
    "Attempts reclaimed from lost workers, by the status that follows.",
    "status",
    known=(Status.QUEUED, Status.ABANDONED),
)
CANCELS_ENFORCED: Final = METER.counter(
    "turnstile_cancels_enforced_total",
    "Overdue attempts ended without their worker.",
    "status",
    known=(Status.TIMEOUT, Status.CANCELLED),
)
DRIFT_FOUND: Final = METER.counter(
    "turnstile_drift_found_total",
    "Differences between the leader's memory and the rows; it loads the rows again.",
)
DEAD_LETTERED: Final = METER.counter(
    "turnstile_dead_lettered_total",
    "Messages dead-lettered by this process, by code.",
    "code",
    known=Code,
)
DEAD_LETTER_CODES: Final = (*Code, "rejected", "expired", "maxlen", "delivery_limit", "unexplained")
"""Our codes, RabbitMQ's reasons, and none; whatever else a sender wrote is counted as `other`."""
DEAD_LETTERS_STORED: Final = METER.counter(
    "turnstile_dead_letters_stored_total",
    "Dead letters drained from the broker into the database by this process, by code.",
    "code",
    known=DEAD_LETTER_CODES,
)
DEAD_LETTERS_PRUNED: Final = METER.counter(
    "turnstile_dead_letters_pruned_total",
    "Dead letters deleted by retention; count and bytes: before their age, because there were too many.",
    "reason",
    known=("age", "count", "bytes"),
)
BACKGROUND_FAILURES: Final = METER.counter(
    "turnstile_background_failures_total",
    "Failures of the work beside the leader, by task: deliveries of webhooks, retention.",
    "task",
)
WEBHOOK_ATTEMPTS: Final = METER.counter(
    "turnstile_webhook_attempts_total",
    "Webhooks posted, by the resulting state; pending and released ones are tried again.",
    "state",
    known=("delivered", "pending", "released", "failed"),
)
UNDELIVERED: Final = METER.counter(
    "turnstile_undelivered_total",
    "Messages dropped after retries because their destination rejected them; the log names it.",
    "kind",
    known=KINDS,
)
SCRAPE_FAILURES: Final = METER.counter(
    "turnstile_scrape_failures_total",
    "Scrapes without the gauges of queues, because no leader answered.",
)
TURN_INPUTS: Final = METER.counter(
    "turnstile_turn_inputs_total",
    "Messages and commands that turns took; with the number of turns, the mean size of a batch.",
    "source",
    known=SOURCES,
)

GRANT_SECONDS: Final = METER.histogram(
    "turnstile_grant_seconds",
    "Time in the queue until the first grant, on the database's clock.",
    "action_ref",
)
HAND_OVER_SECONDS: Final = METER.histogram(
    "turnstile_hand_over_seconds", "From taking a completion to the confirmed offer of the next grant."
)
TURN_SECONDS: Final = METER.histogram(
    "turnstile_turn_seconds", "Duration of a turn of the leader, from taking inputs to acknowledging them."
)

QUEUE_DEPTH: Final = METER.gauge("turnstile_queue_depth", "Queued executions.", "action_ref")
WAITING: Final = METER.gauge(
    "turnstile_waiting",
    "Queued executions by what they wait for; the sum is the depth.",
    "action_ref",
    "reason",
)
OLDEST_SECONDS: Final = METER.gauge(
    "turnstile_queue_oldest_seconds",
    "How long the first execution in the queue has been waiting.",
    "action_ref",
)
SLOTS_HELD: Final = METER.gauge(
    "turnstile_slots_held",
    "Slots in use: held by what runs, and by what waits at a later gate.",
    "action_ref",
)
SLOT_LIMIT: Final = METER.gauge(
    "turnstile_slot_limit",
    "Slots that one queue of the action may hold; absent without a limit.",
    "action_ref",
)
SUBMISSION_LEFT_SECONDS: Final = METER.gauge(
    "turnstile_submission_left_seconds",
    "Age of the oldest command or submission in the inbox that no turn has decided; 0 without any.",
)
RESOURCE_HELD: Final = METER.gauge(
    "turnstile_resource_held", "Units of a resource that executions hold.", "resource"
)
RESOURCE_CAPACITY: Final = METER.gauge(
    "turnstile_resource_capacity", "Units of a resource; absent without a limit.", "resource"
)
RESOURCE_WAITING: Final = METER.gauge(
    "turnstile_resource_waiting", "Executions that wait at a resource.", "resource"
)
RESOURCE_HELD_WAITING: Final = METER.gauge(
    "turnstile_resource_held_waiting",
    "Units of a resource that are idle: their executions wait at a later gate.",
    "resource",
)
RESOURCE_PAUSED: Final = METER.gauge(
    "turnstile_resource_paused", "1: the resource is paused; nothing that uses it starts.", "resource"
)
POOL_CAPACITY: Final = METER.gauge(
    "turnstile_pool_capacity", "Executions that the live workers of a pool run at once.", "pool"
)
POOL_HELD: Final = METER.gauge("turnstile_pool_held", "Worker slots that executions of a pool have.", "pool")
POOL_WAITING: Final = METER.gauge(
    "turnstile_pool_waiting",
    "Executions that wait only for a worker: they would start if their pool had one for each. 0 while the "
    "pool is paused.",
    "pool",
)
DEAD_LETTERS: Final = METER.gauge(
    "turnstile_dead_letters",
    "Dead letters in the database, by code, without those still on the broker.",
    "code",
)
WORKERS: Final = METER.gauge("turnstile_workers", "Registered worker processes, by state.", "state")
LAST_FAILURE: Final = METER.gauge(
    "turnstile_last_failure_timestamp_seconds",
    "When this executor last decided the end of a failed, timed out or abandoned execution.",
    "action_ref",
)
SERVER_UP: Final = _SHARED.server_up
PUBLISHER_BLOCKED: Final = _SHARED.publisher_blocked
POOL_PAUSED: Final = METER.gauge(
    "turnstile_pool_paused", "1: the pool is paused; nothing in it starts.", "pool"
)
LOOP_LAG: Final = _SHARED.loop_lag
LEADING: Final = METER.gauge("turnstile_leading", "1: this executor leads; 0: another one may.")
LEADER_EPOCH: Final = METER.gauge(
    "turnstile_leader_epoch", "Epoch of this executor's leadership; absent while it does not lead."
)
LEADER_LOOP_LAG: Final = METER.gauge(
    "turnstile_leader_event_loop_lag_seconds",
    "Largest delay of the event loop of this executor's leader process over the last 30 s.",
)


def expect_outcomes(action_ref: str) -> None:
    """Expose the outcomes of an action as zero before its first one, as an increase would miss that one."""
    _expect_outcomes_of(ENDED_REFS[action_ref])


def count_ended(action_ref: str, status: Status, count: int) -> None:
    """Count executions that ended with this outcome."""
    name = ENDED_REFS[action_ref]
    if name == OTHER and (status in FAILURES or action_ref in FAILING_REFS):
        name = FAILING_REFS[action_ref]
    _expect_outcomes_of(name)
    EXECUTIONS_ENDED.add(name, status, count=count)
    if status in FAILURES:
        LAST_FAILURE.set(time.time(), name)


def _expect_outcomes_of(name: str) -> None:
    if (name, _OUTCOMES[0]) not in EXECUTIONS_ENDED.values:
        for status in _OUTCOMES:
            EXECUTIONS_ENDED.add(name, status, count=0)


def dead_letter_label(code: str) -> str:
    """Return the label under which a dead letter of this code is counted."""
    return code if code in DEAD_LETTER_CODES else "other"
