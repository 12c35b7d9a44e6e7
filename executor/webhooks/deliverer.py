"""Goes round: claims what is due, posts it, notes what became of it.

In: the word of this executor's own settles (`due`), and time: every tick it looks for what others left, what
is due again, and leases that are over. Out: deliveries settled. Every replica does so; a claim is one
replica's. A delivery waits for its own receiver and holds up no other (P9): `places` says which receivers are
served. Next: `post`, `judgement`, `record`.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Final

import asyncpg
import httpx

from turnstile.common.batcher import Batcher
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.retries import RetryPolicy
from turnstile.executor.ends import read_ends
from turnstile.executor.metrics import NOT_APPLIED, SWEEP_FAILURES, WEBHOOK_ATTEMPTS
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.webhooks.addresses import GuardedTransport
from turnstile.executor.webhooks.judgement import Answer, judge
from turnstile.executor.webhooks.places import PROMPT_SECONDS, Place, Places
from turnstile.executor.webhooks.post import Poster
from turnstile.executor.webhooks.record import Claim, Note, WebhookRecord

logger = logging.getLogger(__name__)

_ROUND: Final = "deliver_webhooks"
"""As the metric of failed sweeps calls it."""
_LATE_SECONDS: Final = 0.25
"""A look that comes later than this after it was meant to says nothing about the receiver."""
_TURNS: Final = 16
"""Of the event loop before a delivery counts as hanging: more than a whole POST takes."""
_LOOKS_MAX: Final = 10


class Deliverer:
    """Delivers webhooks for one executor."""

    def __init__(self, settings: ExecutorSettings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._record = WebhookRecord(database)
        self._notes: Batcher[Note, bool] = Batcher(self._record.note, items_max=settings.webhook_concurrency)
        self._policy = RetryPolicy(
            max_attempts=settings.webhook_attempts,
            delay_seconds=settings.webhook_retry_delay,
            max_delay_seconds=settings.webhook_retry_delay_max,
            jitter=0.2,
        )
        self._due = asyncio.Event()
        self._places = Places(settings.webhook_concurrency)
        self._after_origin = ""

    def due(self) -> None:
        """Say that a delivery was written: it need not wait for the next look."""
        self._due.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set; then claim nothing more and end with what is under way."""
        transport = GuardedTransport(allow_private=self._settings.webhook_allow_private)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            poster = Poster(
                client,
                self._settings.webhook_secrets(),
                timeout_seconds=self._settings.webhook_timeout,
            )
            async with asyncio.TaskGroup() as around:
                notes = around.create_task(self._notes.run(), name="webhook notes")
                async with asyncio.TaskGroup() as deliveries:
                    await self._go_round(stop, poster, deliveries)
                notes.cancel()

    async def _go_round(self, stop: asyncio.Event, poster: Poster, deliveries: asyncio.TaskGroup) -> None:
        while not stop.is_set():
            self._due.clear()
            try:
                await self._start_due(poster, deliveries)
            except Unavailable as error:
                SWEEP_FAILURES.add(_ROUND)
                logger.debug("webhooks_postponed", extra={"reason": str(error)})
            except asyncpg.PostgresError as error:
                SWEEP_FAILURES.add(_ROUND)
                logger.error("webhooks_failed", extra={"reason": str(error)})
            except Exception:
                # Whatever one end holds, the service goes on; what was claimed comes again after its lease.
                SWEEP_FAILURES.add(_ROUND)
                logger.exception("webhooks_broken")
            # Stopped at the latest after a tick; what was claimed then is delivered all the same.
            try:
                await asyncio.wait_for(self._due.wait(), self._settings.watchdog_interval)
            except TimeoutError:
                pass

    async def _start_due(self, poster: Poster, deliveries: asyncio.TaskGroup) -> None:
        if self._places.are_full:
            return
        due, self._after_origin = await self._record.due(after_origin=self._after_origin)
        if self._after_origin:
            self._due.set()
        chosen = self._places.choose(due)
        if not chosen:
            return
        claims = await self._record.claim(chosen, lease_seconds=self._settings.webhook_lease_seconds())
        if not claims:
            return
        reached(CrashPoint.WEBHOOKS_CLAIMED)
        ends = await self._ends_of(claims)
        for claim in claims:
            delivery = _Delivery(self._places.take(claim.origin), self._places)
            deliveries.create_task(
                self._deliver(poster, claim, ends.get(claim.execution_id), delivery),
                name=f"webhook of {claim.execution_id}",
            )

    async def _ends_of(self, claims: list[Claim]) -> Mapping[int, Outgoing]:
        messages = await read_ends(
            self._database,
            [claim.execution_id for claim in claims],
            result_bytes_max=self._settings.event_result_max_bytes,
        )
        return {int(message.correlation_id or 0): message for message in messages}

    async def _deliver(
        self, poster: Poster, claim: Claim, end: Outgoing | None, delivery: "_Delivery"
    ) -> None:
        try:
            answer = await self._answer(poster, claim, end, delivery)
            reached(CrashPoint.WEBHOOK_POSTED)
            note = self._note(claim, answer)
            _tell(note, applied=await self._notes.submit(note))
        except (Unavailable, asyncpg.PostgresError) as error:
            # The lease runs out, and then somebody delivers it again: the event's id tells that it is a copy.
            logger.warning(
                "webhook_not_noted", extra={"execution_id": claim.execution_id, "reason": str(error)}
            )
        except Exception:
            logger.exception("webhook_broken", extra={"execution_id": claim.execution_id})
        finally:
            delivery.end()
            self._due.set()

    def _note(self, claim: Claim, answer: Answer | None) -> Note:
        if answer is None:
            error = (
                f"no answer within {PROMPT_SECONDS:g} s, and many others do not answer either: it has to wait"
            )
            return Note(claim=claim, state="released", status=None, error=error, delay_seconds=0.0)
        judgement = judge(answer, attempts=claim.attempts, policy=self._policy, spread=random.uniform(-1, 1))
        return Note(
            claim=claim,
            state=judgement.state,
            status=answer.status,
            error=answer.error,
            delay_seconds=judgement.delay_seconds,
        )

    async def _answer(
        self, poster: Poster, claim: Claim, end: Outgoing | None, delivery: "_Delivery"
    ) -> Answer | None:
        """Post; None where the delivery had to give up its place before its time was over."""
        if end is None:
            return Answer(error="the execution is not in the record any more", is_final=True)
        traceparent = (end.headers or {}).get("traceparent")
        try:
            async with asyncio.timeout(self._settings.webhook_timeout) as deadline:
                delivery.begin(deadline)
                answer = await poster.post(
                    claim.url,
                    event_id=claim.event_id,
                    body=end.body,
                    traceparent=traceparent if isinstance(traceparent, str) else None,
                )
                delivery.answered = answer.status is not None
                return answer
        except TimeoutError:
            if delivery.is_cut_short:
                return None
            return Answer(error=f"no answer within {self._settings.webhook_timeout:g} s")
        except Exception as error:
            # No URL, however odd, may end more than its own delivery.
            logger.exception("webhook_broken", extra={"execution_id": claim.execution_id})
            return Answer(error=f"{type(error).__name__} inside the executor service; its log says more")


