"""Claims due webhooks, posts them, and stores their results.

In: time: each tick it looks for what the leader's turns have inserted, for retries, and for expired leases.
Out: their recorded results. Every replica runs this; a claim belongs to one replica. A delivery waits for its
own receiver and delays no other (P9).
"""

import asyncio
import logging
import random
from typing import Final

import asyncpg
import httpx

from turnstile.common.batcher import Batcher
from turnstile.common.broker.message import Outgoing
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.metrics import BACKGROUND_FAILURES, NOT_APPLIED, WEBHOOK_ATTEMPTS
from turnstile.executor.queue_manager.retries import RetryPolicy
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.webhooks.concurrency import PROMPT_SECONDS, DeliveryPermits, Permit
from turnstile.executor.webhooks.deliveries import Claim, Deliveries, DeliveryResult
from turnstile.executor.webhooks.sender import Response, Sender, outcome_of
from turnstile.executor.webhooks.ssrf_guard import GuardedTransport

logger = logging.getLogger(__name__)
_POSTPONED: Final = Episodes(logger, "webhook_postponed", level=logging.INFO)
_FAILED: Final = Episodes(logger, "webhook_failed")
_TOO_LATE: Final = Episodes(logger, "webhook_recorded_too_late", level=logging.INFO)

_TASK: Final = "deliver_webhooks"
"""The label of its failures in the metric."""
_LATE_SECONDS: Final = 0.25
"""A check that runs this late proves nothing about the receiver."""
_LOOP_ITERATIONS: Final = 16
"""Iterations of the event loop before a delivery counts as hanging: more than a whole POST takes."""
_CHECKS_MAX: Final = 10
_READ_AGAIN_SECONDS: Final = 0.1


