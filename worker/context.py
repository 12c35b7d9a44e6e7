"""What an action can know about its attempt: a parameter annotated with `Context` receives it."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.schedules import occurrence_of
from turnstile.worker.logs import attempt_logger
from turnstile.worker.progress import Progress, checked_progress


@dataclass(slots=True, kw_only=True)
class Invocation:
    """One attempt: its identity, and what it runs.

    Not frozen: there is one for every execution, and a frozen one takes three times as long to make.
    """

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    entrypoint: str | list[str] | None
    """What the definition in the database runs: argv, URL, `module:function`; None: the loaded action."""
    parameters_json: str
    traceparent: str | None
    timeout_seconds: float | None
    metadata_json: str = "{}"
    concurrency_key: str | None = None
    idempotency_key: str | None = None


class ExecutionStopped(BaseException):
    """The attempt must stop: raised by `Context.check_cancelled`; do not catch it.

    Like `asyncio.CancelledError` it is not an `Exception`, so `except Exception` does not catch it.
    """


class Context:
    """One attempt, as its action sees it."""

    def __init__(
        self,
        invocation: Invocation,
        *,
        write_line: Callable[[str], None],
        pass_on: Callable[[int, str], None],
        stop_reason: Callable[[], str | None],
        report_progress: Callable[[Progress], None],
        state: SimpleNamespace | None = None,
    ) -> None:
        self.state: Any = SimpleNamespace() if state is None else state
        """What the start hooks of this process made: `context.state.model`."""
        self.execution_id = invocation.execution_id
        self.attempt = invocation.attempt
        self.action_ref = invocation.action_ref
        self.traceparent = invocation.traceparent
        self.concurrency_key = invocation.concurrency_key
        """The key whose queue this execution was in; None without one."""
        self.idempotency_key = invocation.idempotency_key
        """The key under which it was submitted; None without one."""
        occurrence = occurrence_of(invocation.idempotency_key)
        self.scheduled_for = None if occurrence is None else occurrence[1]
        """The occurrence of a schedule that it runs for, in UTC, without jitter; None: there is none."""
        self.deadline = _deadline(invocation.timeout_seconds)
        """When the timeout of this attempt passes, in UTC; None without a timeout."""
        self._metadata_json = invocation.metadata_json
        self._report_progress = report_progress
        self._write_line = write_line
        self._pass_on = pass_on
        self._stop_reason = stop_reason

    @cached_property
    def logger(self) -> logging.Logger:
        """A logger whose lines are stored with the attempt and also go to the worker's log."""
        return attempt_logger(self.action_ref, write_line=self._write_line, pass_on=self._pass_on)

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """What the submitter attached to the execution."""
        metadata: dict[str, str] = json.loads(self._metadata_json)
        return metadata

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report how far this attempt has come: `done` of `total`, in units of your own.

        May be called as often as you like, from any thread: about once a second the newest report is stored
        and shown, and the last one before the attempt ends. Raises TypeError or ValueError for what is no
        number from 0 on; a message above 500 characters is cut.
        """
        self._report_progress(checked_progress(done, total, message))

    @property
    def cancelled(self) -> bool:
        """Whether this attempt must stop: it was cancelled, its timeout has passed, or its worker drains.

        Whatever the action returns after that is discarded.
        """
        return self._stop_reason() is not None

    def check_cancelled(self) -> None:
        """Raise `ExecutionStopped` if this attempt must stop; call it between the steps of long work."""
        reason = self._stop_reason()
        if reason is not None:
            raise ExecutionStopped(reason)


def _deadline(timeout_seconds: float | None) -> datetime | None:
    return None if timeout_seconds is None else datetime.now(UTC) + timedelta(seconds=timeout_seconds)
