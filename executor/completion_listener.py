"""Takes `execution.completed`, frees the slot of each attempt, and hands the next heads over (P4, P8).

Any replica, any order, any number of copies: settling deletes the slot row of that very attempt, or nothing.
A completion that comes before its finish is committed, or that names nothing we know, goes round the delay
queue a bounded number of times, then to the dead letters; the others flow on meanwhile. Next:
`queue_manager` settles and grants in one statement, `hand_over` offers.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from common.broker.delivery import Delivery, Outgoing
from common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_RETRY
from common.crash_points import CrashPoint, reached
from common.domain.errors import Code, Refusal
from common.domain.identifiers import Attempt, ExecutionId
from common.domain.states import Status
from common.envelopes import dead_letter, delayed_retry, tries_of
from common.messages import COMPLETED, STATUS_CHANGED
from common.requests import check_schema_version, read_json, read_model
from executor import transitions
from executor.decisions import Grants, Settled
from executor.hand_over import HandOver
from executor.metrics import DEAD_LETTERED, HAND_OVER_SECONDS, NOT_APPLIED
from executor.queue_manager import QueueManager
from executor.transitions import Ended

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 30
"""How often an early or unknown completion comes back, about a second apart."""
_COMPLETION_BYTES_MAX: Final = 16 * 1024 * 1024
_INTEGER_CHARS_MAX: Final = 20


class _End(BaseModel):
    """What frees a slot, of `execution.completed` and of a status event alike."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    execution_id: int
    attempt: int
    action_ref: str
    status: Status


@dataclass(slots=True, kw_only=True)
class Release:
    """What one batch of completions led to, to be told after the commit."""

    messages: list[Outgoing] = field(default_factory=list)
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))
    taken_in_at: float = field(default_factory=time.monotonic)


class CompletionListener:
    """Decides over batches of completions, and tells what was decided."""

    def __init__(
        self, queue_manager: QueueManager, hand_over: HandOver, *, on_callbacks: Callable[[], None]
    ) -> None:
        """`on_callbacks` is told when webhooks have become due."""
        self._queue_manager = queue_manager
        self._hand_over = hand_over
        self._on_callbacks = on_callbacks

    async def decide(self, deliveries: Sequence[Delivery]) -> Release:
        """Settle a batch of completions and grant on."""
        reached(CrashPoint.COMPLETIONS_RECEIVED)
        release = Release()
        completions: list[Ended] = []
        for delivery in deliveries:
            try:
                completions.append(read(delivery))
            except Refusal as refusal:
                _bury(release, delivery, refusal.code, refusal.message)
        if completions:
            with transitions.batch_from(EXECUTOR_COMPLETIONS, deliveries):
                settled = await self._queue_manager.settle(
                    [(c.execution_id, c.attempt, c.status if c.tells_end else None) for c in completions]
                )
            reached(CrashPoint.COMPLETIONS_SETTLED)
            release.grants = settled.grants
            if settled.callbacks:
                self._on_callbacks()
            _note(completions, settled)
            for completion in completions:
                if completion.execution_id in settled.early or completion.execution_id in settled.unknown:
                    _postpone(release, completion.delivery)
        return release

    async def tell(self, release: Release) -> None:
        """Offer what was granted, and send the early ones round."""
        await self._hand_over.offer(release.grants)
        if release.grants.granted:
            taken_seconds = time.monotonic() - release.taken_in_at
            HAND_OVER_SECONDS.observe(taken_seconds, count=len(release.grants.granted))
        await self._hand_over.tell(release.messages)
        reached(CrashPoint.COMPLETIONS_TOLD)


def read(delivery: Delivery) -> Ended:
    """Return which attempt ended; raises Refusal. Without a type, the routing key tells."""
    check_schema_version(delivery.headers)
    kind = delivery.type or delivery.routing_key
    if kind not in (COMPLETED, STATUS_CHANGED):
        raise Refusal(Code.INVALID_MESSAGE, f"type: {kind[:60]!r} is not taken here; expected {COMPLETED}")
    end = read_model(_End, _content(delivery.body))
    if not (0 < end.execution_id < 2**63 and 0 <= end.attempt < 2**31):
        raise Refusal(Code.INVALID_MESSAGE, "execution_id, attempt: out of range")
    return Ended(
        execution_id=ExecutionId(end.execution_id),
        attempt=Attempt(end.attempt),
        action_ref=end.action_ref,
        status=end.status,
        tells_end=kind == COMPLETED,
        delivery=delivery,
    )


def _content(body: bytes) -> Any:
    """Return the JSON value in `body`, also where its result is deeper or holds more than is taken elsewhere.

    Whoever ended the attempt chose that result, and only this message frees the slot.
    """
    try:
        return read_json(body, bytes_max=_COMPLETION_BYTES_MAX)
    except Refusal as refusal:
        if refusal.code is Code.TOO_LARGE:
            raise
        try:
            return json.loads(body, parse_int=_short_integer)
        except (ValueError, RecursionError):
            raise refusal from None


def _short_integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _INTEGER_CHARS_MAX else None


def _note(completions: Sequence[Ended], settled: Settled) -> None:
    transitions.settled(each for each in completions if each.execution_id in settled.ids)
    if settled.count < len(completions):
        early, unknown = len(settled.early), len(settled.unknown)
        repeated = len(completions) - settled.count - early - unknown
        for reason, count in (("early", early), ("unknown", unknown), ("repeated", repeated)):
            if count > 0:
                NOT_APPLIED.add("settle", reason, count=count)


def _postpone(release: Release, delivery: Delivery) -> None:
    if tries_of(delivery) < TRIES_MAX:
        release.messages.append(delayed_retry(delivery, retry_exchange=EXECUTOR_RETRY, app_id="executor"))
    else:
        _bury(release, delivery, Code.UNKNOWN_EXECUTION, f"no such ended execution after {TRIES_MAX} tries")


def _bury(release: Release, delivery: Delivery, code: Code, message: str) -> None:
    logger.warning("completion_refused", extra={"code": str(code), "reason": message})
    DEAD_LETTERED.add(code)
    release.messages.append(dead_letter(delivery, code, message, app_id="executor"))
