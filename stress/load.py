"""The requests of a scenario: a pure function of the seed.

In: a `Load`, a seed, the name of the scenario. Out: the table of requests, not sent yet: submitter, queue and
duration of each. Shares are exact up to rounding: they are shuffled, not random.
"""

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.recording import ORDER, Table, empty
from turnstile.stress.scenario import DurationMix, Load

_DURATION_US_MAX: Final = np.iinfo(np.int32).max


def plan_orders(load: Load, seed: int, name: str) -> Table:
    """Return `load.executions` requests; each submitter sends its own in this order.

    Raises ValueError for a duration above the maximum.
    """
    rng = np.random.default_rng(_entropy(seed, name))
    count = load.executions
    orders = empty(ORDER, count)
    # In turn, so that paced requests are spread evenly over the submitters.
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
    """Divide by the largest remainder method: the counts add up, and each is off by less than one."""
    exact = np.array(shares) * count / sum(shares)
    counts = np.floor(exact + 1e-9).astype(np.int64)
    left = count - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def _entropy(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest())
