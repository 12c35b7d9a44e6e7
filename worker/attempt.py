"""One attempt, step by step: receive, claim, run, finish, publish, acknowledge.

In: one offer of an `execution.scheduled`. Out: the attempt's outcome in the database (P3), its completion for
the executor (P4), and the disposition of its offer, once the outcome is committed (P5). The offer is
acknowledged while the completion is published: a redelivered offer of an ended attempt is only refused, and
whatever is not published the watchdog finds in the row. Wherever a process dies before, the message is
redelivered or the watchdog finds the row, and the claim's fence (P6) admits only the right attempt. Once the
lease is lost, an attempt writes and publishes nothing, whatever its step. Claims, finishes and messages of
all attempts of the process are batched by `worker.gateway`.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Final, assert_never

from pydantic_core import from_json

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import WORKER_RETRY
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.outcomes import Completed, Failed, Outcome, failure_of, status_of
from turnstile.common.domain.retries import retry_delay_seconds
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.envelopes import (
    alone,
    completed_message,
    dead_letter,
    delayed_retry,
    slot_message,
    tries_of,
)
from turnstile.common.json_limits import readable
from turnstile.common.messages import StatusChanged, named_attempt
from turnstile.common.requests import check_schema_version, read_json
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker import instrumentation
from turnstile.worker.fence import Standing
from turnstile.worker.gateway import Gateway
from turnstile.worker.logs import LogTail
from turnstile.worker.metrics import DEAD_LETTERED
from turnstile.worker.progress import Progress
from turnstile.worker.protocol import Claim, Finished, Offer, Report, Verdict
from turnstile.worker.runners.base import Call, Interrupted, RunReport, StopRequest, outcome_of_stop
from turnstile.worker.runners.registry import Runners

logger = logging.getLogger(__name__)
_NOT_SERVED: Final = Episodes(logger, "action_not_served")

TRIES_MAX: Final = 30
"""How often an offer of an unknown execution is redelivered, about a second apart."""
_EARLY_CANCELS_MAX: Final = 1000
_SCHEDULED_BYTES_MAX: Final = 64 * 1024


class Disposition(Enum):
    """What to do with the offer."""

    ACKNOWLEDGE = "acknowledge"
    REQUEUE = "requeue"


class Phase(Enum):
    """How far an attempt has come."""

    WAIT = "wait"
    """No claim was sent: another worker may take it."""
    CLAIM = "claim"
    """The claim was sent, and perhaps made; nothing runs yet."""
    RUN = "run"
    """The action runs."""
    PUBLISH = "publish"
    """The action has ended."""


class RunningAttempt:
    """One attempt in progress; create it in the task that makes the attempt."""

    __slots__ = ("abandoned", "phase", "stop", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[object] = task
        self.stop = StopRequest()
        self.phase = Phase.WAIT
        self.abandoned = False

    def abandon(self) -> None:
        """Cancel its wait for a server; a run is ended by `stop`, so that its end is seen."""
        self.abandoned = True
        if self.phase is not Phase.RUN:
            self.task.cancel()


class Attempts:
    """Runs the attempts of one worker id, and knows which are in progress."""

    def __init__(self, gateway: Gateway, runners: Runners, *, event_result_max_bytes: int) -> None:
        self._gateway = gateway
        self._lease = gateway.lease
        self._runners = runners
        self._event_result_max_bytes = event_result_max_bytes
        self._running: dict[Offer, RunningAttempt] = {}
        self._early_cancels: dict[Offer, str] = {}
        self.not_applied: Counter[str] = Counter()
        """Calls that the database did not apply, by verdict, and attempts dropped without a call."""
        self.draining = False
        self.not_stopped: list[Claim] = []
        """Attempts that the drain interrupted but whose action still runs: not to be handed back yet."""

    @property
    def count(self) -> int:
        """Attempts in progress."""
        return len(self._running)

    @property
    def running(self) -> int:
        """Attempts whose action runs."""
        return sum(each.phase is Phase.RUN for each in self._running.values())

    def cancel(self, offer: Offer, reason: str) -> None:
        """Cancel one attempt; one that is not claimed yet is stopped once it is claimed.

        While the lease is in doubt there is no grace: another copy may start at any moment.
        """
        attempt = self._running.get(offer)
        if attempt is not None:
            certain = self._lease.standing() is Standing.CERTAIN
            attempt.stop.request("cancel" if certain else "lease_lost", reason)
        elif len(self._early_cancels) < _EARLY_CANCELS_MAX:
            self._early_cancels[offer] = reason

    def hand_back_all(self) -> None:
        """Stop what runs, to be handed back, and claim nothing more: the drain timeout has passed."""
        for attempt in list(self._running.values()):
            attempt.stop.request("drain", "the worker stops")
            if attempt.phase in (Phase.WAIT, Phase.CLAIM):
                attempt.abandon()

    def return_unclaimed(self) -> None:
        """Return offers to the queue unless their claim was sent: such a claim may have been made."""
        for attempt in list(self._running.values()):
            if attempt.phase is Phase.WAIT:
                attempt.abandon()

    def lose_all(self) -> None:
        """Kill what runs and end every wait: the lease is lost."""
        self.draining = True
        for attempt in list(self._running.values()):
            attempt.stop.request("lease_lost", "the worker's lease is lost")
            attempt.abandon()

    async def refuse(self, delivery: Delivery, refusal: Refusal) -> Disposition:
        """Dead-letter a message that offers nothing readable."""
        await self._dead_letter(delivery, refusal.code, refusal.message)
        return Disposition.ACKNOWLEDGE

    async def run(self, offer: Offer, delivery: Delivery) -> Disposition:
        """Run one attempt, from its offer, which came with `delivery`, to its outcome."""
        if offer in self._running:
            return Disposition.ACKNOWLEDGE  # a copy of an attempt in progress
        reached(CrashPoint.OFFER_RECEIVED)
        attempt = self._running[offer] = RunningAttempt()
        try:
            return await self._run_offer(offer, delivery, attempt)
        except asyncio.CancelledError:
            # When the lease is lost, a batch that this attempt waits for may be cancelled first.
            if not (attempt.abandoned or self._lease.lost):
                raise
            attempt.task.uncancel()
            return Disposition.REQUEUE if attempt.phase is Phase.WAIT else self._drop(offer)
        finally:
            del self._running[offer]
            self._early_cancels.pop(offer, None)

    async def _run_offer(self, offer: Offer, delivery: Delivery, attempt: RunningAttempt) -> Disposition:
        if not await self._lease.certain():
            return Disposition.REQUEUE
        attempt.phase, offered_at = Phase.CLAIM, time.monotonic()
        claim = await self._gateway.claim(offer, give_up=lambda: self.draining)
        match claim:
            case Claim():
                with instrumentation.processing(claim, delivery, offered_at=offered_at) as traced:
                    return await self._run_claim(traced, attempt)
            case None:
                return Disposition.REQUEUE
            case Verdict.UNKNOWN:
                await self._postpone(offer, delivery)
                return Disposition.ACKNOWLEDGE
            case Verdict.NOT_SERVED:
                await self._pass_on(offer, delivery)
                return Disposition.ACKNOWLEDGE
            case Verdict():
                self._note_not_applied("claim", offer, claim)
                return Disposition.ACKNOWLEDGE
        assert_never(claim)

    async def _run_claim(self, claim: Claim, attempt: RunningAttempt) -> Disposition:
        reached(CrashPoint.ATTEMPT_CLAIMED)
        # The process may have been stopped since the database answered.
        if not await self._lease.certain():
            return self._drop(claim)
        self._announce(claim, Status.RUNNING, Status.SCHEDULED, None)
        instrumentation.started(claim)
        attempt.phase = Phase.RUN
        report = await self._run_action(claim, attempt.stop)
        attempt.phase = Phase.PUBLISH
        # After the lease the outcome is void: the loss of the lease may have killed the run.
        if self._lease.standing() is Standing.OVER:
            return self._drop(claim)
        match report.outcome:
            case Interrupted():
                await self._hand_back(claim)
            case outcome:
                reached(CrashPoint.ATTEMPT_RUN)
                finished = await self._gateway.finish(_report_of(claim, outcome, report))
                reached(CrashPoint.ATTEMPT_FINISHED)
                # Publishing may take long; only the database needs the log and a large result.
                del report
                outcome = _published_outcome(outcome, result_bytes_max=self._event_result_max_bytes)
                await self._publish_outcome(claim, outcome, finished)
        return Disposition.ACKNOWLEDGE

    async def _run_action(self, claim: Claim, stop: StopRequest) -> RunReport:
        offer = claim.offer
        if (reason := self._early_cancels.get(offer)) is not None:
            stop.request("cancel", reason)
        if stop.stop is not None:
            return RunReport(outcome=outcome_of_stop(stop.stop), log="")
        started_at = time.monotonic()
        try:
            with instrumentation.running(claim) as traced:
                call = _call_of(
                    traced,
                    stop,
                    on_log=lambda log: self._gateway.logs.watch(offer, log),
                    on_progress=lambda progress: self._gateway.progress.put(offer, progress),
                )
                report = await self._runners.runner_for(claim.action_ref, claim.runner).run(call)
            await self._gateway.progress.complete(offer)
            return report
        finally:
            self._gateway.logs.forget(offer)
            instrumentation.ran(claim, started_at=started_at)

    async def _hand_back(self, claim: Claim) -> None:
        """Return a run that could not end in time to the head of its queue, if this worker still holds it."""
        if (claim.execution_id, claim.attempt) in self._runners.in_loop.left_behind:
            # It would run twice at once. The lease protects it until the session has ended the process.
            self.not_stopped.append(claim)
            return
        if not await self._gateway.hand_back(claim.offer):
            self._note_not_applied("hand_back", claim, Verdict.STALE)
            return
        reached(CrashPoint.ATTEMPT_HANDED_BACK)
        instrumentation.handed_back(claim)
        await self._gateway.publish(
            slot_message(claim.execution_id, claim.attempt, claim.action_ref, Status.QUEUED)
        )

    async def _publish_outcome(self, claim: Claim, outcome: Outcome, finished: Finished) -> None:
        status, ended_at = finished.status, finished.ended_at
        if finished.verdict is not Verdict.APPLIED:
            self._note_not_applied("finish", claim, finished.verdict)
        if finished.verdict not in (Verdict.APPLIED, Verdict.ALREADY) or status is None:
            return
        instrumentation.ended(claim, status, outcome)
        self._announce(claim, status, Status.RUNNING, ended_at)
        message = _outcome_message(claim, outcome, status, ended_at)
        span = instrumentation.publishing(claim)
        if span is None:
            await self._gateway.publish_soon(message)
        else:
            with span:
                await self._gateway.publish(message)

    def _announce(self, claim: Claim, status: Status, previous: Status, at: datetime | None) -> None:
        """Publish a status event; without `at` the status changed now."""
        events = self._gateway.status_events
        if events.wanted:
            at = at or datetime.now(UTC)
            events.add(
                StatusChanged(claim.execution_id, claim.action_ref, status, previous, claim.attempt, at)
            )

    async def _postpone(self, offer: Offer, delivery: Delivery) -> None:
        if tries_of(delivery) < TRIES_MAX:
            await self._retry_later(offer, delivery)
        else:
            reason = f"no such execution after {TRIES_MAX} tries"
            await self._dead_letter(delivery, Code.UNKNOWN_EXECUTION, reason)

    async def _pass_on(self, offer: Offer, delivery: Delivery) -> None:
        """Return it to the pool for another worker; after many tries only the watchdog offers it again."""
        tries = tries_of(delivery)
        if tries % 10 == 0:
            execution_id = str(offer.execution_id)
            _NOT_SERVED.failed(
                "offers", message_id=delivery.message_id, execution_id=execution_id, tries=tries
            )
        if tries < TRIES_MAX:
            await self._retry_later(offer, delivery)

    async def _retry_later(self, offer: Offer, delivery: Delivery) -> None:
        message = delayed_retry(delivery, retry_exchange=WORKER_RETRY, app_id="worker")
        await self._gateway.publish(alone(message, *offer))

    async def _dead_letter(self, delivery: Delivery, code: Code, reason: str) -> None:
        DEAD_LETTERED.add(code)
        await self._gateway.dead_letter(dead_letter(delivery, code, reason, app_id="worker"))

    def _note_not_applied(
        self, write: instrumentation.Write, attempt: Claim | Offer, verdict: Verdict
    ) -> None:
        self.not_applied[str(verdict)] += 1
        instrumentation.not_applied(write, attempt, verdict)

    def _drop(self, attempt: Claim | Offer) -> Disposition:
        self.not_applied["dropped"] += 1
        instrumentation.dropped(attempt)
        return Disposition.REQUEUE


def offers_in(delivery: Delivery) -> list[Offer]:
    """Return the attempts that a message offers; raises Refusal."""
    check_schema_version(delivery.headers)
    body = read_json(delivery.body, bytes_max=_SCHEDULED_BYTES_MAX)
    first = Offer(*named_attempt(body))
    if "more" not in body:
        return [first]
    more = body["more"]
    if not isinstance(more, list):
        raise Refusal(Code.INVALID_MESSAGE, "more: expected a list of offers")
    return [first, *(Offer(*named_attempt(each)) for each in more)]


def _call_of(
    claim: Claim,
    stop: StopRequest,
    *,
    on_log: Callable[[LogTail], object],
    on_progress: Callable[[Progress], None],
) -> Call:
    return Call(
        execution_id=claim.execution_id,
        attempt=claim.attempt,
        action_ref=claim.action_ref,
        entrypoint=None if claim.entrypoint_json is None else from_json(claim.entrypoint_json),
        parameters_json=claim.parameters_json,
        timeout_seconds=claim.timeout_seconds,
        traceparent=claim.traceparent,
        stop=stop,
        on_log=on_log,
        on_progress=on_progress,
        metadata_json=claim.metadata_json,
        concurrency_key=claim.concurrency_key,
        idempotency_key=claim.idempotency_key,
    )


def _report_of(claim: Claim, outcome: Outcome, run: RunReport) -> Report:
    failure = failure_of(outcome)
    return Report(
        execution_id=claim.execution_id,
        attempt=claim.attempt,
        status=status_of(outcome),
        result_json=outcome.result_json if isinstance(outcome, Completed) else None,
        error_type=failure.type if failure else None,
        error_message=failure.message if failure else None,
        log=run.log or None,
        log_start=run.log_start,
        retry_delay_seconds=_retry_delay_seconds(claim, outcome),
    )


def _retry_delay_seconds(claim: Claim, outcome: Outcome) -> float | None:
    if not isinstance(outcome, Failed) or not outcome.retryable:
        return None
    wait = retry_delay_seconds(claim.retry, failures=claim.failures + 1, spread=random.uniform(-1, 1))
    return wait if wait is None or outcome.delay_seconds is None else outcome.delay_seconds


def _published_outcome(outcome: Outcome, *, result_bytes_max: int) -> Outcome:
    """Return `outcome` without a result that is too large for a message."""
    if isinstance(outcome, Completed) and len(outcome.result_json) > result_bytes_max:
        return Completed(result_json="null")
    return outcome


def _outcome_message(claim: Claim, outcome: Outcome, status: Status, ended_at: datetime) -> Outgoing:
    """Return the completion, or for an execution that runs again the message that its slot is free."""
    if not is_terminal(status):
        return slot_message(claim.execution_id, claim.attempt, claim.action_ref, status)
    failure = failure_of(outcome)
    return completed_message(
        execution_id=claim.execution_id,
        action_id=claim.action_id,
        action_ref=claim.action_ref,
        status=status,
        result=readable(outcome.result_json) if isinstance(outcome, Completed) else None,
        error=failure,
        attempt=claim.attempt,
        completed_at=ended_at,
        app_id="worker",
        traceparent=claim.traceparent,
    )
