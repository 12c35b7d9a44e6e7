"""The metrics that executor and worker have in common, under the same names and with the same texts."""

from turnstile.common.telemetry.metrics import Meter


class ServiceMetrics:
    """Declares them for the meter of one service."""

    def __init__(self, meter: Meter) -> None:
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
