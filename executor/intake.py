"""Takes deliveries from one queue in two steps: decide (one commit), then tell (confirmed) and acknowledge.

While one batch is told the next is decided, both in order. A delivery is acknowledged only after its
decision is committed and everything that follows from it is confirmed (P5); whatever fails before that is
delivered again, and deciding it again is harmless. What a listener leaves aside is decided again with every
batch, before what came later, and acknowledged only then. Used by `request_listener` and
`completion_listener`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NoReturn, Protocol, TypeVar

import asyncpg

from common.broker.delivery import Delivery
from common.broker.subscription import Subscription
from common.crash_points import CrashPoint, reached
from common.domain.errors import Unavailable

logger = logging.getLogger(__name__)

Decision = TypeVar("Decision")

_UNTOLD_BATCHES_MAX: Final = 2
_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 5.0
_ASIDE_BATCHES_MAX: Final = 3
"""So many batches are kept aside; while it is that many nothing new is taken: the prefetch holds four."""
_ASIDE_PAUSE_SECONDS: Final = 0.1
"""How soon what was left aside is decided again where nothing new arrives."""


class Listener(Protocol[Decision]):
    """What is done with the deliveries of one queue."""

    async def decide(self, deliveries: Sequence[Delivery], /) -> Decision:
        """Decide over a batch, in order, in one commit; raises Unavailable to have it decided again."""

    def aside(self, decision: Decision, /) -> Sequence[Delivery]:
        """Return what could not be decided yet, in order."""

    async def tell(self, decision: Decision, /) -> None:
        """Return once all that follows from the decision is confirmed."""


async def take_in(
    subscription: Subscription, listener: Listener[Decision], *, batch_max: int, stop: asyncio.Event
) -> None:
    """Decide and tell batch after batch until `stop`, then tell what is decided and return.

    What was delivered and not decided is left: it goes back to the front of the queue when the connection
    closes, before another consumer is let in (P2).
    """
    untold: asyncio.Queue[tuple[Sequence[Delivery], Decision]] = asyncio.Queue(_UNTOLD_BATCHES_MAX)

    async def tell_in_order() -> NoReturn:
        while True:
            deliveries, decision = await untold.get()
            await listener.tell(decision)
            subscription.ack(deliveries)
            reached(CrashPoint.EXECUTOR_ACKNOWLEDGED)
            untold.task_done()

    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(tell_in_order(), name=f"tell-{subscription.queue}")
        aside: Sequence[Delivery] = ()
        while not stop.is_set():
            if len(aside) < batch_max * _ASIDE_BATCHES_MAX:
                patience_seconds = _ASIDE_PAUSE_SECONDS if aside else None
                fresh = await _next_batch(subscription, batch_max, stop, patience_seconds)
            else:
                await asyncio.sleep(_ASIDE_PAUSE_SECONDS)
                fresh = []
            if not (deliveries := [*aside, *fresh]) or stop.is_set():
                continue
            decision = await _until_available(listener, deliveries)
            aside = listener.aside(decision)
            left = {id(delivery) for delivery in aside}
            await untold.put(([d for d in deliveries if id(d) not in left], decision))
        await untold.join()
        telling.cancel()


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


async def _next_batch(
    subscription: Subscription, batch_max: int, stop: asyncio.Event, patience_seconds: float | None
) -> list[Delivery]:
    """Return the next deliveries, or none once `stop` is set or patience is over."""
    if stop.is_set():
        return []
    stopping = asyncio.create_task(stop.wait(), name="stop-signal")
    arriving = asyncio.create_task(subscription.next_batch(batch_max), name="next-batch")
    try:
        await asyncio.wait(
            {stopping, arriving}, timeout=patience_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        return arriving.result() if arriving.done() and not stop.is_set() else []
    finally:
        stopping.cancel()
        arriving.cancel()
