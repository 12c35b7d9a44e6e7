"""Takes `execution.completed`, frees the slot of each attempt, and hands the next heads over (P4, P8).

Any replica, any order, any number of copies: settling deletes the slot row of that very attempt, or nothing.
A completion that comes before its finish is committed, or that names nothing we know, goes round the delay
queue a bounded number of times, and so many a second at most, then to the dead letters; the others flow on
meanwhile (P9). Next: `queue_manager` settles and grants in one statement, `hand_over` offers.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from turnstile.common.batcher import in_steps
from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_RETRY
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import dead_letter, delayed_retry, tries_of
from turnstile.common.messages import COMPLETED, STATUS_CHANGED
from turnstile.common.requests import check_schema_version, read_json, read_model
from turnstile.executor import transitions
from turnstile.executor.decisions import Grants, Settled
from turnstile.executor.hand_over import HandOver
from turnstile.executor.intake import Letter, check_kept
from turnstile.executor.metrics import DEAD_LETTERED, HAND_OVER_SECONDS, NOT_APPLIED
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.transitions import Ended

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 30
"""How often an early or unknown completion comes back, about a second apart."""
_ROUNDS_PER_SECOND: Final = 200
"""How many of them go round, in all: a flood must not hold up the others again every second."""
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
    letters: list[Letter] = field(default_factory=list)
    grants: Grants = field(default_factory=lambda: Grants(granted=[]))
    taken_in_at: float = field(default_factory=time.monotonic)
    aside: Sequence[Delivery] = ()
    """Always none: what waits for a held row goes round the delay queue."""
    left: Sequence[Delivery] = ()
    """What was not decided about, since the database fell out."""


class _Rounds:
    """Counts what may still go round: so many each second, and as many at once."""

    def __init__(self) -> None:
        self._left = float(_ROUNDS_PER_SECOND)
        self._counted_at = time.monotonic()

    def take(self) -> bool:
        """Tell whether one more may go round, and count it."""
        now = time.monotonic()
        earned = (now - self._counted_at) * _ROUNDS_PER_SECOND
        self._left, self._counted_at = min(self._left + earned, float(_ROUNDS_PER_SECOND)), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class CompletionListener:
    """Decides over batches of completions, and tells what was decided."""

    def __init__(
        self, queue_manager: QueueManager, hand_over: HandOver, *, on_callbacks: Callable[[], None]
    ) -> None:
        """`on_callbacks` is told when webhooks have become due."""
        self._queue_manager = queue_manager
        self._hand_over = hand_over
        self._on_callbacks = on_callbacks
        self._rounds = _Rounds()

    async def decide(self, deliveries: Sequence[Delivery]) -> Release:
        """Settle a batch of completions and grant on."""
        reached(CrashPoint.COMPLETIONS_RECEIVED)
        release = Release()
        completions: list[Ended] = []
        async for delivery in in_steps(deliveries):
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
            release.left = [completion.delivery for completion in completions[settled.decided :]]
            self._conclude(release, completions[: settled.decided], settled)
        return release

    def put_aside(self, delivery: Delivery, reason: str) -> Release:
        """Dead-letter what the database never finishes; the watchdog tells the end again."""
        release = Release()
        _bury(release, delivery, Code.UNAVAILABLE, reason)
        return release

    async def tell(self, release: Release) -> None:
        """Offer what was granted, and send the early ones round."""
        await self._hand_over.offer(release.grants)
        if release.grants.granted:
            taken_seconds = time.monotonic() - release.taken_in_at
            HAND_OVER_SECONDS.observe(taken_seconds, count=len(release.grants.granted))
        await self._hand_over.tell(release.messages)
        reached(CrashPoint.COMPLETIONS_TOLD)

    def _conclude(self, release: Release, completions: Sequence[Ended], settled: Settled) -> None:
        _note(completions, settled)
        for completion in completions:
            if (why := settled.refused.get((completion.execution_id, completion.attempt))) is not None:
                _bury(release, completion.delivery, Code.INVALID_MESSAGE, why)
            elif completion.execution_id in settled.held:
                _put_off(release, completion.delivery)
            elif completion.execution_id in settled.early or completion.execution_id in settled.unknown:
                self._postpone(release, completion, settled)

    def _postpone(self, release: Release, completion: Ended, settled: Settled) -> None:
        delivery = completion.delivery
        if tries_of(delivery) >= TRIES_MAX:
            _bury(
                release, delivery, Code.UNKNOWN_EXECUTION, f"no such ended execution after {TRIES_MAX} tries"
            )
        elif self._rounds.take():
            release.messages.append(delayed_retry(delivery, retry_exchange=EXECUTOR_RETRY, app_id="executor"))
        elif completion.execution_id in settled.unknown:
            _bury(
                release,
                delivery,
                Code.UNKNOWN_EXECUTION,
                f"no such execution; not tried again, since more than {_ROUNDS_PER_SECOND} a second are",
            )
        # Else it is dropped: when its attempt ends that is told, by its worker or by the watchdog.


def read(delivery: Delivery) -> Ended:
    """Return which attempt ended; raises Refusal. Without a type, the routing key tells."""
    check_kept(delivery)
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
        held = len(settled.held)
        repeated = len(completions) - settled.count - early - unknown - held - len(settled.refused)
        counts = (("early", early), ("unknown", unknown), ("held", held), ("repeated", repeated))
        for reason, count in counts:
            if count > 0:
                NOT_APPLIED.add("settle", reason, count=count)


def _put_off(release: Release, delivery: Delivery) -> None:
    # Another session holds its queue or slot. After so many tries its row is the reminder (P4).
    if tries_of(delivery) < TRIES_MAX:
        release.messages.append(delayed_retry(delivery, retry_exchange=EXECUTOR_RETRY, app_id="executor"))


def _bury(release: Release, delivery: Delivery, code: Code, message: str) -> None:
    logger.warning("completion_refused", extra={"code": str(code), "reason": message})
    DEAD_LETTERED.add(code)
    if delivery.kept:
        letter = dead_letter(delivery, code, message, app_id="executor")
        release.letters.append(Letter(delivery=delivery, message=letter))
