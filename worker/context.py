"""What a running action is told: a parameter annotated `Context` receives it.

In: the ids of the attempt, a way to ask whether it is to stop, a place for log lines. Out: nothing; the
runner that made it reads the outcome. Next: `worker.attempt_log`.
"""

import logging
from collections.abc import Callable

from turnstile.common.domain.identifiers import Attempt, ExecutionId


class ExecutionStopped(BaseException):
    """The attempt was asked to stop: raised by `Context.check_cancelled`, to be let through.

    Like `asyncio.CancelledError` it is no `Exception`, so that `except Exception` does not swallow it.
    """


class Context:
    """One attempt, seen from inside the action."""

    __slots__ = (
        "_logger",
        "_make_logger",
        "_stop_reason",
        "action_ref",
        "attempt",
        "execution_id",
        "traceparent",
    )

    def __init__(
        self,
        *,
        execution_id: ExecutionId,
        attempt: Attempt,
        action_ref: str,
        traceparent: str | None,
        make_logger: Callable[[], logging.Logger],
        stop_reason: Callable[[], str | None],
    ) -> None:
        self.execution_id = execution_id
        self.attempt = attempt
        self.action_ref = action_ref
        self.traceparent = traceparent
        self._make_logger = make_logger
        self._stop_reason = stop_reason
        self._logger: logging.Logger | None = None

    @property
    def logger(self) -> logging.Logger:
        """A logger whose lines are kept with the attempt and go to the worker's log."""
        if self._logger is None:
            self._logger = self._make_logger()
        return self._logger

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was asked to stop: cancelled, out of time, or its worker is leaving.

        What it returns after that is not kept.
        """
        return self._stop_reason() is not None

    def check_cancelled(self) -> None:
        """Raise `ExecutionStopped` if this attempt was asked to stop; call it between steps of long work."""
        reason = self._stop_reason()
        if reason is not None:
            raise ExecutionStopped(reason)
