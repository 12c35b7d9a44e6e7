"""The worker's clock for leases: one that also counts while the process is stopped or the machine sleeps.

Out: seconds since some instant before the start, never set back. The guardian process has the same clock.
"""

import time


def clock() -> float:
    """Return seconds of CLOCK_BOOTTIME; where there is none, of the monotonic clock."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()
