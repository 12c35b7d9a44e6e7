"""The metrics of the worker service; docs/telemetry.md lists them, and a test compares the list."""

from typing import Final

from turnstile.common.telemetry.metrics import Meter, ServiceMetrics

METER: Final = Meter()
_SHARED: Final = ServiceMetrics(METER)

ENDED: Final = METER.counter(
    "turnstile_ended_total",
    "Attempts whose outcome this worker reported, by the execution's new status; delayed: it will run again.",
    "action_ref",
    "status",
)
RETURNED: Final = METER.counter(
    "turnstile_returned_total", "Attempts that a draining worker returned to the head of their queue."
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
    "turnstile_wait_seconds", "From the enqueue to the offer, on the database's clock.", "action_ref"
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
SERVER_UP: Final = _SHARED.server_up
PUBLISHER_BLOCKED: Final = _SHARED.publisher_blocked
LOOP_LAG: Final = _SHARED.loop_lag
