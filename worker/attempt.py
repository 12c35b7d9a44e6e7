"""One attempt, step by step: receive ▸ claim ▸ run ▸ finish ▸ tell ▸ acknowledge.

In: one `execution.scheduled`. Out: the attempt's end in the record (P3), told to the executor (P4), and only
then the word to acknowledge it (P5). Whatever step a process dies in, the message comes again or the
watchdog finds the row, and the claim's fence (P6) lets only the right attempt act. Claims, finishes and
messages of all attempts of the process are gathered into batches. Next: `worker.runners` does the running.
"""

import logging
import random
from datetime import UTC, datetime
from enum import Enum
from typing import Final, assert_never

from pydantic_core import from_json

from common.broker.delivery import Delivery
from common.broker.topology import WORKER_RETRY
from common.crash_points import CrashPoint, reached
from common.domain.errors import Code, Refusal
from common.domain.identifiers import Attempt, ExecutionId
from common.domain.outcomes import Completed, Failed, Outcome, failure_of, status_of
from common.domain.retries import retry_delay_seconds
from common.domain.states import Status, is_terminal
from common.envelopes import completed_message, dead_letter, delayed_retry, slot_message, tries_of
from common.messages import Error, ExecutionCompleted, ExecutionScheduled, StatusChanged
from common.requests import check_schema_version, read_json, read_model
from worker.links import Links
from worker.record import Claim, Finished, Offer, Report, Verdict
from worker.runners import Call, Interrupted, RunReport, StopRequest
from worker.runners.assembly import Runners

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 30
"""How often an offer for something not known yet comes back, about a second apart."""
_STOPS_REMEMBERED_MAX: Final = 1000
_SCHEDULED_BYTES_MAX: Final = 64 * 1024


class Disposition(Enum):
    """What is to be done with the message."""

    ACKNOWLEDGE = "acknowledge"
    GIVE_BACK = "give back"


