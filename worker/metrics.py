"""What the worker service counts and measures; docs/telemetry.md explains each, and a test compares them.

`worker.transitions` says what happened, and `worker.health` answers `/metrics`.
"""

from typing import Final

from turnstile.common.domain.errors import Code
from turnstile.common.telemetry.instruments import Meter
from turnstile.common.undelivered import KINDS

METER: Final = Meter()

ENDED: Final = METER.counter(
    "turnstile_ended_total",
    "Attempts whose end this worker wrote, by what the execution is then; delayed: it will run again.",
    "action_ref",
    "status",
)
HANDED_BACK: Final = METER.counter(
    "turnstile_handed_back_total", "Attempts that a worker that stops gave back to the head of their line."
)
NOT_APPLIED: Final = METER.counter(
    "turnstile_not_applied_total",
    "Writes that changed nothing because something came first, as they may.",
    "write",
    "reason",
)
DEAD_LETTERED: Final = METER.counter(
    "turnstile_dead_lettered_total",
    "Messages put to the dead letters by this process, by code.",
    "code",
    known=Code,
)
UNDELIVERED: Final = METER.counter(
    "turnstile_undelivered_total",
    "Messages given up because an address would not take them; the log names it.",
    "kind",
    known=KINDS,
)
LEASES_LOST: Final = METER.counter(
    "turnstile_leases_lost_total", "Leases lost: what ran was killed, and the worker registered anew."
)

WAIT_SECONDS: Final = METER.histogram(
    "turnstile_wait_seconds", "From taking a place in line to the start; the database's clock.", "action_ref"
)
RUN_SECONDS: Final = METER.histogram(
    "turnstile_run_seconds", "From the start of an attempt to its end, however it ended.", "action_ref"
)

RUNNING: Final = METER.gauge("turnstile_worker_running", "Attempts whose action runs.")
CONCURRENCY: Final = METER.gauge("turnstile_worker_concurrency", "Attempts that may run at once.")
LEASE_AGE: Final = METER.gauge(
    "turnstile_worker_lease_age_seconds", "Since the last renewal of the lease was sent that succeeded."
)
LEASE_DURATION: Final = METER.gauge(
    "turnstile_worker_lease_duration_seconds", "How old the lease may become before it is lost."
)
LINK_UP: Final = METER.gauge("turnstile_link_up", "1: this server is in reach; 0: it is not.", "server")
PUBLISHER_BLOCKED: Final = METER.gauge(
    "turnstile_publisher_blocked", "1: the broker takes no messages for now (memory or disk alarm)."
)
LOOP_LAG: Final = METER.gauge(
    "turnstile_event_loop_lag_seconds", "The latest that the event loop came, over the last half minute."
)
