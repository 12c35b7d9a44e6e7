"""Whether a failed attempt is retried, and after which delay. The caller supplies the random number."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and after which delays the failures of an action are retried."""

    max_attempts: int = 1
    """Attempts in total; 1 means no retry."""
    delay_seconds: float = 1.0
    """Delay before the second attempt."""
    factor: float = 2.0
    """Each further delay is this many times the previous one."""
    max_delay_seconds: float = 300.0
    """Maximum delay, jitter included."""
    jitter: float = 0.1
    """Share of the delay, 0 to 1, by which it is spread at random to either side, up to the maximum."""


def retry_delay_seconds(policy: RetryPolicy, *, failures: int, spread: float) -> float | None:
    """Return the delay before the next attempt, or None when no attempt is left.

    `failures` counts the failed attempts. `spread` is a random number from -1 to 1.
    """
    if failures >= policy.max_attempts:
        return None
    # The exponent is bounded so that a long series cannot overflow a float.
    longest = policy.max_delay_seconds
    wait = min(policy.delay_seconds * policy.factor ** min(failures - 1, 64), longest)
    low, high = wait * (1 - policy.jitter), min(wait * (1 + policy.jitter), longest)
    # Spread over the remaining range: cut off at the maximum, half of the retries would come at once.
    return min(low + (high - low) * (1 + spread) / 2, longest)
