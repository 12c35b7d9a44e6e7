"""Takes deliveries from one queue in two steps: decide (one commit), then tell (confirmed) and acknowledge.

While one batch is told the next is decided, both in order. A delivery is acknowledged only after its
decision is committed and everything that follows from it is confirmed (P5); whatever fails before that is
delivered again, and deciding it again is harmless. What cannot be used is acknowledged by itself, so that
dead letters that are not taken hold up nothing else (P9). Used by `request_listener` and
`completion_listener`.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TypeVar

import asyncpg

from common.broker.courier import Courier
from common.broker.delivery import Delivery, Outgoing
from common.broker.subscription import Subscription
from common.crash_points import CrashPoint, reached
from common.domain.errors import Unavailable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A reply to a delivery, or the dead letter made of it: a message to an address of strangers."""

    delivery: Delivery
    message: Outgoing


class Decided(Protocol):
    """What a batch of deliveries led to."""

    @property
    def letters(self) -> Sequence[Letter]:
        """Replies and dead letters; a delivery is acknowledged after its own, or when they take too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A decision from which nothing follows."""

    letters: Sequence[Letter] = ()


Decision = TypeVar("Decision", bound=Decided)

_UNTOLD_BATCHES_MAX: Final = 2
_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 5.0
_LETTERS_SECONDS: Final = 2.0
"""How long an acknowledgement waits for a letter; the courier tries on for longer."""
_HELD_MAX: Final = 1000
"""Deliveries whose acknowledgement waits for letters; well below the prefetch, so that others come in."""


class Listener(Protocol[Decision]):
    """What is done with the deliveries of one queue."""

    async def decide(self, deliveries: Sequence[Delivery], /) -> Decision:
        """Decide over a batch, in order, in one commit; raises Unavailable to have it decided again."""

    async def tell(self, decision: Decision, /) -> None:
        """Return once all that follows from the decision is confirmed, but for its letters."""


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
            subscription.ack([each for each in deliveries if id(each) not in held])
            reached(CrashPoint.EXECUTOR_ACKNOWLEDGED)
            untold.task_done()

    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(tell_in_order(), name=f"tell-{subscription.queue}")
        while deliveries := await _next_batch(subscription, batch_max, stop):
            await untold.put((deliveries, await _until_available(listener, deliveries)))
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
        self._subscription.ack(deliveries)


async def _until_available(listener: Listener[Decision], deliveries: Sequence[Delivery]) -> Decision:
    """Decide, trying again with backoff until the database answers.

    What lost its channel meanwhile is left out: the broker delivers it again.
    """
    pause_seconds = _PAUSE_FIRST_SECONDS
    while True:
        try:
            return await listener.decide([delivery for delivery in deliveries if delivery.live])
        except Unavailable as error:
            logger.warning("decision_postponed", extra={"messages": len(deliveries), "reason": str(error)})
        except asyncpg.PostgresError as error:
            # Not the data's fault (that is split off): a schema that is not there yet, a full disk.
            logger.error("decision_failed", extra={"messages": len(deliveries), "reason": str(error)})
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)


async def _next_batch(subscription: Subscription, batch_max: int, stop: asyncio.Event) -> list[Delivery]:
    """Return the next deliveries, or none once `stop` is set."""
    if stop.is_set():
        return []
    stopping = asyncio.create_task(stop.wait(), name="stop-signal")
    arriving = asyncio.create_task(subscription.next_batch(batch_max), name="next-batch")
    try:
        await asyncio.wait({stopping, arriving}, return_when=asyncio.FIRST_COMPLETED)
        return arriving.result() if arriving.done() and not stop.is_set() else []
    finally:
        stopping.cancel()
        arriving.cancel()
