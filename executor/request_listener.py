"""Takes `execution.requested` and `execution.cancel_requested` in arrival order (P2).

`executor.requests` has a single active consumer: of all replicas one admits, and the batch keeps the order
of the queue. What cannot be taken is answered and put to the dead letters with the reason, never requeued.
Next: `queue_manager` admits, `hand_over` offers what was granted.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from common.broker.delivery import Delivery, Outgoing
from common.broker.topology import EXECUTOR_REQUESTS, EXECUTOR_RETRY
from common.crash_points import CrashPoint, reached
from common.domain.errors import Code, Refusal
from common.envelopes import dead_letter, delayed_retry, reply, tries_of
from common.messages import (
    CANCEL_REQUESTED,
    REQUESTED,
    CancelRequested,
    ExecutionAccepted,
    ExecutionRejected,
)
from common.requests import (
    check_schema_version,
    delivery_key,
    read_json,
    read_model,
    read_requested_body,
    read_traceparent,
    request_hash,
)
from executor import transitions
from executor.cancelling import Canceller
from executor.decisions import Accepted, Admission, Grants, Move, Rejected, Verdict, is_held
from executor.hand_over import HandOver
from executor.metrics import DEAD_LETTERED, REFUSED
from executor.queue_manager import QueueManager

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 30
"""How often a cancel for something not known yet comes back, about a second apart."""
_CANCEL_BYTES_MAX: Final = 16 * 1024
_KEYS: Final = frozenset({REQUESTED, CANCEL_REQUESTED, EXECUTOR_REQUESTS})


@dataclass(slots=True, kw_only=True)
class Intake:
    """What one batch of deliveries led to, to be told after the commit."""

    messages: list[Outgoing] = field(default_factory=list)
    admitted: list[tuple[str, Accepted]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    aside: list[Delivery] = field(default_factory=list)
    """Requests whose queue another database session holds: to be decided again before what comes later."""
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))


class RequestListener:
    """Decides over batches of requests, and tells what was decided."""

    def __init__(
        self,
        queue_manager: QueueManager,
        canceller: Canceller,
        hand_over: HandOver,
        *,
        parameters_bytes_max: int,
    ) -> None:
        self._queue_manager = queue_manager
        self._canceller = canceller
        self._hand_over = hand_over
        self._parameters_bytes_max = parameters_bytes_max

    async def decide(self, deliveries: Sequence[Delivery]) -> Intake:
        """Admit the requests of a batch in order, then act on its cancels."""
        reached(CrashPoint.REQUESTS_RECEIVED)
        intake = Intake()
        admissions: list[tuple[Delivery, Admission]] = []
        cancels: list[tuple[Delivery, CancelRequested]] = []
        for delivery in deliveries:
            try:
                match read(delivery, self._parameters_bytes_max):
                    case Admission() as admission:
                        admissions.append((delivery, admission))
                    case CancelRequested() as cancel:
                        cancels.append((delivery, cancel))
            except Refusal as refusal:
                _refuse(intake, delivery, refusal.code, refusal.message)
        with transitions.batch_from(EXECUTOR_REQUESTS, deliveries):
            verdicts, intake.grants = await self._queue_manager.admit([each for _, each in admissions])
        reached(CrashPoint.REQUESTS_ADMITTED)
        for (delivery, admission), verdict in zip(admissions, verdicts, strict=True):
            if is_held(verdict):
                intake.aside.append(delivery)
            else:
                _answer(intake, delivery, admission, verdict)
        await self._cancel(intake, cancels)
        reached(CrashPoint.REQUESTS_DECIDED)
        return intake

    def aside(self, intake: Intake) -> Sequence[Delivery]:
        """Return what could not be decided, in order."""
        return intake.aside

    async def tell(self, intake: Intake) -> None:
        """Offer what was granted, answer those who asked, announce."""
        self._hand_over.announce_admitted(intake.admitted)
        self._hand_over.announce_moves(intake.moves)
        await self._hand_over.offer(intake.grants)
        await self._hand_over.tell(intake.messages)
        reached(CrashPoint.REQUESTS_TOLD)

    async def _cancel(self, intake: Intake, cancels: Sequence[tuple[Delivery, CancelRequested]]) -> None:
        if not cancels:
            return
        cancelled = await self._canceller.cancel([cancel for _, cancel in cancels])
        intake.messages += cancelled.messages
        intake.moves += cancelled.moves
        for delivery, cancel in cancels:
            if cancel not in cancelled.unknown and cancel not in cancelled.held:
                continue
            if tries_of(delivery) < TRIES_MAX:
                intake.messages.append(
                    delayed_retry(delivery, retry_exchange=EXECUTOR_RETRY, app_id="executor")
                )
            elif cancel in cancelled.held:
                _refuse(intake, delivery, Code.UNAVAILABLE, "another database session holds the execution")
            else:
                _refuse(
                    intake, delivery, Code.UNKNOWN_EXECUTION, "no such execution; check the id or the key"
                )


def read(delivery: Delivery, parameters_bytes_max: int) -> Admission | CancelRequested:
    """Return the checked content of a delivery; raises Refusal. Without a type, its routing key tells."""
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
    return Admission(
        request=request,
        request_hash=asked,
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
            _append(intake, reply(delivery, accepted))
            if not verdict.duplicate:
                intake.admitted.append((admission.request.action_ref, verdict))


def _refuse(intake: Intake, delivery: Delivery, code: Code, message: str) -> None:
    logger.info(
        "request_refused", extra={"code": str(code), "reason": message, "message_id": delivery.message_id}
    )
    REFUSED.add(code)
    DEAD_LETTERED.add(code)
    _append(intake, reply(delivery, ExecutionRejected(code=code, message=message)))
    intake.messages.append(dead_letter(delivery, code, message, app_id="executor"))


def _append(intake: Intake, message: Outgoing | None) -> None:
    if message is not None:
        intake.messages.append(message)
