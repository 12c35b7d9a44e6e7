"""Metrics of the executor service; docs/telemetry.md describes each, and a test compares the two.

`executor.instrumentation` and the sweeps count; `QueueGauges` reads the state of queues and workers from the
database for a scrape, and `executor.api.ops` answers `/metrics`.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import asyncpg
from pydantic_core import from_json

from turnstile.common.broker.best_effort import KINDS
from turnstile.common.database import Database
from turnstile.common.domain.errors import Code, Unavailable
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.schemas import WaitingCounts
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.telemetry.metrics import OTHER, Gauge, Labels, LabelValues, Meter
from turnstile.common.telemetry.service_metrics import ServiceMetrics
from turnstile.executor.sql import query

logger = logging.getLogger(__name__)

_QUEUES_MAX: Final = 20_000
_RESOURCES_MAX: Final = 1000
_FRESH_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 5.0
_OUTCOMES: Final = tuple(status for status in Status if is_terminal(status))
FAILURES: Final = frozenset({Status.FAILED, Status.TIMEOUT, Status.ABANDONED})
"""The outcomes that count as failures."""
_STATES: Final = ("live", "draining", "overdue")
_REASONS: Final = tuple(WaitingCounts.model_fields)

METER: Final = Meter()
_SHARED: Final = ServiceMetrics(METER, KINDS)
_RESOURCES: Final = LabelValues(100)
_POOLS: Final = LabelValues(100)
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
SETTLED: Final = METER.counter(
    "turnstile_settled_total",
    "Settled attempts, and executions ended without a slot; delayed or queued: it runs again.",
    "status",
    known=(status for status in Status if is_terminal(status)),
)
EXECUTIONS_ENDED: Final = METER.counter(
    "turnstile_executions_ended_total",
    "Executions that ended and were settled, by their final status.",
    "action_ref",
    "status",
)
NOT_APPLIED: Final = _SHARED.not_applied
REPAIRS: Final = METER.counter(
    "turnstile_repairs_total",
    "Repairs by the watchdog after a lost message.",
    "repair",
    known=("offer_repeated", "completion_repeated", "cancel_repeated", "slot_granted", "gate_passed"),
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
    formerly="turnstile_stops_enforced_total",
)
DRIFT_FOUND: Final = METER.counter(
    "turnstile_drift_found_total", "Queues whose counters differed from their rows."
)
DRIFT_REPAIRED: Final = METER.counter(
    "turnstile_drift_repaired_total", "Queues whose counters were repaired."
)
QUEUES_BLOCKED: Final = METER.counter(
    "turnstile_queues_blocked_total",
    "Times that another database session locked a queue for longer than the lock timeout.",
    formerly="turnstile_queues_held_total",
)
DEAD_LETTERED: Final = _SHARED.dead_lettered
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
SWEEP_FAILURES: Final = METER.counter(
    "turnstile_sweep_failures_total",
    "Sweeps of the watchdog, and iterations of `deliver_webhooks`, that failed.",
    "sweep",
)
SWEEP_ROWS: Final = METER.counter(
    "turnstile_sweep_rows_total",
    "Rows that the sweeps of the watchdog repaired, reclaimed, queued, ended or deleted.",
    "sweep",
)
WEBHOOK_ATTEMPTS: Final = METER.counter(
    "turnstile_webhook_attempts_total",
    "Webhooks posted, by the resulting state; pending and released ones are tried again.",
    "state",
    known=("delivered", "pending", "released", "failed"),
)
UNDELIVERED: Final = _SHARED.undelivered
SCRAPE_FAILURES: Final = METER.counter(
    "turnstile_scrape_failures_total",
    "Scrapes without the gauges of queues, because the database did not respond.",
)

GRANT_SECONDS: Final = METER.histogram(
    "turnstile_grant_seconds",
    "Time in the queue until the grant, on the database's clock.",
    "action_ref",
)
HAND_OVER_SECONDS: Final = METER.histogram(
    "turnstile_hand_over_seconds", "From receiving a completion to the confirmed offer of the next grant."
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
    "turnstile_slots_held", "Slots held, from the grant to the settle.", "action_ref"
)
SLOT_LIMIT: Final = METER.gauge(
    "turnstile_slot_limit",
    "Slots that one queue of the action may hold; absent without a limit.",
    "action_ref",
)
SUBMISSION_LEFT_SECONDS: Final = METER.gauge(
    "turnstile_submission_left_seconds",
    "For how long this executor has seen the oldest committed submission of a database session undecided.",
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
POOL_HELD: Final = METER.gauge(
    "turnstile_pool_held", "Granted executions of a pool; they may exceed its capacity by its lead.", "pool"
)
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
    "When this executor last settled a failed, timed out or abandoned execution.",
    "action_ref",
)
LAST_SWEEP: Final = METER.gauge(
    "turnstile_sweep_last_success_timestamp_seconds",
    "When a sweep of the watchdog last succeeded, in this executor or in the one whose notices it receives.",
    "sweep",
)
SERVER_UP: Final = _SHARED.server_up
PUBLISHER_BLOCKED: Final = _SHARED.publisher_blocked
POOL_PAUSED: Final = METER.gauge(
    "turnstile_pool_paused", "1: the pool is paused; nothing in it starts.", "pool"
)
POOL_UNUSABLE: Final = METER.gauge(
    "turnstile_pool_unusable", "1: the queue of this pool cannot be declared; its offers wait.", "pool"
)
LOOP_LAG: Final = _SHARED.loop_lag


_RESOURCE_GAUGES: Final[Mapping[Gauge, str]] = {
    RESOURCE_HELD: "held",
    RESOURCE_WAITING: "waiting",
    RESOURCE_HELD_WAITING: "held_waiting",
    RESOURCE_PAUSED: "paused",
}
_POOL_GAUGES: Final[Mapping[Gauge, str]] = {
    POOL_CAPACITY: "capacity",
    POOL_HELD: "held",
    POOL_WAITING: "waiting",
    POOL_PAUSED: "paused",
}


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


class QueueGauges:
    """Reads the gauges of queues, workers and dead letters: one bounded query, at most once a second.

    Every replica shows the same rows, so an aggregation over replicas takes the maximum. While the database
    does not answer these gauges are absent: an old depth would be wrong.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._not_read = Episodes(logger, "gauges_not_read")
        self._lock = asyncio.Lock()
        self._read_at = -_FRESH_SECONDS

    async def refresh(self) -> None:
        """Read the gauges, unless that was done within the last second."""
        async with self._lock:
            if time.monotonic() - self._read_at < _FRESH_SECONDS:
                return
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS), self._database.transaction() as connection:
                    # An old snapshot keeps the deleted rows of the live tables: read by index only (P15).
                    await connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL jit = off")
                    codes = [*map(str, DEAD_LETTER_CODES)]
                    row = await connection.fetchrow(query("gauges"), _QUEUES_MAX, codes, _RESOURCES_MAX)
            except (Unavailable, asyncpg.PostgresError, TimeoutError) as error:
                self._not_read.failed("gauges", reason=str(error) or "no answer in time")
                SCRAPE_FAILURES.add()
                _forget()
            else:
                assert row is not None
                self._not_read.works("gauges")
                _show_actions(from_json(row["actions"] or "[]"))
                _show_resources(from_json(row["resources"] or "[]"))
                _show_sums(_POOL_GAUGES, "pool", _POOLS, from_json(row["pools"] or "[]"))
                _show_workers(from_json(row["workers"] or "{}"))
                _show_dead_letters(from_json(row["dead_letters"] or "{}"))
            self._read_at = time.monotonic()


