"""Runs actions for the core: the port `Runner`, over the runners, across two threads.

The core lives in the worker's own thread, user code in the main thread: a function that blocks the main loop
costs neither the lease nor the answers to the leader. In: offers that may start, requests to stop, from the
worker's thread. Out: how each run ended, once nothing of it is left. The runners keep no timeout here, since
the core does. `Crossing` carries calls both ways, in order, so a stop never overtakes its start.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, assert_never

from pydantic_core import to_json

from turnstile.common.domain.identifiers import Attempt, ExecutionId, Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded, AttemptReturned, Offer
from turnstile.worker import attempt_events
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.attempt_events import Traced, traced
from turnstile.worker.core.outcomes import Cancelled, Completed, Failed, TimedOut
from turnstile.worker.core.ports import CutShort, NotStarted, RunEnd
from turnstile.worker.live import LiveReports
from turnstile.worker.outcome import failed, outcome_of_exception
from turnstile.worker.runners.base import Call, Interrupted, RunReport, StopRequest
from turnstile.worker.runners.registry import Runners
from turnstile.worker.worker_thread import Crossing

logger = logging.getLogger(__name__)

_LEFT_POLL_SECONDS: Final = 0.02
_SIGNAL_SECONDS: Final = 0.5
"""Longest time between two deliveries of one signal."""
_CUT_SHORT: Final = "it was killed by the SIGTERM that stops the worker"
_KILLED: Final = "the run was stopped at once"
_NOTHING: Final[Mapping[str, Any]] = {}


class ActionRun:
    """One run: the port `Run`. Its public methods belong to the worker's thread."""

    __slots__ = ("_ended", "_to_main", "is_over", "location", "offer", "stop", "traced")

    def __init__(self, to_main: Crossing, offer: Offer, ended: Callable[[RunEnd], None]) -> None:
        self._to_main = to_main
        self._ended = ended
        self.offer = offer
        self.is_over = False
        """Nothing of it is left."""
        self.location: str | None = None
        """Where a Python action raised."""
        self.stop = StopRequest()
        """Of the main loop, like all of the run itself."""
        self.traced: Traced | None = None

    def ask_to_stop(self, reason: str) -> None:
        """Ask it to end by itself."""
        self._to_main.call(self.stop.request, "cancel", reason)

    def kill(self) -> None:
        """End it; a coroutine may survive that."""
        self._to_main.call(self.stop.request, "lease_lost", _KILLED)

    def end(self, end: RunEnd) -> None:
        """Note that nothing of it is left, and how it ended."""
        self.is_over = True
        self._ended(end)


