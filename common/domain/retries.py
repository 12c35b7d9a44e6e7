"""Whether a failed attempt is tried again, and after how long: arithmetic only.

The caller supplies the randomness, so that a test can own it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how far apart an action's failures are tried again."""

    max_attempts: int = 1
    """Attempts in all, the first included; 1 means no retry."""
    delay_seconds: float = 1.0
    """Wait before the second attempt."""
    factor: float = 2.0
    """Each further wait is this many times the one before."""
    max_delay_seconds: float = 300.0
    """No wait is longer, jitter included."""
    jitter: float = 0.1
    """Share of the wait, 0 to 1, by which it is spread to either side, up to the longest wait."""


def retry_delay_seconds(policy: RetryPolicy, *, failures: int, spread: float) -> float | None:
    """Return the wait before the next attempt, or None when none is left.

    `failures` counts the attempts that have failed, the latest included. `spread` is a random
    number from -1 to 1.
    """
    if failures >= policy.max_attempts:
        return None
    # The exponent is bounded so that a long series cannot overflow a float.
    longest = policy.max_delay_seconds
    wait = min(policy.delay_seconds * policy.factor ** min(failures - 1, 64), longest)
    low, high = wait * (1 - policy.jitter), min(wait * (1 + policy.jitter), longest)
    # Over the whole range that is left: cut off at the longest wait, half of them would come back together.
    return min(low + (high - low) * (1 + spread) / 2, longest)
