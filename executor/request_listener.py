"""Takes `execution.requested` and `execution.cancel_requested` in arrival order (P2).

`executor.requests` has a single active consumer: of all replicas one admits, and the batch keeps the order
of the queue. What cannot be taken is answered and put to the dead letters with the reason, never requeued;
a refusal by a full queue that was answered is no dead letter.
Next: `queue_manager` admits, `hand_over` offers what was granted.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from turnstile.common.batcher import in_steps
from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.broker.topology import EXECUTOR_REQUESTS, EXECUTOR_RETRY
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.envelopes import dead_letter, delayed_retry, reply, tries_of
from turnstile.common.messages import (
    CANCEL_REQUESTED,
    REQUESTED,
    CancelRequested,
    ExecutionAccepted,
    ExecutionRejected,
)
from turnstile.common.requests import (
    check_schema_version,
    delivery_key,
    read_json,
    read_model,
    read_requested_body,
    read_traceparent,
    request_hash,
)
from turnstile.executor import transitions
from turnstile.executor.cancelling import Canceller
from turnstile.executor.decisions import Accepted, Admission, Grants, Move, Rejected, Verdict, is_held
from turnstile.executor.early_cancels import UNKNOWN, EarlyCancels
from turnstile.executor.hand_over import HandOver
from turnstile.executor.intake import Letter, check_kept
from turnstile.executor.metrics import DEAD_LETTERED, REFUSED
from turnstile.executor.queue_manager import QueueManager

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 30
"""How often a cancel of what another session holds comes back, about a second apart."""
_CANCEL_BYTES_MAX: Final = 16 * 1024
_KEYS: Final = frozenset({REQUESTED, CANCEL_REQUESTED, EXECUTOR_REQUESTS})


@dataclass(slots=True, kw_only=True)
class Intake:
    """What one batch of deliveries led to, to be told after the commit."""

    messages: list[Outgoing] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    admitted: list[tuple[str, Accepted]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    aside: list[Delivery] = field(default_factory=list)
    """Requests whose queue another database session holds: to be decided again before what comes later."""
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))
    left: Sequence[Delivery] = ()
    """What was not decided about: cancels behind admissions, and what the database was out for."""


class RequestListener:
    """Decides over batches of requests, and tells what was decided."""

    def __init__(
        self,
        queue_manager: QueueManager,
        canceller: Canceller,
        early_cancels: EarlyCancels,
        hand_over: HandOver,
        *,
        parameters_bytes_max: int,
    ) -> None:
        self._queue_manager = queue_manager
        self._canceller = canceller
        self._early_cancels = early_cancels
        self._hand_over = hand_over
        self._parameters_bytes_max = parameters_bytes_max

    async def decide(self, deliveries: Sequence[Delivery]) -> Intake:
        """Admit the requests of a batch in order, and leave its cancels where one was admitted.

        Two statements are two decisions: what the first one granted is offered whatever comes of the other.
        """
        reached(CrashPoint.REQUESTS_RECEIVED)
        intake = Intake()
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
                _refuse(intake, delivery, refusal.code, refusal.message)
        if admissions:
            await self._admit(intake, admissions)
        if len(intake.aside) == len(admissions):
            await self._cancel(intake, cancels)
        else:
            intake.left = [*intake.left, *(delivery for delivery, _ in cancels)]
        reached(CrashPoint.REQUESTS_DECIDED)
        return intake

    def put_aside(self, delivery: Delivery, reason: str) -> Intake:
        """Answer and dead-letter what the database never finishes."""
        intake = Intake()
        _refuse(intake, delivery, Code.UNAVAILABLE, reason)
        return intake

    async def tell(self, intake: Intake) -> None:
        """Offer what was granted, answer those who asked, announce."""
        self._hand_over.announce_admitted(intake.admitted)
        self._hand_over.announce_moves(intake.moves)
        await self._hand_over.offer(intake.grants)
        await self._hand_over.tell(intake.messages)
        reached(CrashPoint.REQUESTS_TOLD)

    async def _admit(self, intake: Intake, admissions: Sequence[tuple[Delivery, Admission]]) -> None:
        with transitions.batch_from(EXECUTOR_REQUESTS, [delivery for delivery, _ in admissions]):
            verdicts, intake.grants = await self._queue_manager.admit([each for _, each in admissions])
        reached(CrashPoint.REQUESTS_ADMITTED)
        for (delivery, admission), verdict in zip(admissions, verdicts, strict=False):
            if is_held(verdict):
                intake.aside.append(delivery)
            else:
                _answer(intake, delivery, admission, verdict)
        intake.left = [delivery for delivery, _ in admissions[len(verdicts) :]]

    async def _cancel(self, intake: Intake, cancels: Sequence[tuple[Delivery, CancelRequested]]) -> None:
        if not cancels:
            return
        cancelled = await self._canceller.cancel([cancel for _, cancel in cancels])
        intake.messages += cancelled.messages
        intake.moves += cancelled.moves
        early = [cancels[place] for place in sorted(cancelled.unknown)]
        if early:
            kept = await self._early_cancels.keep(early)
            for (delivery, _), is_kept in zip(early, kept, strict=True):
                if not is_kept:
                    _refuse(intake, delivery, Code.UNKNOWN_EXECUTION, UNKNOWN)
        for place in sorted(cancelled.held):
            delivery, _ = cancels[place]
            if tries_of(delivery) < TRIES_MAX:
                intake.messages.append(
                    delayed_retry(delivery, retry_exchange=EXECUTOR_RETRY, app_id="executor")
                )
            else:
                _refuse(intake, delivery, Code.UNAVAILABLE, "another database session holds the execution")


def read(delivery: Delivery, parameters_bytes_max: int) -> Admission | CancelRequested:
    """Return the checked content of a delivery; raises Refusal. Without a type, its routing key tells."""
    check_kept(delivery)
    check_schema_version(delivery.headers)
    if delivery.routing_key not in _KEYS:
        # Who may not use these keys can put them into the header CC, beside one that it may use.
        raise Refusal(
            Code.FORBIDDEN,
            f"routing key: {delivery.routing_key[:60]!r} is not taken here; publish with {REQUESTED} or "
            f"{CANCEL_REQUESTED}",
        )
    kind = delivery.type or delivery.routing_key
    if kind == CANCEL_REQUESTED:
        cancel = read_model(CancelRequested, read_json(delivery.body, bytes_max=_CANCEL_BYTES_MAX))
        if (cancel.execution_id is None) == (cancel.idempotency_key is None):
            raise Refusal(Code.INVALID_MESSAGE, "execution_id, idempotency_key: give exactly one of them")
        return cancel
    if kind != REQUESTED:
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"type: {kind[:60]!r} is not taken here; expected {REQUESTED} or {CANCEL_REQUESTED}",
        )
    request = read_requested_body(delivery.body, parameters_bytes_max=parameters_bytes_max)
    asked = request_hash(request)
    return Admission.of(
        request,
        asked,
        # The idempotency key already makes a repeated delivery the same execution.
        delivery_key=delivery_key(delivery.message_id, asked)
        if delivery.message_id and request.idempotency_key is None
        else None,
        traceparent=read_traceparent(delivery.headers),
    )


def _answer(intake: Intake, delivery: Delivery, admission: Admission, verdict: Verdict) -> None:
    match verdict:
        case Rejected():
            _refuse(intake, delivery, verdict.code, verdict.message)
        case Accepted():
            accepted = ExecutionAccepted(
                execution_id=verdict.execution_id,
                status=verdict.status,
                position=verdict.position,
                duplicate=verdict.duplicate,
            )
            answer = reply(delivery, accepted)
            if answer is not None:
                intake.letters.append(Letter(delivery=delivery, message=answer))
            if not verdict.duplicate:
                intake.admitted.append((admission.action_ref, verdict))


def _refuse(intake: Intake, delivery: Delivery, code: Code, message: str) -> None:
    logger.info(
        "request_refused", extra={"code": str(code), "reason": message, "message_id": delivery.message_id}
    )
    REFUSED.add(code)
    answer = reply(delivery, ExecutionRejected(code=code, message=message))
    if answer is not None:
        intake.letters.append(Letter(delivery=delivery, message=answer))
    # A full queue is no fault of the message: a submitter that was answered may send it again.
    if answer is None or code is not Code.QUEUE_FULL:
        DEAD_LETTERED.add(code)
        if delivery.kept:
            letter = dead_letter(delivery, code, message, app_id="executor")
            intake.letters.append(Letter(delivery=delivery, message=letter))
