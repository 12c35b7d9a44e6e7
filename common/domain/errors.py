"""The tree of errors.

    TurnstileError
    ├── Refusal            a request that will never be accepted as it is; `code` says why
    ├── Unavailable        a server cannot be reached just now; the same call may work later
    │   ├── Overloaded         it was not even begun
    │   └── StatementTimeout   the database answers, but not to this statement in its time
    └── ActionError        what an action raises on purpose
        ├── PermanentError     trying again is useless
        └── TemporaryError     try again, after `delay` where it is given

Expected races (a late finish, a duplicate delivery, a lost lease) are not errors: the write says
"not applied" and is counted.
"""

from enum import StrEnum


class Code(StrEnum):
    """Why a request was refused: the same word in replies, problem documents and dead letters."""

    INVALID_MESSAGE = "invalid_message"
    UNKNOWN_FIELD = "unknown_field"
    UNSUPPORTED_SCHEMA_VERSION = "unsupported_schema_version"
    TOO_LARGE = "too_large"
    UNKNOWN_ACTION = "unknown_action"
    INVALID_PARAMETERS = "invalid_parameters"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    QUEUE_FULL = "queue_full"
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
    """Anything that Turnstile raises on purpose."""


class Refusal(TurnstileError):
    """A request that cannot be accepted; the message names the field and the remedy."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Unavailable(TurnstileError):
    """A server cannot be reached, or did not answer in time: the outcome is unknown, repeat."""


class Overloaded(Unavailable):
    """Too many wait already: nothing was begun, repeat later."""


class StatementTimeout(Unavailable):
    """The database answers, and yet did not finish this statement in its time: repeat with less."""


class ActionError(TurnstileError):
    """What an action raises to say how its failure is to be taken."""


class PermanentError(ActionError):
    """The attempt failed and trying again is useless."""


class TemporaryError(ActionError):
    """The attempt failed; try again after `delay` seconds, or by the action's policy."""

    def __init__(self, message: str = "", *, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay
