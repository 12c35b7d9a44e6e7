"""One attempt, step by step: receive ▸ claim ▸ run ▸ finish ▸ tell ▸ acknowledge.

In: one `execution.scheduled`. Out: the attempt's end in the record (P3), told to the executor (P4), and only
then the word to acknowledge it (P5). Whatever step a process dies in, the message comes again or the
watchdog finds the row, and the claim's fence (P6) lets only the right attempt act. Once the lease is lost,
whatever step it is at, an attempt writes nothing and tells nothing any more. Claims, finishes and messages of
all attempts of the process are gathered into batches. Next: `worker.runners` does the running.
"""

import asyncio
import logging
import time
from collections import Counter
from datetime import UTC, datetime
from enum import Enum
from typing import Final, assert_never

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.topology import WORKER_RETRY
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.outcomes import Outcome
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import dead_letter, delayed_retry, slot_message, tries_of
from turnstile.worker import transitions
from turnstile.worker.attempt_values import call_of, end_message, offer_in, report_of, status_changed, told_of
from turnstile.worker.fence import Standing
from turnstile.worker.links import Links
from turnstile.worker.metrics import DEAD_LETTERED
from turnstile.worker.record import Claim, Finished, Offer, Verdict
from turnstile.worker.runners import Interrupted, RunReport, StopRequest
from turnstile.worker.runners.assembly import Runners
from turnstile.worker.runners.report import ending
from turnstile.worker.under_way import Step, UnderWay

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 30
"""How often an offer for something not known yet comes back, about a second apart."""
_STOPS_REMEMBERED_MAX: Final = 1000


class Disposition(Enum):
    """What is to be done with the message."""

    ACKNOWLEDGE = "acknowledge"
    GIVE_BACK = "give back"


