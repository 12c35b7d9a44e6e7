"""Takes deliveries from one queue in two steps: decide (one commit), then tell (confirmed) and acknowledge.

While one batch is told the next is decided, both in order. A delivery is acknowledged only after its
decision is committed and everything that follows from it is confirmed (P5); whatever fails before that is
delivered again, and deciding it again is harmless. A batch is bounded in messages and in bytes. One that the
database does not finish in its time is tried again with half of it, down to a single message, and that one
is put aside after a few tries (P9). Replies and dead letters are the courier's: their deliveries are
acknowledged by themselves, so that an address that takes nothing holds up nothing else. What waits for a row
that another session holds is kept aside, and decided again before what came later. Used by `request_listener`
and `completion_listener`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TypeVar

import asyncpg

from turnstile.common.batcher import BATCH_BYTES_MAX
from turnstile.common.broker.courier import Courier
from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.broker.subscription import Subscription
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Code, Refusal, StatementTimeout, Unavailable

logger = logging.getLogger(__name__)

LONE_TIMEOUTS_MAX: Final = 3
"""How often a message may run out of the database's time all by itself."""
_UNTOLD_BATCHES_MAX: Final = 2
_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 5.0
_LETTERS_SECONDS: Final = 2.0
"""How long an acknowledgement waits for a letter; the courier tries on for longer."""
_ASIDE_BATCHES_MAX: Final = 3
"""So many batches are kept aside; while it is that many nothing new is taken: the prefetch holds four."""
_ASIDE_PAUSE_SECONDS: Final = 0.1
"""How soon what was left aside is decided again where nothing new arrives."""
_HELD_MAX: Final = 1000
"""Deliveries whose acknowledgement waits for letters; well below the prefetch, so that others come in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A reply to a delivery, or the dead letter made of it: a message to an address of strangers."""

    delivery: Delivery
    message: Outgoing


class Decided(Protocol):
    """What a listener made of a batch."""

    @property
    def letters(self) -> Sequence[Letter]:
        """Replies and dead letters; a delivery is acknowledged after its own, or when they take too long."""

    @property
    def left(self) -> Sequence[Delivery]:
        """Those it did not decide about: they come next, and are not told of nor acknowledged with these."""

    @property
    def aside(self) -> Sequence[Delivery]:
        """Those that wait for a row that another session holds: decided before what came later (P2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A decision from which nothing follows."""

    letters: Sequence[Letter] = ()
    left: Sequence[Delivery] = ()
    aside: Sequence[Delivery] = ()


Decision = TypeVar("Decision", bound=Decided)


class Listener(Protocol[Decision]):
    """What is done with the deliveries of one queue."""

    async def decide(self, deliveries: Sequence[Delivery], /) -> Decision:
        """Decide over a batch, in order, in one commit; raises Unavailable to have it decided again."""

    def put_aside(self, delivery: Delivery, reason: str, /) -> Decision:
        """Decide that this one cannot be decided about, so that those behind it can."""

    async def tell(self, decision: Decision, /) -> None:
        """Return once all that follows from the decision is confirmed, but for its letters."""


@dataclass(slots=True)
class BatchSize:
    """How many messages the next statement may have: half as many after a time-out, then more again."""

    maximum: int
    now: int

    def shrink(self, tried: int) -> None:
        """Note that the database had no time for so many."""
        self.now = max(1, tried // 2)

    def grow(self) -> None:
        """Note that a statement was finished."""
        self.now = min(self.now * 2, self.maximum)


async def take_in(
    subscription: Subscription,
    listener: Listener[Decision],
    *,
    batch_max: int,
    stop: asyncio.Event,
    courier: Courier | None = None,
) -> None:
    """Decide and tell batch after batch until `stop`, then tell what is decided and return.

    What was delivered and not decided is left: it goes back to the front of the queue when the connection
    closes, before another consumer is let in (P2).
    """
    untold: asyncio.Queue[tuple[Sequence[Delivery], Decision]] = asyncio.Queue(_UNTOLD_BATCHES_MAX)
    letters = _Letters(subscription, courier)

    async def tell_in_order() -> NoReturn:
        while True:
            deliveries, decision = await untold.get()
            await listener.tell(decision)
            held = letters.post(decision.letters)
            _settle(subscription, [each for each in deliveries if id(each) not in held])
            reached(CrashPoint.EXECUTOR_ACKNOWLEDGED)
            untold.task_done()

    size = BatchSize(batch_max, batch_max)
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(tell_in_order(), name=f"tell-{subscription.queue}")
        aside: list[Delivery] = []
        while not stop.is_set():
            fresh: Sequence[Delivery] = ()
            if len(aside) < batch_max * _ASIDE_BATCHES_MAX:
                patience_seconds = _ASIDE_PAUSE_SECONDS if aside else None
                fresh = await _next_batch(subscription, size.now, stop, patience_seconds)
            else:
                await asyncio.sleep(_ASIDE_PAUSE_SECONDS)
            if stop.is_set() or not (aside or fresh):
                continue
            if not fresh and subscription.full and not subscription.buffered:
                # They alone keep the channel from its renewal, and others out. They come again first (P2).
                subscription.reject(aside, requeue=True)
                aside.clear()
                continue
            async for decided in decisions_over(aside, fresh, listener, size):
                await untold.put(decided)
        await untold.join()
        telling.cancel()
    await letters.settled()


class _Letters:
    """What waits for the courier before it is acknowledged."""

    def __init__(self, subscription: Subscription, courier: Courier | None) -> None:
        self._subscription = subscription
        self._courier = courier
        self._held = 0
        self._waits: set[asyncio.Task[None]] = set()

    def post(self, letters: Sequence[Letter]) -> set[int]:
        """Hand letters to the courier; return the ids of the deliveries that are acknowledged after them."""
        if not letters:
            return set()
        assert self._courier is not None, "a listener with letters has a courier"
        posted = self._courier.post([letter.message for letter in letters])
        deliveries = {id(letter.delivery): letter.delivery for letter in letters}
        if self._held + len(deliveries) > _HELD_MAX:
            return set()
        self._held += len(deliveries)
        wait = asyncio.create_task(self._acknowledge(list(deliveries.values()), posted), name="letters")
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)
        return set(deliveries)

    async def settled(self) -> None:
        """Return once nothing is held any more; each wait is bounded."""
        if self._waits:
            await asyncio.wait(self._waits)

    async def _acknowledge(self, deliveries: list[Delivery], posted: list[asyncio.Future[bool]]) -> None:
        await asyncio.wait(posted, timeout=_LETTERS_SECONDS)
        self._held -= len(deliveries)
        _settle(self._subscription, deliveries)


