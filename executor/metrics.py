"""What the executor service counts and measures; docs/telemetry.md explains each, and a test compares them.

`executor.transitions` and the sweeps say what happened, `executor.gauges` reads how the lines stand, and
`executor.api.metrics` answers `/metrics`.
"""

from typing import Final

from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.telemetry.instruments import Meter
from turnstile.common.undelivered import KINDS

METER: Final = Meter()

ADMITTED: Final = METER.counter("turnstile_admitted_total", "Executions taken into the record.", "action_ref")
DUPLICATES: Final = METER.counter(
    "turnstile_duplicates_total", "Requests whose execution was in the record already.", "action_ref"
)
REFUSED: Final = METER.counter("turnstile_refused_total", "Requests refused, by code.", "code", known=Code)
GRANTED: Final = METER.counter("turnstile_granted_total", "Slots given.", "action_ref")
SETTLED: Final = METER.counter(
    "turnstile_settled_total",
    "Ended attempts whose slot was freed, and ends without a slot; delayed or queued: it will run again.",
    "status",
    known=(status for status in Status if is_terminal(status)),
)
NOT_APPLIED: Final = METER.counter(
    "turnstile_not_applied_total",
    "Writes that changed nothing because something came first, as they may.",
    "write",
    "reason",
)
REPAIRS: Final = METER.counter(
    "turnstile_repairs_total",
    "What the watchdog did because a message was lost.",
    "repair",
    known=("offer_repeated", "completion_repeated", "stop_repeated", "slot_granted"),
)
RECLAIMS: Final = METER.counter(
    "turnstile_reclaims_total",
    "Attempts taken back from lost workers, by what became of them.",
    "status",
    known=(Status.QUEUED, Status.ABANDONED),
)
STOPS_ENFORCED: Final = METER.counter(
    "turnstile_stops_enforced_total",
    "Overdue attempts ended without their worker.",
    "status",
    known=(Status.TIMEOUT, Status.CANCELLED),
)
DRIFT_FOUND: Final = METER.counter(
    "turnstile_drift_found_total", "Queues whose counters were not the count of their rows."
)
DRIFT_REPAIRED: Final = METER.counter(
    "turnstile_drift_repaired_total", "Queues whose counters were put right."
)
QUEUES_HELD: Final = METER.counter(
    "turnstile_queues_held_total",
    "How often a queue was found held by another database session for longer than the lock timeout.",
)
DEAD_LETTERED: Final = METER.counter(
    "turnstile_dead_lettered_total",
    "Messages put to the dead letters by this process, by code.",
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
SWEEP_FAILURES: Final = METER.counter(
    "turnstile_sweep_failures_total",
    "Sweeps of the watchdog, and rounds of `deliver_webhooks`, that ended with an error.",
    "sweep",
)
SWEEP_ROWS: Final = METER.counter(
    "turnstile_sweep_rows_total",
    "What the sweeps of the watchdog repaired, took back, woke, ended or pruned.",
    "sweep",
)
WEBHOOK_ATTEMPTS: Final = METER.counter(
    "turnstile_webhook_attempts_total",
    "Webhooks posted, by what became of the delivery; pending, released: it is tried again.",
    "state",
    known=("delivered", "pending", "released", "failed"),
)
UNDELIVERED: Final = METER.counter(
    "turnstile_undelivered_total",
    "Messages given up because an address would not take them; the log names it.",
    "kind",
    known=KINDS,
)
SCRAPE_FAILURES: Final = METER.counter(
    "turnstile_scrape_failures_total", "Scrapes without the gauges of the lines: the database did not answer."
)

GRANT_SECONDS: Final = METER.histogram(
    "turnstile_grant_seconds",
    "In line, from taking a place to the grant; the database's clock.",
    "action_ref",
)
HAND_OVER_SECONDS: Final = METER.histogram(
    "turnstile_hand_over_seconds", "From taking a completion in to the confirmed offer of the next grant."
)

QUEUE_DEPTH: Final = METER.gauge("turnstile_queue_depth", "Executions that wait in line.", "action_ref")
OLDEST_SECONDS: Final = METER.gauge(
    "turnstile_queue_oldest_seconds", "How long the head of the line has been waiting.", "action_ref"
)
SLOTS_HELD: Final = METER.gauge(
    "turnstile_slots_held", "Slots held, from the grant to the settle.", "action_ref"
)
SLOT_LIMIT: Final = METER.gauge(
    "turnstile_slot_limit",
    "Slots that one queue of the action may hold; absent without a limit.",
    "action_ref",
)
DEAD_LETTERS: Final = METER.gauge(
    "turnstile_dead_letters",
    "Dead letters in the database, by code, without those still on the broker.",
    "code",
)
WORKERS: Final = METER.gauge("turnstile_workers", "Worker processes on the record, by state.", "state")
LAST_SWEEP: Final = METER.gauge(
    "turnstile_sweep_last_success_timestamp_seconds", "When a sweep of the watchdog last ended well.", "sweep"
)
LINK_UP: Final = METER.gauge("turnstile_link_up", "1: this server is in reach; 0: it is not.", "server")
PUBLISHER_BLOCKED: Final = METER.gauge(
    "turnstile_publisher_blocked", "1: the broker takes no messages for now (memory or disk alarm)."
)
POOL_UNUSABLE: Final = METER.gauge(
    "turnstile_pool_unusable", "1: the queue of this pool cannot be declared; its offers wait.", "pool"
)
LOOP_LAG: Final = METER.gauge(
    "turnstile_event_loop_lag_seconds", "The latest that the event loop came, over the last half minute."
)


def dead_letter_label(code: str) -> str:
    """Return the label under which a dead letter of this code is counted."""
    return code if code in DEAD_LETTER_CODES else "other"
