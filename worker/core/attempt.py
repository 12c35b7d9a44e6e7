"""One attempt, step by step over one value: run, stop, report.

In: the next offer of the waiting list, cancels, the drain, the loss of the lease. Out: exactly one end or
return for each (P3), a report of the start for what runs long. A run is stopped in steps: ask, grace, kill.
Once a stop was requested it is the outcome, whatever the run still returns. After the lease nothing is
reported (P6).
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, Literal, NamedTuple, TypeAlias, assert_never

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.durations import format_duration, format_elapsed
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    EndStatus,
    Offer,
)
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.lease import Lease
from turnstile.worker.core.outcomes import Completed, Failed, Failure
from turnstile.worker.core.ports import CutShort, NotStarted, Ports, Run, RunEnd
from turnstile.worker.core.reporter import Outbox
from turnstile.worker.core.waiting import Waiting, WaitingList
from turnstile.worker.fence import Standing

StopKind: TypeAlias = Literal["drain", "cancel", "timeout"]
_STRENGTH: Final[dict[StopKind, int]] = {"drain": 0, "cancel": 1, "timeout": 1}
_POLL_SECONDS: Final = 1.0
"""Longest wait: the clock also runs while this process is stopped, the loop's clock may not."""
_PLANS_MIN: Final = 64


class Stop(NamedTuple):
    """Why an attempt is stopped."""

    kind: StopKind
    reason: str


class _Step(Enum):
    """What is due at an instant of an attempt."""

    REPORT_START = "report_start"
    TIME_OUT = "time_out"
    KILL = "kill"
    LEAVE_BEHIND = "leave_behind"