def _settle(subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
    """Acknowledge; a message too large to be taken in goes to the dead letters: the broker alone has it."""
    subscription.ack([each for each in deliveries if each.kept])
    too_large = [each for each in deliveries if not each.kept]
    if too_large:
        subscription.reject(too_large, requeue=False)


async def decisions_over(
    aside: list[Delivery], fresh: Sequence[Delivery], listener: Listener[Decision], size: BatchSize
) -> AsyncIterator[tuple[Sequence[Delivery], Decision]]:
    """Yield which of them were decided about and how, in order, until all are or wait in `aside`.

    What waits there is part of every statement: nothing may pass it that it is to come before.
    """
    undecided, lone_timeouts = list(fresh), 0
    while True:
        part = undecided[: size.now]
        try:
            decision = await _until_available(listener, [*aside, *part])
            size.grow()
        except StatementTimeout as error:
            logger.warning("decision_divided", extra={"messages": len(part), "reason": str(error)})
            size.shrink(len(part))
            lone_timeouts += len(part) <= 1
            if lone_timeouts < LONE_TIMEOUTS_MAX:
                continue
            if not part:
                return
            reason = f"{error}, {lone_timeouts} times and with nothing beside it; send it again later"
            yield part, listener.put_aside(part[0], reason)
            undecided, lone_timeouts = undecided[1:], 0
            continue
        lone_timeouts = 0
        not_decided = {*decision.left, *decision.aside}
        decided = [each for each in (*aside, *part) if each not in not_decided]
        aside[:] = decision.aside
        yield decided, decision
        undecided = [*decision.left, *undecided[len(part) :]]
        if not undecided:
            return


def check_kept(delivery: Delivery) -> None:
    """Raise Refusal for a message whose size alone was too large to take it in."""
    if not delivery.kept:
        raise Refusal(
            Code.TOO_LARGE, f"message: {delivery.size_bytes} bytes; send a reference to the data instead"
        )


async def _until_available(listener: Listener[Decision], deliveries: Sequence[Delivery]) -> Decision:
    """Decide, trying again with backoff until the database answers; raises StatementTimeout.

    What lost its channel meanwhile is left out: the broker delivers it again.
    """
    pause_seconds = _PAUSE_FIRST_SECONDS
    while True:
        try:
            return await listener.decide([delivery for delivery in deliveries if delivery.live])
        except StatementTimeout:
            raise
        except Unavailable as error:
            logger.warning("decision_postponed", extra={"messages": len(deliveries), "reason": str(error)})
        except asyncpg.PostgresError as error:
            # Not the data's fault (that is split off): a schema that is not there yet, a full disk.
            logger.error("decision_failed", extra={"messages": len(deliveries), "reason": str(error)})
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)


async def _next_batch(
    subscription: Subscription, batch_max: int, stop: asyncio.Event, patience_seconds: float | None
) -> list[Delivery]:
    """Return the next deliveries, or none once `stop` is set or patience is over."""
    if stop.is_set():
        return []
    stopping = asyncio.create_task(stop.wait(), name="stop-signal")
    taking = subscription.next_batch(batch_max, bytes_max=BATCH_BYTES_MAX)
    arriving = asyncio.create_task(taking, name="next-batch")
    try:
        await asyncio.wait(
            {stopping, arriving}, timeout=patience_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        return arriving.result() if arriving.done() and not stop.is_set() else []
    finally:
        stopping.cancel()
        arriving.cancel()
