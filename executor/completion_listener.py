"""Consumes `execution.completed`: frees the slot of each attempt and grants it to the next one (P4, P8).

Any replica, in any order, any number of copies: settling deletes the slot row of that very attempt, or
nothing. A completion that comes before its finish is committed, or that names an unknown execution, goes to
the delay queue a bounded number of times, at a bounded rate, then to the dead letters; it delays no other
(P9).
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json

from turnstile.common.batcher import in_steps
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import (
    EXECUTION_COMPLETED,
    EXECUTION_STATUS_CHANGED,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_RETRY,
)
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import dead_letter, delayed_retry, tries_of
from turnstile.common.messages import named_attempt
from turnstile.common.requests import check_schema_version
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor import instrumentation
from turnstile.executor.batch_consumer import Reply, check_kept
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.metrics import DEAD_LETTERED, HAND_OVER_SECONDS, NOT_APPLIED
from turnstile.executor.results import Completion, Grants, Settled
from turnstile.executor.slot_grants import QueueManager

logger = logging.getLogger(__name__)
_REFUSED: Final = Episodes(logger, "completion_refused")

TRIES_MAX: Final = 30
"""Retries of an early or unknown completion, about a second apart."""
_RETRIES_PER_SECOND: Final = 200
"""For all completions together: repeated retries of a flood must not delay the others."""
_COMPLETION_BYTES_MAX: Final = 16 * 1024 * 1024
_INTEGER_CHARS_MAX: Final = 20
_STATUSES: Final = {str(status): status for status in Status}


@dataclass(slots=True, kw_only=True)
class CompletionBatch:
    """Result of one batch of completions, to be published after the commit."""

    messages: list[Outgoing] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))
    received_at: float = field(default_factory=time.monotonic)
    blocked: Sequence[Delivery] = ()
    """Always empty: completions that need a blocked row go to the delay queue."""
    left: Sequence[Delivery] = ()
    """Not processed, because the database failed."""

    def refuse(self, delivery: Delivery, code: Code, message: str) -> None:
        """Dead-letter a delivery."""
        _REFUSED.failed(str(code), code=str(code), reason=message)
        DEAD_LETTERED.add(code)
        if delivery.kept:
            letter = dead_letter(delivery, code, message, app_id="executor")
            self.replies.append(Reply(delivery=delivery, message=letter))

    def retry_later(self, delivery: Delivery) -> None:
        """Send a delivery to the delay queue."""
        self.messages.append(delayed_retry(delivery, retry_exchange=EXECUTOR_RETRY, app_id="executor"))


class _RetryBudget:
    """Limits retries to a rate, with a burst of one second."""

    def __init__(self) -> None:
        self._left = float(_RETRIES_PER_SECOND)
        self._counted_at = time.monotonic()

    def take(self) -> bool:
        """Return whether one more retry is allowed, and count it."""
        now = time.monotonic()
        earned = (now - self._counted_at) * _RETRIES_PER_SECOND
        self._left, self._counted_at = min(self._left + earned, float(_RETRIES_PER_SECOND)), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class CompletionListener:
    """Processes batches of completions and publishes the results."""

    def __init__(
        self, queue_manager: QueueManager, dispatcher: Dispatcher, *, on_callbacks: Callable[[], None]
    ) -> None:
        """`on_callbacks` is called when webhooks have become due."""
        self._queue_manager = queue_manager
        self._dispatcher = dispatcher
        self._on_callbacks = on_callbacks
        self._retry_budget = _RetryBudget()

    async def process(self, deliveries: Sequence[Delivery]) -> CompletionBatch:
        """Settle a batch of completions and grant the freed slots."""
        reached(CrashPoint.COMPLETIONS_RECEIVED)
        batch = CompletionBatch()
        completions: list[Completion] = []
        async for delivery in in_steps(deliveries):
            try:
                completions.append(read(delivery))
            except Refusal as refusal:
                batch.refuse(delivery, refusal.code, refusal.message)
        if completions:
            with instrumentation.batch_span(EXECUTOR_COMPLETIONS, deliveries):
                settled = await self._queue_manager.settle(
                    [(c.execution_id, c.attempt, c.status if c.is_end else None) for c in completions]
                )
            reached(CrashPoint.COMPLETIONS_SETTLED)
            batch.grants = settled.grants
            if settled.callbacks:
                self._on_callbacks()
            batch.left = [completion.delivery for completion in completions[settled.decided :]]
            self._conclude(batch, completions[: settled.decided], settled)
        return batch

    def give_up(self, delivery: Delivery, reason: str) -> CompletionBatch:
        """Dead-letter a completion that the database never finishes; the watchdog publishes it again."""
        batch = CompletionBatch()
        batch.refuse(delivery, Code.UNAVAILABLE, reason)
        return batch

    async def publish(self, batch: CompletionBatch) -> None:
        """Publish the offers of a batch, and send early completions to the delay queue."""
        await self._dispatcher.dispatch(batch.grants)
        if batch.grants.granted:
            elapsed_seconds = time.monotonic() - batch.received_at
            HAND_OVER_SECONDS.observe(elapsed_seconds, count=len(batch.grants.granted))
        await self._dispatcher.publish(batch.messages)
        reached(CrashPoint.COMPLETIONS_PUBLISHED)

    def _conclude(self, batch: CompletionBatch, completions: Sequence[Completion], settled: Settled) -> None:
        _count(completions, settled)
        for completion in completions:
            delivery = completion.delivery
            if (why := settled.refused.get((completion.execution_id, completion.attempt))) is not None:
                batch.refuse(delivery, Code.INVALID_MESSAGE, why)
            elif completion.execution_id in settled.blocked:
                # After so many tries the watchdog repeats it from its row (P4).
                if tries_of(delivery) < TRIES_MAX:
                    batch.retry_later(delivery)
            elif completion.execution_id in settled.early or completion.execution_id in settled.unknown:
                self._postpone(batch, completion, settled)

    def _postpone(self, batch: CompletionBatch, completion: Completion, settled: Settled) -> None:
        delivery = completion.delivery
        if tries_of(delivery) >= TRIES_MAX:
            message = f"no such ended execution after {TRIES_MAX} tries"
            batch.refuse(delivery, Code.UNKNOWN_EXECUTION, message)
        elif self._retry_budget.take():
            batch.retry_later(delivery)
        elif completion.execution_id in settled.unknown:
            message = (
                f"no such execution; not tried again, because more than {_RETRIES_PER_SECOND} a second are"
            )
            batch.refuse(delivery, Code.UNKNOWN_EXECUTION, message)
        # Else it is dropped: the worker or the watchdog publishes the completion when its attempt ends.


def read(delivery: Delivery) -> Completion:
    """Validate a delivery; raises Refusal. Without a type, its routing key decides what it is."""
    check_kept(delivery)
    check_schema_version(delivery.headers)
    kind = delivery.type or delivery.routing_key
    if kind not in (EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED):
        raise Refusal(
            Code.INVALID_MESSAGE, f"type: {kind[:60]!r} is not accepted here; expected {EXECUTION_COMPLETED}"
        )
    body = _content(delivery.body)
    execution_id, attempt = named_attempt(body)
    action_ref, name = body.get("action_ref"), body.get("status")
    if not isinstance(action_ref, str):
        raise Refusal(Code.INVALID_MESSAGE, "action_ref: expected a string")
    status = _STATUSES.get(name) if isinstance(name, str) else None
    if status is None:
        raise Refusal(Code.INVALID_MESSAGE, f"status: expected one of {', '.join(_STATUSES)}")
    return Completion(
        execution_id=execution_id,
        attempt=attempt,
        action_ref=action_ref,
        status=status,
        is_end=kind == EXECUTION_COMPLETED,
        delivery=delivery,
    )


def _content(body: bytes) -> Any:
    """Return the JSON value in `body`, also where its result exceeds the bounds on JSON elsewhere.

    The action chose that result, and only this message frees the slot.
    """
    if len(body) > _COMPLETION_BYTES_MAX:
        raise Refusal(
            Code.TOO_LARGE, f"body: {len(body)} bytes, at most {_COMPLETION_BYTES_MAX} are accepted"
        )
    try:
        return from_json(body)
    except ValueError as error:
        try:
            return json.loads(body, parse_int=_short_integer)
        except (ValueError, RecursionError):
            raise Refusal(Code.INVALID_MESSAGE, f"body: not JSON: {error}") from None


def _short_integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _INTEGER_CHARS_MAX else None


def _count(completions: Sequence[Completion], settled: Settled) -> None:
    instrumentation.settled([each for each in completions if each.execution_id in settled.ids])
    if settled.count < len(completions):
        early, unknown, blocked = len(settled.early), len(settled.unknown), len(settled.blocked)
        repeated = len(completions) - settled.count - early - unknown - blocked - len(settled.refused)
        counts = (("early", early), ("unknown", unknown), ("held", blocked), ("repeated", repeated))
        for reason, count in counts:
            if count > 0:
                NOT_APPLIED.add("settle", reason, count=count)