class Deliverer:
    """Delivers webhooks for one executor."""

    def __init__(self, settings: ExecutorSettings, database: Database) -> None:
        self._settings = settings
        self._deliveries = Deliveries(database)
        self._results: Batcher[DeliveryResult, bool] = Batcher(
            self._deliveries.record, items_max=settings.webhook_concurrency
        )
        self._policy = RetryPolicy(
            max_attempts=settings.webhook_attempts,
            delay_seconds=settings.webhook_retry_delay,
            max_delay_seconds=settings.webhook_retry_delay_max,
            jitter=0.2,
        )
        self._due = asyncio.Event()
        self._permits = DeliveryPermits(settings.webhook_concurrency)
        self._after_origin = ""
        self._failures = Episodes(logger, "webhooks_failed", level=logging.ERROR)
        self._not_recorded = Episodes(logger, "webhook_not_recorded")
        self._broken = Episodes(logger, "webhook_broken", level=logging.ERROR)
        self._faults = Episodes(logger, "webhooks_broken", level=logging.ERROR)

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set; then claim nothing more and finish running deliveries."""
        transport = GuardedTransport(allow_private=self._settings.webhook_allow_private)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            sender = Sender(
                client,
                self._settings.webhook_secrets(),
                timeout_seconds=self._settings.webhook_timeout,
            )
            async with asyncio.TaskGroup() as around:
                results = around.create_task(self._results.run(), name="webhook results")
                async with asyncio.TaskGroup() as deliveries:
                    await self._claim_until(stop, sender, deliveries)
                results.cancel()

    async def _claim_until(self, stop: asyncio.Event, sender: Sender, deliveries: asyncio.TaskGroup) -> None:
        while not stop.is_set():
            self._due.clear()
            try:
                await self._start_due(sender, deliveries)
            except Unavailable as error:
                BACKGROUND_FAILURES.add(_TASK)
                logger.debug("webhooks_postponed", extra={"reason": str(error)})
            except asyncpg.PostgresError as error:
                BACKGROUND_FAILURES.add(_TASK)
                self._failures.failed("webhooks", reason=str(error))
            except Exception as error:  # noqa: BLE001  (logged with its traceback)
                # A fault in one delivery does not stop the service; claims are due again after their lease.
                BACKGROUND_FAILURES.add(_TASK)
                self._faults.broke("webhooks", error)
            else:
                self._failures.works("webhooks")
                self._faults.works("webhooks")
            # Stops after a tick at the latest; what was claimed by then is still delivered.
            try:
                await asyncio.wait_for(self._due.wait(), self._settings.watchdog_interval)
            except TimeoutError:
                pass

    async def _start_due(self, sender: Sender, deliveries: asyncio.TaskGroup) -> None:
        if self._permits.are_full:
            return
        due, self._after_origin = await self._deliveries.due(after_origin=self._after_origin)
        if self._after_origin:
            self._due.set()
        chosen = self._permits.choose(due)
        if not chosen:
            return
        claims = await self._deliveries.claim(chosen, lease_seconds=self._settings.webhook_lease_seconds())
        if not claims:
            return
        reached(CrashPoint.WEBHOOKS_CLAIMED)
        completions = await self._completions_of(claims)
        for claim in claims:
            delivery = _Delivery(self._permits.acquire(claim.origin), self._permits)
            deliveries.create_task(
                self._deliver(sender, claim, completions.get(claim.execution_id), delivery),
                name=f"webhook of {claim.execution_id}",
            )

    async def _completions_of(self, claims: list[Claim]) -> dict[int, Outgoing]:
        """Read what is posted, again if a connection breaks: no claim is due before its lease ends."""
        now = asyncio.get_running_loop().time
        # Half of the lease, which leaves the other half to the POST.
        deadline = now() + self._settings.webhook_lease_seconds() / 2
        while True:
            try:
                return await self._deliveries.completions(
                    [claim.execution_id for claim in claims],
                    result_bytes_max=self._settings.event_result_max_bytes,
                )
            except Unavailable:
                if now() >= deadline:
                    raise
                await asyncio.sleep(_READ_AGAIN_SECONDS)

    async def _deliver(
        self, sender: Sender, claim: Claim, completion: Outgoing | None, delivery: "_Delivery"
    ) -> None:
        try:
            response = await self._respond(sender, claim, completion, delivery)
            reached(CrashPoint.WEBHOOK_POSTED)
            result = self._result(claim, response)
            _report(result, applied=await self._results.submit(result))
        except (Unavailable, asyncpg.PostgresError) as error:
            # It is delivered again after its lease: the event's id identifies the copy.
            self._not_recorded.failed("webhooks", execution_id=claim.execution_id, reason=str(error))
        except Exception as error:  # noqa: BLE001  (logged with its traceback)
            self._broken.broke(type(error).__name__, error, execution_id=claim.execution_id)
        else:
            self._not_recorded.works("webhooks")
        finally:
            delivery.end()
            self._due.set()

    def _result(self, claim: Claim, response: Response | None) -> DeliveryResult:
        if response is None:
            error = f"no response within {PROMPT_SECONDS:g} s, and many others do not respond: it has to wait"
            return DeliveryResult(claim=claim, state="released", status=None, error=error, delay_seconds=0.0)
        outcome = outcome_of(
            response, attempts=claim.attempts, policy=self._policy, spread=random.uniform(-1, 1)
        )
        return DeliveryResult(
            claim=claim,
            state=outcome.state,
            status=response.status,
            error=response.error,
            delay_seconds=outcome.delay_seconds,
        )

    async def _respond(
        self, sender: Sender, claim: Claim, completion: Outgoing | None, delivery: "_Delivery"
    ) -> Response | None:
        """Post; None where the delivery had to return its permit before its timeout."""
        if completion is None:
            return Response(error="the execution is not stored any more", is_final=True)
        traceparent = (completion.headers or {}).get("traceparent")
        try:
            async with asyncio.timeout(self._settings.webhook_timeout) as deadline:
                delivery.begin(deadline)
                response = await sender.post(
                    claim.url,
                    event_id=claim.event_id,
                    body=completion.body,
                    traceparent=traceparent if isinstance(traceparent, str) else None,
                )
                delivery.answered = response.status is not None
                return response
        except TimeoutError:
            if delivery.is_cut_short:
                return None
            return Response(error=f"no response within {self._settings.webhook_timeout:g} s")
        except Exception as error:  # noqa: BLE001  (logged with its traceback)
            # A faulty URL may end its own delivery only.
            self._broken.broke(type(error).__name__, error, execution_id=claim.execution_id)
            return Response(error=f"{type(error).__name__} inside the executor service; its log says more")


class _Delivery:
    """One delivery and its permit: checks after a while whether it hangs."""

    def __init__(self, permit: Permit, permits: DeliveryPermits) -> None:
        self._loop = asyncio.get_running_loop()
        self._permit = permit
        self._permits = permits
        self._began_at: float | None = None
        self._check: asyncio.Handle | None = None
        self._checks = 0
        self.answered = False
        self.is_cut_short = False

    def begin(self, deadline: asyncio.Timeout) -> None:
        """Note that its POST begins; `deadline` is moved up if it hangs and has to return its permit."""
        self._began_at = self._loop.time()
        self._check_after(PROMPT_SECONDS, deadline)

    def end(self) -> None:
        """Return the permit."""
        if self._check is not None:
            self._check.cancel()
        seconds = None if self._began_at is None else self._loop.time() - self._began_at
        self._permits.release(self._permit, seconds=seconds, answered=self.answered)

    def _check_after(self, seconds: float, deadline: asyncio.Timeout) -> None:
        self._check = self._loop.call_later(
            seconds, self._after_iterations, _LOOP_ITERATIONS, self._loop.time() + seconds, deadline
        )

    def _after_iterations(self, iterations: int, planned_at: float, deadline: asyncio.Timeout) -> None:
        """Let the event loop handle arrived data first: a POST takes many iterations of a busy loop."""
        if iterations:
            self._check = self._loop.call_soon(self._after_iterations, iterations - 1, planned_at, deadline)
        elif self._loop.time() - planned_at > _LATE_SECONDS and self._checks < _CHECKS_MAX:
            # This process was delayed: the response may have arrived already.
            self._checks += 1
            self._check_after(_LATE_SECONDS, deadline)
        elif not self._permits.keep_waiting(self._permit):
            self.is_cut_short = True
            deadline.reschedule(self._loop.time())


def _report(result: DeliveryResult, *, applied: bool) -> None:
    """Count and log a result: each at level DEBUG, above it once a minute for each receiver."""
    receiver = result.claim.origin
    fields: dict[str, object] = {
        "execution_id": result.claim.execution_id,
        "attempt": result.claim.attempts,
        "status": result.status,
        "reason": result.error,
    }
    if not applied:
        NOT_APPLIED.add("webhook", "late")
        logger.debug("one_webhook_recorded_too_late", extra=fields)
        _TOO_LATE.failed(receiver, receiver=receiver, **fields)
        return
    WEBHOOK_ATTEMPTS.add(result.state)
    match result.state:
        case "delivered":
            logger.debug("webhook_delivered", extra=fields)
            _POSTPONED.works(receiver, receiver=receiver)
            _FAILED.works(receiver, receiver=receiver)
        case "pending":
            fields |= {"delay_seconds": result.delay_seconds}
            logger.debug("one_webhook_postponed", extra=fields)
            _POSTPONED.failed(receiver, receiver=receiver, **fields)
        case "released":
            logger.debug("webhook_released", extra=fields)
        case "failed":
            logger.debug("one_webhook_failed", extra=fields)
            _FAILED.failed(receiver, receiver=receiver, **fields)
