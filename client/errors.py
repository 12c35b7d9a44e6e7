"""What the client raises.

    TurnstileError
    ├── Rejected           the request will not be done as it is; `code` says why
    ├── ExecutionFailed    it was done, and ended as anything but completed
    └── Unavailable        no answer in time: the outcome is unknown, look or repeat

A `wait` that outlasts its own timeout raises Python's `TimeoutError`; the execution goes on.
"""

from turnstile.common.domain.errors import Refusal, TurnstileError, Unavailable
from turnstile.common.domain.states import Status
from turnstile.common.messages import Error

__all__ = ["ExecutionFailed", "Rejected", "Unavailable", "rejected"]


class Rejected(TurnstileError):
    """The request was refused, by the executor or by this client before it was sent.

    `code` is one of the codes of replies and problem documents; `message` names the field and the remedy.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ExecutionFailed(TurnstileError):
    """The execution ended as anything but completed."""

    def __init__(self, execution_id: int, status: Status, error: Error | None) -> None:
        super().__init__(execution_id, status, error)
        self.execution_id = execution_id
        self.status = status
        self.error = error

    def __str__(self) -> str:
        reason = "" if self.error is None else f": {self.error.type}: {self.error.message}"
        return f"execution {self.execution_id} ended as {self.status}{reason}"


def rejected(refusal: Refusal) -> Rejected:
    """Return what our own check refused, as the executor would have said it."""
    return Rejected(refusal.code, refusal.message)