class _Plan(NamedTuple):
    at: float
    number: int
    step: _Step
    attempt: "Attempt"


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt in progress."""

    offer: Offer
    queue: str
    began: float
    """By the monotonic clock."""
    started_at: float
    """Seconds since 1970."""
    run: Run | None = None
    stop: Stop | None = None
    is_start_reported: bool = False
    is_killed: bool = False
    is_over: bool = False
    """Its end was reported, or will never be."""
    had_no_grace: bool = False
    """It was killed at once: the lease was in doubt."""

    def explain_stop(self, now: float, grace_seconds: float, *, is_left_behind: bool) -> None:
        """Say in the reason of its stop how it ended after that, at an instant of the monotonic clock."""
        stop = self.stop
        if stop is None or stop.kind == "drain" or self.run is None or self.had_no_grace:
            return
        grace, parts = f"the grace period of {format_duration(grace_seconds)}", [stop.reason]
        if stop.kind == "timeout":
            parts = [f"{stop.reason} and was stopped after {format_elapsed(now - self.began)}"]
        if self.is_killed:
            how = "still runs" if is_left_behind else "was killed"
            parts.append(f"it did not end within {grace} and {how}")
        elif stop.kind == "timeout":
            parts.append(f"it ended within {grace}")
        self.stop = stop._replace(reason="; ".join(parts))


class Attempts:
    """Starts the attempts of one worker id, stops them, and reports how they end."""

    def __init__(
        self, ports: Ports, config: WorkerConfig, *, lease: Lease, waiting: WaitingList, outbox: Outbox
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = ports.clock
        self._runner = ports.runner
        self._config = config
        self._lease = lease
        self._waiting = waiting
        self._outbox = outbox
        self._host = ports.host
        self._running: dict[Grant, Attempt] = {}
        self._unended: dict[Attempt, None] = {}
        """Also those that were reported and could not be killed."""
        self._plans: list[_Plan] = []
        self._plan_number = 0
        self._replan = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while nothing of any run is left."""
        self.idle.set()

    def __contains__(self, grant: Grant) -> bool:
        return grant in self._running

    def held(self) -> Iterable[tuple[int, Grant]]:
        """Return execution ids and grants of all that runs."""
        return ((each.offer.execution_id, grant) for grant, each in self._running.items())

    async def run(self) -> None:
        """Do what is due at its time, until cancelled."""
        while True:
            self._do_what_is_due(self._clock.monotonic())
            self._replan.clear()
            if not self._plans:
                await self._replan.wait()
                continue
            left_seconds = self._plans[0].at - self._clock.monotonic()
            await self._clock.wait(self._replan, min(max(left_seconds, 0.0), _POLL_SECONDS))

    # Run.

    def start_ready(self) -> None:
        """Start what may start now: call it whenever an answer, an offer or an end may permit more."""
        now = self._clock.monotonic()
        while self._outbox.has_room and self._lease.standing(now) is Standing.CERTAIN:
            waiting = self._waiting.next()
            if waiting is None:
                return
            if now < waiting.expires_at:
                self._start(waiting, now)
            else:
                self._waiting.ended(waiting.queue)
                reason = "its time to live ran out before it started"
                self._outbox.add(unstarted_end(waiting.offer, Status.EXPIRED, reason))

    def _start(self, waiting: Waiting, now: float) -> None:
        # In this order: the end is computed from both, and must not be after the start of the next run.
        offer, started_at, began = waiting.offer, self._clock.wall(), self._clock.monotonic()
        attempt = Attempt(offer=offer, queue=waiting.queue, began=began, started_at=started_at)
        self._running[offer.grant] = attempt
        self._unended[attempt] = None
        self.idle.clear()
        timeout_seconds, start_seconds = offer.timeout_seconds, self._config.started_after_seconds
        if timeout_seconds is None or timeout_seconds > start_seconds:
            self._plan(_Step.REPORT_START, attempt, now + start_seconds)
        else:
            self._plan(_Step.TIME_OUT, attempt, now + timeout_seconds)
        reached(CrashPoint.ATTEMPT_STARTED)
        ended = partial(self._ended, attempt)
        try:
            attempt.run = self._runner.start(offer, ended)
        except Exception as error:  # noqa: BLE001
            failure = Failure(type=type(error).__name__, message=str(error) or "no message")
            # Later, as all ends: each end starts the next one, and this call is one of those.
            self._loop.call_soon(ended, Failed(failure=failure))

    def cancel(self, cancel: CancelAttempt) -> None:
        """Stop a running attempt. Without a certain lease there is no grace: another copy may start."""
        is_certain = self._lease.standing(self._clock.monotonic()) is Standing.CERTAIN
        kind: StopKind = "timeout" if cancel.status is Status.TIMEOUT else "cancel"
        self._stop(self._running[cancel.grant], Stop(kind, cancel.reason), at_once=not is_certain)

    def kill_stopped(self) -> None:
        """End the grace of all that was cancelled or ran too long: the lease is in doubt now."""
        for attempt in list(self._running.values()):
            if attempt.stop is not None and attempt.stop.kind != "drain":
                attempt.had_no_grace = attempt.had_no_grace or not attempt.is_killed
                self._kill(attempt)

    def stop_all(self, reason: str) -> None:
        """Stop what runs, to be returned."""
        for attempt in list(self._running.values()):
            self._stop(attempt, Stop("drain", reason))

    def lose_all(self) -> None:
        """Kill what runs, and report nothing of it: the lease is over."""
        self._running.clear()
        for attempt in list(self._unended):
            attempt.is_over = True
            self._kill(attempt)

    def _stop(self, attempt: Attempt, stop: Stop, *, at_once: bool = False) -> None:
        before = attempt.stop
        if before is None or _STRENGTH[stop.kind] > _STRENGTH[before.kind]:
            attempt.stop = stop
        if at_once:
            attempt.had_no_grace = attempt.had_no_grace or not attempt.is_killed
            self._kill(attempt)
        elif before is None and attempt.run is not None:
            attempt.run.ask_to_stop(stop.reason)
            self._plan(_Step.KILL, attempt, self._clock.monotonic() + self._config.grace_seconds)

    def _kill(self, attempt: Attempt) -> None:
        if attempt.run is not None and not attempt.is_killed:
            attempt.is_killed = True
            attempt.run.kill()
            self._plan(_Step.LEAVE_BEHIND, attempt, self._clock.monotonic() + self._config.killed_seconds)

    def _plan(self, step: _Step, attempt: Attempt, at: float) -> None:
        if len(self._plans) > _PLANS_MIN + 4 * len(self._running):
            self._plans = [plan for plan in self._plans if not plan.attempt.is_over]
            heapify(self._plans)
        self._plan_number += 1
        heappush(self._plans, _Plan(at, self._plan_number, step, attempt))
        if self._plans[0].number == self._plan_number:
            self._replan.set()

    def _do_what_is_due(self, now: float) -> None:
        while self._plans and self._plans[0].at <= now:
            plan = heappop(self._plans)
            if not plan.attempt.is_over:
                self._do(plan.step, plan.attempt)

    def _do(self, step: _Step, attempt: Attempt) -> None:
        timeout_seconds = attempt.offer.timeout_seconds
        match step:
            case _Step.REPORT_START:
                if not attempt.is_start_reported:
                    self._report_start(attempt, is_urgent=False)
                if timeout_seconds is not None:
                    self._plan(_Step.TIME_OUT, attempt, attempt.began + timeout_seconds)
            case _Step.TIME_OUT:
                assert timeout_seconds is not None
                reason = f"it ran longer than its timeout of {format_duration(timeout_seconds)}"
                self._stop(attempt, Stop("timeout", reason))
            case _Step.KILL:
                self._kill(attempt)
            case _Step.LEAVE_BEHIND:
                # What a drain stopped is never returned while it runs: it would run twice.
                if attempt.stop is not None and attempt.stop.kind != "drain":
                    self._report(attempt, NotStarted(reason=attempt.stop.reason), is_left_behind=True)
            case _:
                assert_never(step)

    # Report.

    def _ended(self, attempt: Attempt, end: RunEnd) -> None:
        reached(CrashPoint.ATTEMPT_ENDED)
        self._unended.pop(attempt, None)
        self._report(attempt, end)

    def answer(self, grant: Grant) -> None:
        """Report the start of a running attempt: the leader asks for it by offering it again."""
        self._report_start(self._running[grant])

    def answer_all(self, queue: str) -> None:
        """Report the starts of a queue that were not reported: a recall asks for them."""
        for attempt in self._running.values():
            if attempt.queue == queue and not attempt.is_start_reported:
                self._report_start(attempt)

    def _report_start(self, attempt: Attempt, *, is_urgent: bool = True) -> None:
        attempt.is_start_reported = True
        self._outbox.add(started(attempt), is_urgent=is_urgent)

    def _report(self, attempt: Attempt, end: RunEnd, *, is_left_behind: bool = False) -> None:
        if not attempt.is_over:
            del self._running[attempt.offer.grant]
            if attempt.stop is not None:
                now, grace_seconds = self._clock.monotonic(), self._config.grace_seconds
                attempt.explain_stop(now, grace_seconds, is_left_behind=is_left_behind)
            # The clock of the machine may have been set meanwhile.
            report = end_of(attempt, end, attempt.started_at + self._clock.monotonic() - attempt.began)
            if self._host is not None:
                report = self._host.ending(attempt.offer, report)
            self._outbox.add(report, is_urgent=not self._waiting.has_more(attempt.queue))
            if isinstance(report, AttemptReturned) and (not report.had_started or attempt.stop is None):
                for offer in self._waiting.close(attempt.queue, report.grant):
                    self._outbox.add(returned(offer, "one before it in its queue was returned"))
            self._waiting.ended(attempt.queue)
            attempt.is_over = True
            self.start_ready()
        if not self._unended:
            self.idle.set()


