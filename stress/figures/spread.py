"""How a latency is spread.

In: nanoseconds. Out: a `Spread` in milliseconds.
"""

import math
from typing import Final

import numpy as np

from turnstile.stress.figures.values import Spread
from turnstile.stress.tables import Instants

_MILLISECOND: Final = 1e6


def spread(latencies_ns: Instants) -> Spread | None:
    """Return the ranks of a latency; None: there was nothing to measure."""
    count = len(latencies_ns)
    if not count:
        return None
    in_order = np.sort(latencies_ns)

    def ranked(share: float) -> float:
        """Return the smallest value that at least this share of the values do not exceed (nearest rank)."""
        return float(in_order[max(math.ceil(share * count), 1) - 1]) / _MILLISECOND

    return Spread(
        count=count, p50_ms=ranked(0.5), p90_ms=ranked(0.9), p99_ms=ranked(0.99), max_ms=ranked(1.0)
    )