def _show_actions(actions: Sequence[Mapping[str, Any]]) -> None:
    shown: dict[Gauge, dict[Labels, float]] = {
        # An empty queue is zero: it must differ from an unknown one.
        QUEUE_DEPTH: {(name,): 0.0 for name in METER.action_refs},
        SLOTS_HELD: {(name,): 0.0 for name in METER.action_refs},
        OLDEST_SECONDS: {(name,): 0.0 for name in METER.action_refs},
        SLOT_LIMIT: {},
        WAITING: {(name, reason): 0.0 for name in METER.action_refs for reason in _REASONS},
    }
    for action in actions:
        name = METER.action_refs[action["action_ref"]]
        label = (name,)
        for gauge, field in ((QUEUE_DEPTH, "depth"), (SLOTS_HELD, "slots")):
            shown[gauge][label] = shown[gauge].get(label, 0.0) + action[field]
        for reason, count in (action["waiting"] or {}).items():
            shown[WAITING][name, reason] = shown[WAITING].get((name, reason), 0.0) + count
        oldest_seconds = max(shown[OLDEST_SECONDS].get(label, 0.0), action["oldest_seconds"] or 0.0)
        shown[OLDEST_SECONDS][label] = oldest_seconds
        # A sum of the limits of several actions has no meaning.
        if action["slot_limit"] is not None and name == action["action_ref"]:
            shown[SLOT_LIMIT][label] = action["slot_limit"]
    for gauge, values in shown.items():
        gauge.values = values


def _show_resources(resources: Sequence[Mapping[str, Any]]) -> None:
    _show_sums(_RESOURCE_GAUGES, "resource", _RESOURCES, resources)
    RESOURCE_CAPACITY.values = {
        (resource["resource"],): resource["capacity"]
        for resource in resources
        # A sum of the capacities of several resources has no meaning.
        if resource["capacity"] is not None and _RESOURCES[resource["resource"]] == resource["resource"]
    }


def _show_sums(
    gauges: Mapping[Gauge, str], kind: str, names: LabelValues, rows: Sequence[Mapping[str, Any]]
) -> None:
    for gauge, field in gauges.items():
        gauge.values = {}
        for row in rows:
            label = (names[row[kind]],)
            gauge.values[label] = gauge.values.get(label, 0.0) + row[field]


def _show_workers(workers: Mapping[str, int]) -> None:
    WORKERS.values = {(state,): float(workers.get(state, 0)) for state in _STATES}


def _show_dead_letters(letters: Mapping[str, int]) -> None:
    # A code without dead letters is zero: it must differ from one that could not be read.
    DEAD_LETTERS.values = {(code,): float(letters.get(code, 0)) for code in (*DEAD_LETTER_CODES, "other")}


def _forget() -> None:
    of_actions = QUEUE_DEPTH, WAITING, SLOTS_HELD, OLDEST_SECONDS, SLOT_LIMIT
    for gauge in (*of_actions, *_RESOURCE_GAUGES, RESOURCE_CAPACITY, *_POOL_GAUGES, WORKERS, DEAD_LETTERS):
        gauge.values = {}