class Attempts:
    """Runs attempts for one worker id, and knows which are under way."""

    def __init__(self, links: Links, runners: Runners, *, event_result_max_bytes: int) -> None:
        self._links = links
        self._lease = links.lease
        self._runners = runners
        self._event_result_max_bytes = event_result_max_bytes
        self._under_way: dict[Offer, UnderWay] = {}
        self._stops_ahead: dict[Offer, str] = {}
        self.not_applied: Counter[str] = Counter()
        """What the record did not do, by its verdict, and what was dropped without asking it."""
        self.draining = False
        self.kept: list[Claim] = []
        """What the drain interrupted and what runs on all the same: not to be handed back while it does."""

    @property
    def count(self) -> int:
        """Attempts under way."""
        return len(self._under_way)

    @property
    def running(self) -> int:
        """Attempts whose action runs."""
        return sum(each.step is Step.RUN for each in self._under_way.values())

    def ask_to_stop(self, offer: Offer, reason: str) -> None:
        """Cancel one attempt; one whose claim is still on its way is stopped once it is claimed.

        While the lease is in doubt there is no time for grace: the word may mean that another copy starts.
        """
        under_way = self._under_way.get(offer)
        if under_way is not None:
            certain = self._lease.standing() is Standing.CERTAIN
            under_way.stop.ask("cancel" if certain else "lease_lost", reason)
        elif len(self._stops_ahead) < _STOPS_REMEMBERED_MAX:
            self._stops_ahead[offer] = reason

    def give_back_all(self) -> None:
        """Stop what runs, to be given back, and claim no more: the time to drain is over."""
        for under_way in list(self._under_way.values()):
            under_way.stop.ask("drain", "the worker stops")
            if under_way.step in (Step.WAIT, Step.CLAIM):
                under_way.give_up()

    def leave_unclaimed(self) -> None:
        """Leave to other workers what was not claimed yet. Whose claim is on its way may be ours already."""
        for under_way in list(self._under_way.values()):
            if under_way.step is Step.WAIT:
                under_way.give_up()

    def lose_all(self) -> None:
        """Kill what runs and end every wait: nothing of it is ours any more."""
        self.draining = True
        for under_way in list(self._under_way.values()):
            under_way.stop.ask("lease_lost", "the worker's lease is lost")
            under_way.give_up()

    async def run(self, delivery: Delivery) -> Disposition:
        """Take one attempt from its offer to its end."""
        try:
            offer = offer_in(delivery)
        except Refusal as refusal:
            DEAD_LETTERED.add(refusal.code)
            await self._links.bury(dead_letter(delivery, refusal.code, refusal.message, app_id="worker"))
            return Disposition.ACKNOWLEDGE
        if offer in self._under_way:
            return Disposition.ACKNOWLEDGE  # a copy of what we are doing
        reached(CrashPoint.OFFER_RECEIVED)
        under_way = self._under_way[offer] = UnderWay()
        try:
            return await self._run_offer(offer, delivery, under_way)
        except asyncio.CancelledError:
            # The batches that it waited for may have been the first to be told.
            if not (under_way.given_up or self._lease.lost):
                raise
            under_way.task.uncancel()
            return Disposition.GIVE_BACK if under_way.step is Step.WAIT else self._drop(offer)
        finally:
            del self._under_way[offer]
            self._stops_ahead.pop(offer, None)

    async def _run_offer(self, offer: Offer, delivery: Delivery, under_way: UnderWay) -> Disposition:
        if not await self._lease.certain():
            return Disposition.GIVE_BACK
        under_way.step, offered_at = Step.CLAIM, time.monotonic()
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
                self._note_not_applied("claim", offer, claim)
                return Disposition.ACKNOWLEDGE
            case Claim():
                with transitions.processing(claim, delivery, offered_at=offered_at) as traced:
                    return await self._carry_out(traced, under_way)
        assert_never(claim)

    async def _carry_out(self, claim: Claim, under_way: UnderWay) -> Disposition:
        reached(CrashPoint.ATTEMPT_CLAIMED)
        # Time may have passed since the database said so: a process can be stopped at any line.
        if not await self._lease.certain():
            return self._drop(claim)
        self._links.announce(status_changed(claim, Status.RUNNING, Status.SCHEDULED, datetime.now(UTC)))
        transitions.started(claim)
        under_way.step = Step.RUN
        report = await self._perform(claim, under_way.stop)
        under_way.step = Step.TELL
        # How a run ended whose lease is over says nothing: it may have been killed for that.
        if self._lease.standing() is Standing.OVER:
            return self._drop(claim)
        match report.outcome:
            case Interrupted():
                await self._give_back(claim)
            case outcome:
                reached(CrashPoint.ATTEMPT_RUN)
                finished = await self._links.finish(report_of(claim, outcome, report))
                reached(CrashPoint.ATTEMPT_FINISHED)
                # Telling may take long, and a large result is in the record only.
                del report
                outcome = told_of(outcome, result_bytes_max=self._event_result_max_bytes)
                await self._tell(claim, outcome, finished)
                reached(CrashPoint.ATTEMPT_TOLD)
        return Disposition.ACKNOWLEDGE

    async def _perform(self, claim: Claim, stop: StopRequest) -> RunReport:
        offer = Offer(execution_id=claim.execution_id, attempt=claim.attempt)
        if (reason := self._stops_ahead.get(offer)) is not None:
            stop.ask("cancel", reason)
        if stop.stop is not None:
            return RunReport(outcome=ending(stop.stop), log="")
        with transitions.running(claim) as traced:
            call = call_of(traced, stop, lambda log: self._links.logs.watch(offer, log))
            try:
                return await self._runners.runner_for(claim.action_ref, claim.runner).run(call)
            finally:
                self._links.logs.forget(offer)

    async def _give_back(self, claim: Claim) -> None:
        """Put what could not end in time back to the head of its line, if it is still ours."""
        offer = Offer(execution_id=claim.execution_id, attempt=claim.attempt)
        if (claim.execution_id, claim.attempt) in self._runners.left_behind:
            # It would run twice at once. The lease protects it until the session has ended the process.
            self.kept.append(claim)
            return
        if not await self._links.hand_back(offer):
            self._note_not_applied("hand_back", claim, Verdict.STALE)
            return
        reached(CrashPoint.ATTEMPT_HANDED_BACK)
        transitions.handed_back(claim)
        await self._links.tell(
            [slot_message(claim.execution_id, claim.attempt, claim.action_ref, Status.QUEUED)]
        )

    async def _tell(self, claim: Claim, outcome: Outcome, finished: Finished) -> None:
        status, ended_at = finished.status, finished.ended_at
        if finished.verdict is not Verdict.APPLIED:
            self._note_not_applied("finish", claim, finished.verdict)
        if finished.verdict not in (Verdict.APPLIED, Verdict.ALREADY) or status is None:
            return
        transitions.ended(claim, status)
        self._links.announce(status_changed(claim, status, Status.RUNNING, ended_at))
        message = end_message(claim, outcome, status, ended_at)
        with transitions.telling(claim):
            await self._links.tell([message])

    async def _postpone(self, delivery: Delivery) -> None:
        if tries_of(delivery) < TRIES_MAX:
            await self._links.tell([delayed_retry(delivery, retry_exchange=WORKER_RETRY, app_id="worker")])
        else:
            reason = f"no such execution after {TRIES_MAX} tries"
            DEAD_LETTERED.add(Code.UNKNOWN_EXECUTION)
            await self._links.bury(dead_letter(delivery, Code.UNKNOWN_EXECUTION, reason, app_id="worker"))

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

    def _note_not_applied(self, write: transitions.Write, attempt: Claim | Offer, verdict: Verdict) -> None:
        self.not_applied[str(verdict)] += 1
        transitions.not_applied(write, attempt, verdict)

    def _drop(self, attempt: Claim | Offer) -> Disposition:
        self.not_applied["dropped"] += 1
        transitions.dropped(attempt)
        return Disposition.GIVE_BACK
