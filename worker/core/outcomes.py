"""The outcome of an attempt, as a value: the worker turns every result and exception into one."""

from dataclasses import dataclass
from typing import assert_never

from turnstile.common.domain.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure: a short type name and a sentence."""

    type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The action returned; `result_json` is its return value as JSON text."""

    result_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The action raised. `retryable` is False after a PermanentError or a bad parameter."""

    failure: Failure
    retryable: bool = True
    delay_seconds: float | None = None
    """The delay that the action requested; None: the policy's."""
    location: str | None = None
    """Where a Python action raised, like `reports.py:12 in render`."""
    by_sigterm: bool = False
    """A SIGTERM that the worker did not send may be the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """It was stopped after its timeout."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """It was stopped by a cancel request."""

    failure: Failure


Outcome = Completed | Failed | TimedOut | Cancelled


def status_of(outcome: Outcome) -> Status:
    """Return the terminal state that `outcome` leads to if no retry follows."""
    match outcome:
        case Completed():
            return Status.COMPLETED
        case Failed():
            return Status.FAILED
        case TimedOut():
            return Status.TIMEOUT
        case Cancelled():
            return Status.CANCELLED
    assert_never(outcome)


def failure_of(outcome: Outcome) -> Failure | None:
    """Return the failure, or None for a completed attempt."""
    return None if isinstance(outcome, Completed) else outcome.failure
