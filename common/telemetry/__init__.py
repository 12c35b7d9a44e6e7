"""What the processes say of themselves: log lines, figures, traces.

`logs` gives lines their form. `instruments` counts and `exposition` answers `/metrics`; `loop_lag` watches
the event loop. `tracing` is off, and imports nothing, until `spans` is switched on. The services say which
figures there are: `executor.metrics`, `worker.metrics`.
"""

from turnstile.common.telemetry.logs import configure_logging

__all__ = ["configure_logging"]
