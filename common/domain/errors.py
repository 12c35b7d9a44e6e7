"""The tree of errors.

    TurnstileError
    ├── Refusal            a request that can never be accepted unchanged; `code` says why
    ├── Unavailable        a server cannot be reached; the same call may work later
    │   ├── Overloaded         the call was not started
    │   └── StatementTimeout   the database answers, but this statement timed out
    └── ActionError        raised by an action
        ├── PermanentError     no retry
        └── TemporaryError     retry, after `delay` if given

Expected races (a late finish, a duplicate delivery, a lost lease) are not errors: the write returns
"not applied" and is counted.
"""

from enum import StrEnum


class Code(StrEnum):
    """Why a request was refused: the same code in replies, problem documents and dead letters."""

    INVALID_MESSAGE = "invalid_message"
    UNKNOWN_FIELD = "unknown_field"
    UNSUPPORTED_SCHEMA_VERSION = "unsupported_schema_version"
    TOO_LARGE = "too_large"
    UNKNOWN_ACTION = "unknown_action"
    INVALID_PARAMETERS = "invalid_parameters"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    QUEUE_FULL = "queue_full"
    SINGLETON_EXISTS = "singleton_exists"
    NOT_FOUND = "not_found"
    ALREADY_TERMINAL = "already_terminal"
    NOT_TERMINAL = "not_terminal"
    IN_USE = "in_use"
    PRECONDITION_FAILED = "precondition_failed"
    UNKNOWN_EXECUTION = "unknown_execution"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    UNAVAILABLE = "unavailable"


class TurnstileError(Exception):
    """Base of all errors that Turnstile raises."""


class Refusal(TurnstileError):
    """A request that cannot be accepted; the message names the field and the remedy."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Unavailable(TurnstileError):
    """A server cannot be reached, or did not answer in time: the outcome is unknown, so repeat."""


class Overloaded(Unavailable):
    """Too many calls are waiting: this one was not started; repeat it later."""


class StatementTimeout(Unavailable):
    """The database answers, but this statement timed out: repeat it with less data."""


class ActionError(TurnstileError):
    """Raised by an action to say whether its failure is retried."""


class PermanentError(ActionError):
    """The attempt failed, and is not retried."""


class TemporaryError(ActionError):
    """The attempt failed; retry after `delay`, like '30s' or seconds, or by the action's retry policy."""

    def __init__(self, message: str = "", *, delay: str | float | None = None) -> None:
        super().__init__(message)
        self.delay = delay
