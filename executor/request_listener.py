"""Consumes `execution.requested` and `execution.cancel_requested` in arrival order (P2).

`executor.requests` has a single active consumer: one replica admits at a time, and a batch keeps the order of
the queue. A message that cannot be used is rejected with a reply and dead-lettered with the reason, never
requeued. A request that a full queue refused is not dead-lettered if a reply was possible.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from turnstile.common.batcher import in_steps
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import (
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_REQUESTED,
    EXECUTOR_REQUESTS,
    EXECUTOR_RETRY,
)
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.envelopes import dead_letter, delayed_retry, reply, tries_of
from turnstile.common.messages import CancelRequested, ExecutionAccepted, ExecutionRejected
from turnstile.common.requests import (
    check_schema_version,
    delivery_key,
    read_json,
    read_model,
    read_requested_body,
    read_traceparent,
    request_hash,
)
from turnstile.executor import instrumentation
from turnstile.executor.batch_consumer import Reply, check_kept
from turnstile.executor.cancellation import UNKNOWN, Canceller, EarlyCancels
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.metrics import DEAD_LETTERED
from turnstile.executor.results import Accepted, Admission, Grants, Move, Rejected, Verdict, is_blocked
from turnstile.executor.slot_grants import QueueManager

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 30
"""Retries of a cancel of an execution that another session holds, about a second apart."""
_CANCEL_BYTES_MAX: Final = 16 * 1024
_KEYS: Final = frozenset({EXECUTION_REQUESTED, EXECUTION_CANCEL_REQUESTED, EXECUTOR_REQUESTS})


@dataclass(slots=True, kw_only=True)
class RequestBatch:
    """Result of one batch of deliveries, to be published after the commit."""

    messages: list[Outgoing] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    admitted: list[tuple[str, Accepted]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    blocked: list[Delivery] = field(default_factory=list)
    """Requests whose queue another database session holds: processed again before later ones."""
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))
    left: Sequence[Delivery] = ()
    """Not processed: cancels behind admissions, and requests at which the database failed."""

    def refuse(self, delivery: Delivery, code: Code, message: str) -> None:
        """Reply to and dead-letter a delivery."""
        instrumentation.refused(code, message, delivery.message_id)
        answer = reply(delivery, ExecutionRejected(code=code, message=message))
        if answer is not None:
            self.replies.append(Reply(delivery=delivery, message=answer))
        # A full queue is no fault of the message: a submitter that got a reply may submit it again.
        if answer is None or code is not Code.QUEUE_FULL:
            DEAD_LETTERED.add(code)
            if delivery.kept:
                letter = dead_letter(delivery, code, message, app_id="executor")
                self.replies.append(Reply(delivery=delivery, message=letter))

    def answer(self, delivery: Delivery, admission: Admission, verdict: Verdict) -> None:
        """Reply to a request with its verdict."""
        match verdict:
            case Rejected():
                self.refuse(delivery, verdict.code, verdict.message)
            case Accepted():
                if delivery.reply_to:
                    accepted = ExecutionAccepted(
                        execution_id=verdict.execution_id,
                        status=verdict.status,
                        position=verdict.position,
                        duplicate=verdict.duplicate,
                    )
                    answer = reply(delivery, accepted)
                    if answer is not None:
                        self.replies.append(Reply(delivery=delivery, message=answer))
                if not verdict.duplicate:
                    self.admitted.append((admission.action_ref, verdict))


class RequestListener:
    """Processes batches of requests and publishes the results."""

    def __init__(
        self,
        queue_manager: QueueManager,
        canceller: Canceller,
        early_cancels: EarlyCancels,
        dispatcher: Dispatcher,
        *,
        parameters_bytes_max: int,
    ) -> None:
        self._queue_manager = queue_manager
        self._canceller = canceller
        self._early_cancels = early_cancels
        self._dispatcher = dispatcher
        self._parameters_bytes_max = parameters_bytes_max

    async def process(self, deliveries: Sequence[Delivery]) -> RequestBatch:
        """Admit the requests of a batch in order; if any is decided, leave its cancels for the next call.

        Admitting and cancelling are two commits: the grants of the first must not wait for the second.
        """
        reached(CrashPoint.REQUESTS_RECEIVED)
        batch = RequestBatch()
        admissions: list[tuple[Delivery, Admission]] = []
        cancels: list[tuple[Delivery, CancelRequested]] = []
        async for delivery in in_steps(deliveries):
            try:
                match read(delivery, self._parameters_bytes_max):
                    case Admission() as admission:
                        admissions.append((delivery, admission))
                    case CancelRequested() as cancel:
                        cancels.append((delivery, cancel))
            except Refusal as refusal:
                batch.refuse(delivery, refusal.code, refusal.message)
        if admissions:
            await self._admit(batch, admissions)
        if len(batch.blocked) == len(admissions):
            await self._cancel(batch, cancels)
        else:
            batch.left = [*batch.left, *(delivery for delivery, _ in cancels)]
        reached(CrashPoint.REQUESTS_DECIDED)
        return batch

    def give_up(self, delivery: Delivery, reason: str) -> RequestBatch:
        """Reply to and dead-letter a request that the database never finishes."""
        batch = RequestBatch()
        batch.refuse(delivery, Code.UNAVAILABLE, reason)
        return batch

    async def publish(self, batch: RequestBatch) -> None:
        """Publish status events, offers and the other messages of a batch."""
        self._dispatcher.announce_admitted(batch.admitted)
        self._dispatcher.announce_moves(batch.moves)
        await self._dispatcher.dispatch(batch.grants)
        await self._dispatcher.publish(batch.messages)
        reached(CrashPoint.REQUESTS_PUBLISHED)

    async def _admit(self, batch: RequestBatch, admissions: Sequence[tuple[Delivery, Admission]]) -> None:
        with instrumentation.batch_span(EXECUTOR_REQUESTS, [delivery for delivery, _ in admissions]):
            verdicts, batch.grants = await self._queue_manager.admit([each for _, each in admissions])
        reached(CrashPoint.REQUESTS_ADMITTED)
        for (delivery, admission), verdict in zip(admissions, verdicts, strict=False):
            if is_blocked(verdict):
                batch.blocked.append(delivery)
            else:
                batch.answer(delivery, admission, verdict)
        batch.left = [delivery for delivery, _ in admissions[len(verdicts) :]]

    async def _cancel(self, batch: RequestBatch, cancels: Sequence[tuple[Delivery, CancelRequested]]) -> None:
        if not cancels:
            return
        cancelled = await self._canceller.cancel([cancel for _, cancel in cancels])
        batch.messages += cancelled.messages
        batch.moves += cancelled.moves
        early = [cancels[index] for index in sorted(cancelled.unknown)]
        if early:
            stored = await self._early_cancels.store(early)
            for (delivery, _), is_stored in zip(early, stored, strict=True):
                if not is_stored:
                    batch.refuse(delivery, Code.UNKNOWN_EXECUTION, UNKNOWN)
        for index in sorted(cancelled.blocked):
            delivery, _ = cancels[index]
            if tries_of(delivery) < TRIES_MAX:
                batch.messages.append(
                    delayed_retry(delivery, retry_exchange=EXECUTOR_RETRY, app_id="executor")
                )
            else:
                batch.refuse(delivery, Code.UNAVAILABLE, "another database session holds the execution")


def read(delivery: Delivery, parameters_bytes_max: int) -> Admission | CancelRequested:
    """Validate a delivery; raises Refusal. Without a type, its routing key decides what it is."""
    check_kept(delivery)
    check_schema_version(delivery.headers)
    if delivery.routing_key not in _KEYS:
        # A sender without the right to use these keys can add them in the header CC to a key that it may use.
        raise Refusal(
            Code.FORBIDDEN,
            f"routing key: {delivery.routing_key[:60]!r} is not accepted here; publish with "
            f"{EXECUTION_REQUESTED} or {EXECUTION_CANCEL_REQUESTED}",
        )
    kind = delivery.type or delivery.routing_key
    if kind == EXECUTION_CANCEL_REQUESTED:
        cancel = read_model(CancelRequested, read_json(delivery.body, bytes_max=_CANCEL_BYTES_MAX))
        if (cancel.execution_id is None) == (cancel.idempotency_key is None):
            raise Refusal(Code.INVALID_MESSAGE, "execution_id, idempotency_key: give exactly one of them")
        return cancel
    if kind != EXECUTION_REQUESTED:
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"type: {kind[:60]!r} is not accepted here; expected "
            f"{EXECUTION_REQUESTED} or {EXECUTION_CANCEL_REQUESTED}",
        )
    request = read_requested_body(delivery.body, parameters_bytes_max=parameters_bytes_max)
    content_hash = request_hash(request)
    return Admission.of(
        request,
        content_hash,
        # The idempotency key already makes a repeated delivery the same execution.
        delivery_key=delivery_key(delivery.message_id, content_hash)
        if delivery.message_id and request.idempotency_key is None
        else None,
        traceparent=read_traceparent(delivery.headers),
    )
