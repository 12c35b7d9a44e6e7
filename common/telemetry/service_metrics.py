"""The metrics that executor and worker have in common, under the same names and with the same texts."""

from collections.abc import Iterable

from turnstile.common.domain.errors import Code
from turnstile.common.telemetry.metrics import Meter


class ServiceMetrics:
    """Declares them for the meter of one service."""

    def __init__(self, meter: Meter, message_kinds: Iterable[str]) -> None:
        """`message_kinds`: the kinds of messages that may be dropped."""
        self.not_applied = meter.counter(
            "turnstile_not_applied_total",
            "Writes that were not applied because another came first; expected in races.",
            "write",
            "reason",
        )
        self.dead_lettered = meter.counter(
            "turnstile_dead_lettered_total",
            "Messages dead-lettered by this process, by code.",
            "code",
            known=Code,
        )
        self.undelivered = meter.counter(
            "turnstile_undelivered_total",
            "Messages dropped after retries because their destination rejected them; the log names it.",
            "kind",
            known=message_kinds,
        )
        self.server_up = meter.gauge(
            "turnstile_server_up",
            "1: this server is reachable; 0: it is not.",
            "server",
        )
        self.publisher_blocked = meter.gauge(
            "turnstile_publisher_blocked", "1: the broker accepts no messages (memory or disk alarm)."
        )
        self.loop_lag = meter.gauge(
            "turnstile_event_loop_lag_seconds", "Largest delay of the event loop over the last 30 s."
        )
