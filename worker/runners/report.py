"""What a runner is told and what it tells: the contract between one attempt and the way it is run.

In: a `Call`. Out: a `RunReport`: the outcome, or that it was interrupted, and the log. A runner never raises
for what user code does. Next: one module per runner beside this one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, assert_never

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.outcomes import Cancelled, Failure, Outcome, TimedOut
from turnstile.worker.attempt_log import LogTail, clipped
from turnstile.worker.runners.stopping import Stop, StopKind, StopRequest

LOG_BYTES_MAX = 64 * 1024
_REASON_CHARS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One attempt, as a runner sees it."""

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    entrypoint: str | list[str] | None
    """What the database says is to be run: argv, URL, `module:function`; None: what the worker loaded."""
    parameters_json: str
    timeout_seconds: float | None
    traceparent: str | None
    stop: StopRequest
    watch_log: Callable[[LogTail], object] = lambda _: None
    """Told of the attempt's log as soon as there is one, so that it can be read while the attempt runs."""

    def open_log(self, bytes_max: int) -> LogTail:
        """Return the log of this attempt."""
        log = LogTail(bytes_max)
        self.watch_log(log)
        return log


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The worker itself made it stop (`drain`, `lease_lost`): no outcome, the execution is given back."""

    kind: StopKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How one attempt went."""

    outcome: Outcome | Interrupted
    log: str
    """The last part of what it logged and printed, but for what is in the record already."""
    log_start: int = 0
    """How many characters of the log came before `log`."""

    @classmethod
    def of(cls, ended: Outcome | Stop, log: LogTail) -> Self:
        """Return the report of an attempt that ended by itself, or by a stop."""
        rest = log.rest()
        return cls(outcome=ending(ended), log=rest.text, log_start=rest.start)


class Runner(Protocol):
    """A way to run actions."""

    async def run(self, call: Call) -> RunReport:
        """Run one attempt to its end; if this is cancelled, what runs is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The bounds of every run."""

    grace_seconds: float = 10.0
    """Between asking and killing."""
    result_bytes_max: int = 1024 * 1024
    log_bytes_max: int = LOG_BYTES_MAX
    variables_passed: frozenset[str] = frozenset()
    """Settings of the worker that the processes of runs may see in their environment; others they may not."""


def ending(ended: Outcome | Stop) -> Outcome | Interrupted:
    """Return what is reported for an attempt that ended by itself, or by a stop."""
    if not isinstance(ended, Stop):
        return ended
    reason = clipped(ended.reason, _REASON_CHARS_MAX)
    match ended.kind:
        case "timeout":
            return TimedOut(failure=Failure(type="Timeout", message=reason))
        case "cancel":
            return Cancelled(failure=Failure(type="Cancelled", message=reason))
        case "drain" | "lease_lost":
            return Interrupted(kind=ended.kind, reason=reason)
    assert_never(ended.kind)