class ActionRunner:
    """Starts the runs of one worker process. Create it in the worker's thread."""

    def __init__(
        self,
        runners: Runners,
        actions: Sequence[RegisteredAction],
        to_main: Crossing,
        live: LiveReports,
        stopping: asyncio.Event,
    ) -> None:
        """`to_main` leads into the loop of the runners, which also sets `stopping`: the process is to end."""
        self._to_main = to_main
        self._to_worker = Crossing(asyncio.get_running_loop())
        self._runners = runners
        self._definitions = {action.definition.ref: action.definition for action in actions}
        self._live = live
        self._stopping = stopping
        self._runs: dict[Grant, ActionRun] = {}
        """Those that were not reported yet."""
        self._tasks: set[asyncio.Task[RunEnd]] = set()

    # In the worker's thread.

    def start(self, offer: Offer, ended: Callable[[RunEnd], None]) -> ActionRun:
        """Start a run."""
        run = self._runs[offer.grant] = ActionRun(self._to_main, offer, ended)
        self._to_main.call(self._begin, run)
        return run

    @property
    def running(self) -> int:
        """How many runs have started and have not been reported."""
        return len(self._runs)

    def has_left_behind(self) -> bool:
        """Return whether something still runs of an attempt that was reported."""
        return bool(self._runners.in_loop.left_behind)

    def ending(self, offer: Offer, report: AttemptEnded | AttemptReturned) -> AttemptEnded | AttemptReturned:
        """Log, count and trace the end of an attempt; return its report, with log and progress."""
        run = self._runs.pop(offer.grant, None)
        if run is not None and not run.is_over:
            logger.warning("run_left_behind", extra={"run": _name_of(offer), "reason": _reason_of(report)})
        rest = self._live.rest_of(offer.grant)
        progress = self._live.last_progress_of(offer.grant)
        status: Status | None = None
        if isinstance(report, AttemptReturned):
            attempt_events.returned(offer)
        else:
            if rest is not None and rest.text:
                report = replace(report, log=rest.text, log_start=rest.start)
            if progress is not None:
                report = replace(report, progress=progress)
            status = attempt_events.ended(offer, report, None if run is None else run.location)
        if run is not None and run.traced is not None:
            run.traced.end(status)
        return report

    def forget_all(self) -> None:
        """Forget all runs: the lease is over, and nothing of them is reported."""
        self._runs.clear()
        self._live.clear()

    # In the main loop.

    def _begin(self, run: ActionRun) -> None:
        task = asyncio.create_task(self._run(run), name=_name_of(run.offer))
        # The event loop holds tasks weakly: without this, one could be collected while it runs.
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, run))

    def _done(self, run: ActionRun, task: asyncio.Task[RunEnd]) -> None:
        """Report the end of a run, however its task ended: a run without an end would keep its slot."""
        self._tasks.discard(task)
        end = _end_of_task(task)
        if isinstance(end, Failed):
            run.location = end.location
        self._report(run, end)

    def _report(self, run: ActionRun, end: RunEnd) -> None:
        """Report it, if it was stopped once nothing of it runs: a thread may go on."""
        this = (ExecutionId(run.offer.execution_id), Attempt(run.offer.attempt))
        if run.stop.stop is not None and this in self._runners.in_loop.left_behind:
            # No task, which code of an action could cancel; and no event counts threads.
            asyncio.get_running_loop().call_later(_LEFT_POLL_SECONDS, self._report, run, end)
            return
        self._to_worker.call(run.end, end)

    async def _run(self, run: ActionRun) -> RunEnd:
        offer = run.offer
        run.traced = traced(offer)
        attempt_events.started(offer)
        began = time.monotonic()
        if run.traced is None:
            traceparent = (offer.extra or _NOTHING).get("traceparent")
            report = await self._runner_for(offer).run(self._call_of(run, traceparent))
        else:
            with run.traced.running() as traceparent:
                report = await self._runner_for(offer).run(self._call_of(run, traceparent))
        attempt_events.ran(offer, time.monotonic() - began)
        if isinstance(report.outcome, Failed) and await self._was_cut_short(report.outcome):
            return CutShort(reason=_CUT_SHORT)
        return _end_of(report)

    async def _was_cut_short(self, failed: Failed) -> bool:
        """Return whether the signal that stops this process ended the run too.

        A service manager sends it to all processes of a service, in any order.
        """
        if not (failed.by_sigterm and failed.retryable):
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(_SIGNAL_SECONDS):
                await self._stopping.wait()
        return self._stopping.is_set()

    def _runner_for(self, offer: Offer) -> Any:
        known = self._definitions.get(offer.action_ref)
        by_code = "python" if known is None else known.runner
        return self._runners.runner_for(offer.action_ref, (offer.extra or _NOTHING).get("runner", by_code))

    def _call_of(self, run: ActionRun, traceparent: str | None) -> Call:
        offer, live = run.offer, self._live
        extra, known = offer.extra or _NOTHING, self._definitions.get(offer.action_ref)
        entrypoint = extra.get("entrypoint", None if known is None else known.entrypoint)
        metadata = extra.get("metadata")
        return Call(
            execution_id=ExecutionId(offer.execution_id),
            attempt=Attempt(offer.attempt),
            action_ref=offer.action_ref,
            entrypoint=entrypoint,
            parameters_json=offer.parameters.decode(),
            timeout_seconds=offer.timeout_seconds,
            is_timed_by_caller=True,
            traceparent=traceparent,
            stop=run.stop,
            on_log=lambda log: live.watch(offer, log),
            on_progress=lambda progress: live.report(offer, progress),
            metadata_json="{}" if metadata is None else to_json(metadata).decode(),
            concurrency_key=extra.get("concurrency_key"),
            idempotency_key=extra.get("idempotency_key"),
        )


def _name_of(offer: Offer) -> str:
    return f"execution {offer.execution_id} attempt {offer.attempt}"


def _reason_of(report: AttemptEnded | AttemptReturned) -> str:
    if isinstance(report, AttemptReturned):
        return report.reason
    return "" if report.error is None else report.error[1]


def _end_of_task(task: asyncio.Task[RunEnd]) -> RunEnd:
    """Return the end of a run; a runner never raises for what its action does, but is cancelled with it."""
    if task.cancelled():
        logger.error("runner_cancelled", extra={"run": task.get_name()})
        return failed("CancelledError", "code in the worker cancelled the task of this run")
    error = task.exception()
    if error is None:
        return task.result()
    logger.error("runner_failed", extra={"run": task.get_name()}, exc_info=error)
    return outcome_of_exception(error, lambda _: None)


def _end_of(report: RunReport) -> RunEnd:
    match report.outcome:
        case Completed() | Failed() as end:
            return end
        case Interrupted(reason=reason):
            return NotStarted(reason=reason)
        case Cancelled(failure=failure) | TimedOut(failure=failure):
            # It was asked to stop, and that is its outcome.
            return NotStarted(reason=failure.message)
    assert_never(report.outcome)
