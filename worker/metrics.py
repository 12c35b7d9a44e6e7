"""The metrics of the worker service; docs/telemetry.md lists them, and a test compares the list."""

from typing import Final

from turnstile.common.broker.best_effort import KINDS
from turnstile.common.domain.errors import Code
from turnstile.common.telemetry.metrics import Meter

METER: Final = Meter()

ENDED: Final = METER.counter(
    "turnstile_ended_total",
    "Attempts whose outcome this worker stored, by the execution's new status; delayed: it will run again.",
    "action_ref",
    "status",
)
HANDED_BACK: Final = METER.counter(
    "turnstile_handed_back_total", "Attempts that a draining worker returned to the head of their queue."
)
NOT_APPLIED: Final = METER.counter(
    "turnstile_not_applied_total",
    "Writes that were not applied because another came first; expected in races.",
    "write",
    "reason",
)
DEAD_LETTERED: Final = METER.counter(
    "turnstile_dead_lettered_total",
    "Messages dead-lettered by this process, by code.",
    "code",
    known=Code,
)
UNDELIVERED: Final = METER.counter(
    "turnstile_undelivered_total",
    "Messages dropped after retries because their destination rejected them; the log names it.",
    "kind",
    known=KINDS,
)
LEASES_LOST: Final = METER.counter(
    "turnstile_leases_lost_total", "Leases lost: the runs were killed, and the worker registered again."
)
LOOP_BLOCKED: Final = METER.counter(
    "turnstile_event_loop_blocked_total",
    "Times that the event loop was blocked for more than a second, by the action that ran.",
    "action_ref",
)

WAIT_SECONDS: Final = METER.histogram(
    "turnstile_wait_seconds", "From the enqueue to the start, on the database's clock.", "action_ref"
)
RUN_SECONDS: Final = METER.histogram(
    "turnstile_run_seconds", "From the start of an attempt to its end, whatever its outcome.", "action_ref"
)

RUNNING: Final = METER.gauge("turnstile_worker_running", "Attempts whose action runs.")
CONCURRENCY: Final = METER.gauge("turnstile_worker_concurrency", "Maximum number of concurrent attempts.")
LEASE_AGE: Final = METER.gauge(
    "turnstile_worker_lease_age_seconds", "Age of the lease: since its last successful renewal was sent."
)
LEASE_DURATION: Final = METER.gauge(
    "turnstile_worker_lease_duration_seconds", "Duration of the lease: it is lost at this age."
)
SERVER_UP: Final = METER.gauge(
    "turnstile_server_up",
    "1: this server is reachable; 0: it is not.",
    "server",
    formerly="turnstile_link_up",
)
PUBLISHER_BLOCKED: Final = METER.gauge(
    "turnstile_publisher_blocked", "1: the broker accepts no messages (memory or disk alarm)."
)
LOOP_LAG: Final = METER.gauge(
    "turnstile_event_loop_lag_seconds", "Largest delay of the event loop over the last 30 s."
)
