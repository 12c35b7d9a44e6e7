"""What the client raises.

    TurnstileError
    ├── Rejected           the request cannot be accepted unchanged; `code` says why
    ├── ExecutionFailed    it was executed, and did not complete
    ├── InvalidResult      it completed, but its result does not fit the return type of the action
    ├── InvalidSetting     a variable of the environment is missing or wrong
    └── Unavailable        no answer in time: the outcome is unknown, so look it up or repeat
        └── NotReceived        the request was certainly not received

A `wait` that outlasts its own timeout raises Python's `TimeoutError`; the execution continues.
"""

from turnstile.common.domain.errors import TurnstileError, Unavailable
from turnstile.common.domain.states import Status
from turnstile.common.messages import Error

__all__ = [
    "ExecutionFailed",
    "InvalidResult",
    "InvalidSetting",
    "NotReceived",
    "Rejected",
    "TurnstileError",
    "Unavailable",
]


class NotReceived(Unavailable):
    """The server cannot be reached: the request had no effect."""


class InvalidSetting(TurnstileError, ValueError):
    """A variable of the environment is missing or wrong; the message names it and the remedy."""


class InvalidResult(TurnstileError):
    """The execution completed, but its result does not fit the type that the caller expects."""


class Rejected(TurnstileError):
    """The request was rejected, by the executor or by this client before it was sent.

    `code` is one of the codes of replies and problem documents; `message` names the field and the remedy.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ExecutionFailed(TurnstileError):
    """The execution reached a terminal state other than completed."""

    def __init__(self, execution_id: int, status: Status, error: Error | None) -> None:
        super().__init__(execution_id, status, error)
        self.execution_id = execution_id
        self.status = status
        self.error = error

    def __str__(self) -> str:
        reason = "" if self.error is None else f": {self.error.type}: {self.error.message}"
        return f"execution {self.execution_id} ended as {self.status}{reason}"
