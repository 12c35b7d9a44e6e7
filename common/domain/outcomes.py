"""How an attempt ended, as a value: what the worker's one broad `except` turns everything into."""

from dataclasses import dataclass
from typing import assert_never

from turnstile.common.domain.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong: a short type name and a sentence for a person."""

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
    """The wait that the action asked for, else the policy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """It was stopped because its timeout had passed."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """It was stopped because somebody asked for it."""

    failure: Failure


Outcome = Completed | Failed | TimedOut | Cancelled


def status_of(outcome: Outcome) -> Status:
    """Return the terminal state that `outcome` leads to when no retry follows."""
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
    """Return what went wrong, or None for a completed attempt."""
    return None if isinstance(outcome, Completed) else outcome.failure
