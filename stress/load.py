"""What is asked for, order by order: a pure function of the seed.

In: a `Load`, a seed, the name of the stage. Out: the table of orders, not sent yet: who sends each, into
which queue, and how long it takes. The same seed gives the same load. Shares are exact up to rounding: they
are shuffled, not drawn. Next: `drive` sends it.
"""

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.mix import DurationMix
from turnstile.stress.stage import Load
from turnstile.stress.tables import ORDER, Table, empty

_DURATION_US_MAX: Final = np.iinfo(np.int32).max


def plan_orders(load: Load, seed: int, name: str) -> Table:
    """Return `load.executions` orders; each submitter sends its own in this order.

    Raises ValueError for a duration that no column holds.
    """
    rng = np.random.default_rng(_entropy(seed, name))
    count = load.executions
    orders = empty(ORDER, count)
    # In turn, so that orders that are paced leave evenly, whoever sends them.
    orders["submitter"] = np.arange(count) % load.submitters
    orders["queue"] = rng.permutation(np.arange(count, dtype=np.int32) % load.queues)
    orders["duration_us"] = rng.permutation(_durations_us(load.mix, count))
    return orders


def _durations_us(mix: DurationMix, count: int) -> NDArray[np.int32]:
    durations = [round(part.seconds * 1_000_000) for part in mix.parts]
    if max(durations) > _DURATION_US_MAX:
        raise ValueError(
            f"the mix {mix}: an execution may take {_DURATION_US_MAX / 60e6:.0f} minutes at most"
        )
    return np.repeat(np.array(durations, np.int32), _counts([part.share for part in mix.parts], count))


def _counts(shares: list[float], count: int) -> NDArray[np.int64]:
    """Divide by largest remainder: the counts add up, and none is off by one or more."""
    exact = np.array(shares) * count / sum(shares)
    counts = np.floor(exact + 1e-9).astype(np.int64)
    left = count - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def _entropy(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest())