def started(attempt: Attempt) -> AttemptStarted:
    """Return the report that an attempt runs."""
    offer = attempt.offer
    return AttemptStarted(execution_id=offer.execution_id, grant=offer.grant, at=attempt.started_at)


def unstarted_end(
    named: Offer | CancelAttempt,
    status: Literal[Status.EXPIRED, Status.CANCELLED, Status.TIMEOUT],
    reason: str,
) -> AttemptEnded:
    """Return the end of an attempt that never started."""
    return AttemptEnded(
        execution_id=named.execution_id, grant=named.grant, status=status, error=(status.title(), reason)
    )


def returned(offer: Offer, reason: str) -> AttemptReturned:
    """Return the report that an attempt never started and is given back."""
    return AttemptReturned(execution_id=offer.execution_id, grant=offer.grant, reason=reason)


def end_of(attempt: Attempt, end: RunEnd, at: float) -> AttemptEnded | AttemptReturned:
    """Return the report of an attempt that ended, or was left behind, at an instant of the wall clock."""
    offer, stop, had_started = attempt.offer, attempt.stop, attempt.run is not None
    if stop is not None and stop.kind == "drain":
        return AttemptReturned(
            execution_id=offer.execution_id, grant=offer.grant, had_started=had_started, reason=stop.reason
        )
    if stop is None and isinstance(end, NotStarted | CutShort):
        return replace(returned(offer, end.reason), had_started=isinstance(end, CutShort))
    status, result, error = _outcome_of(stop, end)
    failed = end if stop is None and isinstance(end, Failed) else None
    # Built once: there is one for every execution.
    return AttemptEnded(
        execution_id=offer.execution_id,
        grant=offer.grant,
        status=status,
        result=result,
        error=error,
        is_retryable=failed is not None and failed.retryable,
        delay_seconds=None if failed is None else failed.delay_seconds,
        started_at=attempt.started_at if had_started else None,
        completed_at=at,
    )


def _outcome_of(stop: Stop | None, end: RunEnd) -> tuple[EndStatus, bytes | None, tuple[str, str] | None]:
    """Return status, result and error: of the stop, if there was one."""
    if stop is not None:
        if stop.kind == "timeout":
            return Status.TIMEOUT, None, ("Timeout", stop.reason)
        return Status.CANCELLED, None, ("Cancelled", stop.reason)
    match end:
        case Completed():
            return Status.COMPLETED, end.result_json.encode(), None
        case Failed(failure=failure):
            return Status.FAILED, None, (failure.type, failure.message)
        case NotStarted() | CutShort():
            raise AssertionError("returned, not ended")
    assert_never(end)
