"""Decides what an answer to a webhook means: delivered, to be tried again, or given up. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

from turnstile.common.domain.retries import RetryPolicy, retry_delay_seconds

State = Literal["pending", "delivered", "failed"]

_RETRY_AFTER_SECONDS_MAX: Final = 86_400.0
"""A receiver may ask for a longer wait than ours, up to a day."""
# Request Timeout, Too Many Requests: the request itself was not at fault.
_RETRYABLE_4XX: Final = {408, 429}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back from one POST."""

    status: int | None = None
    """The HTTP status; None where there was no answer."""
    error: str | None = None
    """What was wrong, for people; None for a 2xx."""
    retry_after_seconds: float | None = None
    is_final: bool = False
    """Another try cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What becomes of the delivery."""

    state: State
    delay_seconds: float = 0.0
    """Until the next try of a pending one."""


def judge(answer: Answer, *, attempts: int, policy: RetryPolicy, spread: float) -> Judgement:
    """Return what the answer to attempt number `attempts` leads to; `spread` is random, from -1 to 1."""
    if answer.status is not None and 200 <= answer.status < 300:
        return Judgement(state="delivered")
    if answer.is_final or _is_refusal(answer.status):
        return Judgement(state="failed")
    delay_seconds = retry_delay_seconds(policy, failures=attempts, spread=spread)
    if delay_seconds is None:
        return Judgement(state="failed")
    asked_seconds = min(answer.retry_after_seconds or 0.0, _RETRY_AFTER_SECONDS_MAX)
    return Judgement(state="pending", delay_seconds=max(delay_seconds, asked_seconds))


def _is_refusal(status: int | None) -> bool:
    return status is not None and 400 <= status < 500 and status not in _RETRYABLE_4XX