class Attempts:
    """Runs attempts for one worker id, and knows which are under way."""

    def __init__(self, links: Links, runners: Runners, *, event_result_max_bytes: int) -> None:
        self._links = links
        self._runners = runners
        self._event_result_max_bytes = event_result_max_bytes
        self._under_way: dict[Offer, StopRequest] = {}
        self._stops_ahead: dict[Offer, str] = {}
        self.draining = False

    @property
    def count(self) -> int:
        """Attempts under way."""
        return len(self._under_way)

    def ask_to_stop(self, offer: Offer, reason: str) -> None:
        """Cancel one attempt; one whose claim is still on its way is stopped once it is claimed."""
        stop = self._under_way.get(offer)
        if stop is not None:
            stop.ask("cancel", reason)
        elif len(self._stops_ahead) < _STOPS_REMEMBERED_MAX:
            self._stops_ahead[offer] = reason

    def give_up_all(self, *, lease_lost: bool) -> None:
        """Stop everything, to be given back (drain), or because it is no longer ours (lease lost)."""
        for stop in list(self._under_way.values()):
            stop.ask("lease_lost" if lease_lost else "drain", "the worker stops")

    async def run(self, delivery: Delivery) -> Disposition:
        """Take one attempt from its offer to its end."""
        try:
            offer = receive(delivery)
        except Refusal as refusal:
            await self._links.tell([dead_letter(delivery, refusal.code, refusal.message, app_id="worker")])
            return Disposition.ACKNOWLEDGE
        if offer in self._under_way:
            return Disposition.ACKNOWLEDGE  # a copy of what we are doing
        reached(CrashPoint.OFFER_RECEIVED)
        stop = self._under_way[offer] = StopRequest()
        try:
            return await self._run_offer(offer, delivery, stop)
        finally:
            del self._under_way[offer]
            self._stops_ahead.pop(offer, None)

    async def _run_offer(self, offer: Offer, delivery: Delivery, stop: StopRequest) -> Disposition:
        claim = await self._links.claim(offer, give_up=lambda: self.draining)
        match claim:
            case None:
                return Disposition.GIVE_BACK
            case Verdict.UNKNOWN:
                await self._postpone(delivery)
                return Disposition.ACKNOWLEDGE
            case Verdict.NOT_SERVED:
                await self._pass_on(delivery)
                return Disposition.ACKNOWLEDGE
            case Verdict():
                logger.info("claim_not_applied", extra={**_fields(offer), "verdict": str(claim)})
                return Disposition.ACKNOWLEDGE
            case Claim():
                await self._carry_out(claim, stop)
                return Disposition.ACKNOWLEDGE
        assert_never(claim)

    async def _carry_out(self, claim: Claim, stop: StopRequest) -> None:
        reached(CrashPoint.ATTEMPT_CLAIMED)
        self._announce(claim, Status.RUNNING, Status.SCHEDULED, datetime.now(UTC))
        logger.info("execution_started", extra=_fields(claim))
        report = await self._perform(claim, stop)
        match report.outcome:
            case Interrupted():
                await self._give_back(claim)
            case outcome:
                reached(CrashPoint.ATTEMPT_RUN)
                finished = await self._links.finish(_report(claim, outcome, report.log))
                reached(CrashPoint.ATTEMPT_FINISHED)
                await self._tell(claim, outcome, finished)
                reached(CrashPoint.ATTEMPT_TOLD)

    async def _perform(self, claim: Claim, stop: StopRequest) -> RunReport:
        offer = Offer(execution_id=claim.execution_id, attempt=claim.attempt)
        if (reason := self._stops_ahead.get(offer)) is not None:
            stop.ask("cancel", reason)
        call = Call(
            execution_id=claim.execution_id,
            attempt=claim.attempt,
            action_ref=claim.action_ref,
            entrypoint=None if claim.entrypoint_json is None else from_json(claim.entrypoint_json),
            parameters_json=claim.parameters_json,
            timeout_seconds=claim.timeout_seconds,
            traceparent=claim.traceparent,
            stop=stop,
        )
        return await self._runners.runner_for(claim.action_ref, claim.runner).run(call)

    async def _give_back(self, claim: Claim) -> None:
        """Put what could not end in time back to the head of its line, if it is still ours."""
        offer = Offer(execution_id=claim.execution_id, attempt=claim.attempt)
        if await self._links.hand_back(offer):
            reached(CrashPoint.ATTEMPT_HANDED_BACK)
            logger.info("execution_handed_back", extra=_fields(claim))
            await self._links.tell(
                [slot_message(claim.execution_id, claim.attempt, claim.action_ref, Status.QUEUED)]
            )

    async def _tell(self, claim: Claim, outcome: Outcome, finished: Finished) -> None:
        status = finished.status
        if finished.verdict not in (Verdict.APPLIED, Verdict.ALREADY) or status is None:
            logger.info("finish_not_applied", extra={**_fields(claim), "verdict": str(finished.verdict)})
            return
        logger.info("execution_ended", extra={**_fields(claim), "status": str(status)})
        self._announce(claim, status, Status.RUNNING, finished.ended_at)
        if not is_terminal(status):
            await self._links.tell(
                [slot_message(claim.execution_id, claim.attempt, claim.action_ref, status)]
            )
            return
        failure = failure_of(outcome)
        completed = ExecutionCompleted(
            execution_id=claim.execution_id,
            action_id=claim.action_id,
            action_ref=claim.action_ref,
            status=status,
            result=self._event_result(outcome),
            error=None if failure is None else Error(type=failure.type, message=failure.message),
            attempt=claim.attempt,
            completed_at=finished.ended_at,
        )
        await self._links.tell([completed_message(completed, app_id="worker", traceparent=claim.traceparent)])

    async def _postpone(self, delivery: Delivery) -> None:
        if tries_of(delivery) < TRIES_MAX:
            await self._links.tell([delayed_retry(delivery, retry_exchange=WORKER_RETRY, app_id="worker")])
        else:
            reason = f"no such execution after {TRIES_MAX} tries"
            await self._links.tell([dead_letter(delivery, Code.UNKNOWN_EXECUTION, reason, app_id="worker")])

    async def _pass_on(self, delivery: Delivery) -> None:
        """Let another worker of the pool have it; after many tries the watchdog's offers have to do."""
        tries = tries_of(delivery)
        if tries % 10 == 0:
            fields = {
                "message_id": delivery.message_id,
                "execution_id": delivery.correlation_id,
                "tries": tries,
            }
            logger.warning("action_not_served", extra=fields)
        if tries < TRIES_MAX:
            await self._links.tell([delayed_retry(delivery, retry_exchange=WORKER_RETRY, app_id="worker")])

    def _event_result(self, outcome: Outcome) -> object:
        if isinstance(outcome, Completed) and len(outcome.result_json) <= self._event_result_max_bytes:
            return from_json(outcome.result_json)
        return None

    def _announce(self, claim: Claim, status: Status, previous: Status, at: datetime) -> None:
        self._links.announce(
            StatusChanged(
                execution_id=claim.execution_id,
                action_ref=claim.action_ref,
                status=status,
                previous_status=previous,
                attempt=claim.attempt,
                changed_at=at,
            )
        )


def receive(delivery: Delivery) -> Offer:
    """Return the attempt that a delivery offers; raises Refusal."""
    check_schema_version(delivery.headers)
    scheduled = read_model(ExecutionScheduled, read_json(delivery.body, bytes_max=_SCHEDULED_BYTES_MAX))
    if not (0 < scheduled.execution_id < 2**63 and 0 < scheduled.attempt < 2**31):
        raise Refusal(Code.INVALID_MESSAGE, "execution_id, attempt: out of range")
    return Offer(execution_id=ExecutionId(scheduled.execution_id), attempt=Attempt(scheduled.attempt))


def _report(claim: Claim, outcome: Outcome, log: str) -> Report:
    failure = failure_of(outcome)
    return Report(
        execution_id=claim.execution_id,
        attempt=claim.attempt,
        status=status_of(outcome),
        result_json=outcome.result_json if isinstance(outcome, Completed) else None,
        error_type=failure.type if failure else None,
        error_message=failure.message if failure else None,
        log=log or None,
        retry_delay_seconds=_retry_delay_seconds(claim, outcome),
    )


def _retry_delay_seconds(claim: Claim, outcome: Outcome) -> float | None:
    if not isinstance(outcome, Failed) or not outcome.retryable:
        return None
    wait = retry_delay_seconds(claim.retry, failures=claim.failures + 1, spread=random.uniform(-1, 1))
    return wait if wait is None or outcome.delay_seconds is None else outcome.delay_seconds


def _fields(attempt: Claim | Offer) -> dict[str, object]:
    fields: dict[str, object] = {"execution_id": attempt.execution_id, "attempt": attempt.attempt}
    return fields | {"action_ref": attempt.action_ref} if isinstance(attempt, Claim) else fields