class _Delivery:
    """One delivery and its place: looks after a while whether it hangs."""

    def __init__(self, place: Place, places: Places) -> None:
        self._loop = asyncio.get_running_loop()
        self._place = place
        self._places = places
        self._began_at: float | None = None
        self._look: asyncio.Handle | None = None
        self._looks = 0
        self.answered = False
        self.is_cut_short = False

    def begin(self, deadline: asyncio.Timeout) -> None:
        """Note that its POST begins; `deadline` comes sooner if it hangs and there is no place for that."""
        self._began_at = self._loop.time()
        self._look_after(PROMPT_SECONDS, deadline)

    def end(self) -> None:
        """Give the place back."""
        if self._look is not None:
            self._look.cancel()
        seconds = None if self._began_at is None else self._loop.time() - self._began_at
        self._places.leave(self._place, seconds=seconds, answered=self.answered)

    def _look_after(self, seconds: float, deadline: asyncio.Timeout) -> None:
        self._look = self._loop.call_later(seconds, self._looked, self._loop.time() + seconds, deadline)

    def _looked(self, meant_at: float, deadline: asyncio.Timeout) -> None:
        self._let_turns_pass(_TURNS, meant_at, deadline)

    def _let_turns_pass(self, turns: int, meant_at: float, deadline: asyncio.Timeout) -> None:
        """Let the event loop take what has arrived: a POST needs many turns, and a busy process is slow."""
        if turns:
            self._look = self._loop.call_soon(self._let_turns_pass, turns - 1, meant_at, deadline)
        elif self._loop.time() - meant_at > _LATE_SECONDS and self._looks < _LOOKS_MAX:
            # This process was held up: the answer may be there already.
            self._looks += 1
            self._look_after(_LATE_SECONDS, deadline)
        elif not self._places.hangs(self._place):
            self.is_cut_short = True
            deadline.reschedule(self._loop.time())


def _tell(note: Note, *, applied: bool) -> None:
    fields = {
        "execution_id": note.claim.execution_id,
        "attempt": note.claim.attempts,
        "status": note.status,
        "reason": note.error,
    }
    if not applied:
        NOT_APPLIED.add("webhook", "late")
        logger.info("webhook_noted_too_late", extra=fields)
        return
    WEBHOOK_ATTEMPTS.add(note.state)
    match note.state:
        case "delivered":
            logger.debug("webhook_delivered", extra=fields)
        case "pending":
            logger.info("webhook_postponed", extra={**fields, "delay_seconds": note.delay_seconds})
        case "released":
            logger.info("webhook_released", extra=fields)
        case "failed":
            logger.warning("webhook_failed", extra=fields)
