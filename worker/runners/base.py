"""The contract between an attempt and the way it is run, and the steps by which a run is stopped.

In: a `Call`. Out: a `RunReport`: the outcome, or that the run was interrupted, and its log. A runner never
raises for what user code does. A stop is: terminate, grace period, kill. Once a stop was requested it is the
outcome, whatever the run still returns: a partial result is never taken for a complete one.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, Self, TypeVar, assert_never

from turnstile.common.domain.durations import format_duration, format_elapsed
from turnstile.worker.context import Invocation
from turnstile.worker.core.outcomes import Cancelled, Failure, Outcome, TimedOut
from turnstile.worker.logs import LogTail, clipped, log_in_worker
from turnstile.worker.progress import Progress

logger = logging.getLogger(__name__)

RequestKind = Literal["drain", "cancel", "lease_lost"]
StopKind = Literal["drain", "cancel", "lease_lost", "timeout"]
EndOfStop = Literal["by_itself", "killed", "left_behind"]
T = TypeVar("T")

_STRENGTH: Final[dict[StopKind, int]] = {"drain": 0, "cancel": 1, "timeout": 1, "lease_lost": 2}
_AFTER_KILL_SECONDS: Final = 1.0
_LOG_BYTES_MAX: Final = 64 * 1024
_REASON_CHARS_MAX: Final = 4096
_CHUNK_BYTES: Final = 64 * 1024
_DRAIN_CHUNKS_MAX: Final = 64
"""A pipe holds at most 1 MiB by default; a process that has printed more than this never stops printing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why an attempt is stopped."""

    kind: StopKind
    reason: str


class StopRequest:
    """Stops one running attempt; a stronger kind replaces a weaker one."""

    __slots__ = ("is_immediate", "listeners", "stop")

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.is_immediate = False
        """There is no time for grace."""
        self.listeners: list[Callable[[], object]] = []
        """Called in the event loop that runs the attempt, once with a stop and once when it is immediate."""

    def request(self, kind: RequestKind, reason: str) -> None:
        """Request a stop; repeatable. `lease_lost` has no grace: another copy may start at any moment."""
        self._note(Stop(kind=kind, reason=reason))

    def time_out(self, timeout_seconds: float) -> None:
        """Note that the timeout has passed."""
        reason = f"it ran longer than its timeout of {format_duration(timeout_seconds)}"
        self._note(Stop(kind="timeout", reason=reason))

    def ended(self, how: EndOfStop, *, run_seconds: float, grace_seconds: float) -> None:
        """Note how the stopped run ended, and after a timeout how long it ran; worded as by `stop_overdue`.

        If the run ended by itself, the reason of its cancellation is unchanged.
        """
        assert self.stop is not None
        timed_out = self.stop.kind == "timeout"
        grace = f"the grace period of {format_duration(grace_seconds)}"
        parts = [self.stop.reason]
        if timed_out:
            parts = [f"{self.stop.reason} and was stopped after {format_elapsed(run_seconds)}"]
        match how:
            case "by_itself":
                if timed_out:
                    parts.append(f"it ended within {grace}")
            case "killed":
                parts.append(f"it did not end within {grace} and was killed")
            case "left_behind":
                parts.append(f"it did not end within {grace} and still runs")
        self.stop = replace(self.stop, reason="; ".join(parts))

    def _note(self, stop: Stop) -> None:
        before = self.stop, self.is_immediate
        if self.stop is None or _STRENGTH[stop.kind] > _STRENGTH[self.stop.kind]:
            self.stop = stop
        self.is_immediate = self.is_immediate or stop.kind == "lease_lost"
        if before[0] is None or self.is_immediate is not before[1]:
            for listener in list(self.listeners):
                listener()


@dataclass(slots=True, kw_only=True)
class Call(Invocation):
    """One attempt, as a runner sees it."""

    stop: StopRequest
    on_log: Callable[[LogTail], object] = lambda _: None
    """Called with the attempt's log as soon as it exists, so that it can be read while the attempt runs."""
    on_progress: Callable[[Progress], None] = lambda _: None
    """Called, from any thread, with each progress that the attempt reports."""
    is_timed_by_caller: bool = False
    """Whether the caller stops it after its timeout."""

    @property
    def run_seconds_max(self) -> float | None:
        """After which time the runner stops it; None: it does not."""
        return None if self.is_timed_by_caller else self.timeout_seconds

    @property
    def name(self) -> str:
        """The attempt in log lines and task names."""
        return f"execution {self.execution_id} attempt {self.attempt}"

    def open_log(self, bytes_max: int) -> LogTail:
        """Return the log of this attempt."""
        log = LogTail(bytes_max)
        self.on_log(log)
        return log

    def log_in_worker(self, level: int, message: str) -> None:
        """Write a line of this attempt to the worker's log."""
        log_in_worker(
            level,
            message,
            execution_id=self.execution_id,
            attempt=self.attempt,
            action_ref=self.action_ref,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The worker itself stopped it, or could not start it: no outcome, the attempt is returned."""

    kind: Literal["drain", "lease_lost", "not_started"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How one attempt ended."""

    outcome: Outcome | Interrupted
    tail: LogTail | None = None
    """What it logged and printed; None: nothing."""

    @property
    def log(self) -> str:
        """The last part of its log, without what the database has already."""
        return "" if self.tail is None else self.tail.rest().text

    @classmethod
    def of(cls, ended: Outcome | Stop, log: LogTail) -> Self:
        """Return the report of an attempt that ended by itself, or by a stop."""
        return cls(outcome=outcome_of_stop(ended) if isinstance(ended, Stop) else ended, tail=log)


class Runner(Protocol):
    """A way to run actions."""

    async def run(self, call: Call) -> RunReport:
        """Run one attempt to its end; if this is cancelled, the run is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The limits of every run."""

    grace_seconds: float = 10.0
    """Between terminate and kill."""
    result_bytes_max: int = 1024 * 1024
    log_bytes_max: int = _LOG_BYTES_MAX
    child_runs_max: int | None = None
    """Runs after which a child process is replaced."""
    child_memory_bytes_max: int | None = None
    """Resident memory above which a child process is replaced after a run."""
    variables_passed: frozenset[str] = frozenset()
    """The `TURNSTILE_*` variables that the processes of runs may see; they see no others."""


def outcome_of_stop(stop: Stop) -> Outcome | Interrupted:
    """Return what is reported for a stopped attempt."""
    reason = clipped(stop.reason, _REASON_CHARS_MAX)
    match stop.kind:
        case "timeout":
            return TimedOut(failure=Failure(type="Timeout", message=reason))
        case "cancel":
            return Cancelled(failure=Failure(type="Cancelled", message=reason))
        case "drain" | "lease_lost":
            return Interrupted(kind=stop.kind, reason=reason)
    assert_never(stop.kind)


class Stoppable(Protocol):
    """What runs outside the task that waits for it."""

    def terminate(self, stop: Stop) -> None:
        """Request that it ends by itself; returns at once."""

    def kill(self) -> None:
        """End it; returns at once."""


async def run_until_stopped(
    work: asyncio.Task[T],
    stop: StopRequest,
    timeout_seconds: float | None,
    grace_seconds: float,
    running: Stoppable | None = None,
) -> T | Stop:
    """Return what `work` returns, or why it was stopped.

    `work` ends when `running` has ended; it must not raise. Without `running`, terminate and kill cancel
    `work`, since a coroutine cannot be ended from outside. If it survives even the kill, it is left behind
    with a warning. If this call is cancelled, the run is killed.
    """
    kill = work.cancel if running is None else running.kill
    clock = work.get_loop().time
    started_at = clock()
    try:
        await _ended_or(lambda: stop.stop is not None, work, stop, timeout_seconds)
        if work.done():
            return work.result()
        if stop.stop is None:
            assert timeout_seconds is not None
            stop.time_out(timeout_seconds)
        assert stop.stop is not None
        if running is None:
            work.cancel(stop.stop.reason)
        else:
            running.terminate(stop.stop)
        await _ended_or(lambda: stop.is_immediate, work, stop, grace_seconds)
        how: EndOfStop = "by_itself"
        if not work.done():
            kill()
            await asyncio.wait({work}, timeout=_AFTER_KILL_SECONDS)
            how = "killed" if work.done() else "left_behind"
        if not stop.is_immediate:
            stop.ended(how, run_seconds=clock() - started_at, grace_seconds=grace_seconds)
        if not work.done():
            logger.warning("run_left_behind", extra={"run": work.get_name(), "reason": stop.stop.reason})
        return stop.stop
    finally:
        if not work.done():
            kill()


async def _ended_or(
    is_enough: Callable[[], bool], work: asyncio.Future[T], stop: StopRequest, timeout_seconds: float | None
) -> None:
    """Wait until `work` has ended or `stop` is enough, at most so long.

    As `asyncio.wait` does, which takes several times as long to set up.
    """
    if is_enough():
        return
    loop = work.get_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    def look() -> None:
        if is_enough():
            wake()

    timer = None if timeout_seconds is None else loop.call_later(timeout_seconds, wake)
    work.add_done_callback(wake)
    stop.listeners.append(look)
    try:
        await woken
    finally:
        if timer is not None:
            timer.cancel()
        work.remove_done_callback(wake)
        stop.listeners.remove(look)


class PipeReader:
    """Feeds `sink` from a pipe, chunk by chunk, until it is closed; owns the file descriptor."""

    def __init__(self, fd: int, sink: Callable[[bytes], None]) -> None:
        self._fd: int | None = fd
        self._loop = asyncio.get_running_loop()
        self.sink = sink
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read_once)

    def drain(self) -> None:
        """Read what the pipe holds now: what was printed before an answer belongs to that answer's log."""
        for _ in range(_DRAIN_CHUNKS_MAX):
            if not self._read_once():
                return

    def close(self) -> None:
        """Stop reading; idempotent."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _read_once(self) -> bool:
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.sink(data)
        return True


class ResultBuffer:
    """Collects a result up to a limit; sets `overflowed` when more arrives."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._data = bytearray()
        self.overflowed = asyncio.Event()
        self.size_bytes = 0
        """All that arrived, stored or not."""

    def write(self, data: bytes) -> None:
        """Add `data` as far as the limit allows."""
        self.size_bytes += len(data)
        self._data += data[: max(0, self._bytes_max - len(self._data))]
        if self.size_bytes > self._bytes_max:
            self.overflowed.set()

    @property
    def is_complete(self) -> bool:
        """Whether nothing was discarded."""
        return self.size_bytes <= self._bytes_max

    def content(self) -> bytes:
        """Return what was stored."""
        return bytes(self._data)
