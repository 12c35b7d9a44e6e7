"""Takes deliveries from one queue in two steps: decide (one commit), then tell (confirmed) and acknowledge.

While one batch is told the next is decided, both in order. A delivery is acknowledged only after its
decision is committed and everything that follows from it is confirmed (P5); whatever fails before that is
delivered again, and deciding it again is harmless. Used by `request_listener` and `completion_listener`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn, TypeVar

import asyncpg

from common.broker.delivery import Delivery
from common.broker.subscription import Subscription
from common.domain.errors import Unavailable

logger = logging.getLogger(__name__)

Decision = TypeVar("Decision")

_UNTOLD_BATCHES_MAX: Final = 2
_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 5.0


async def take_in(
    subscription: Subscription,
    *,
    batch_max: int,
    decide: Callable[[Sequence[Delivery]], Awaitable[Decision]],
    tell: Callable[[Decision], Awaitable[None]],
) -> NoReturn:
    """Decide and tell batch after batch until cancelled."""
    untold: asyncio.Queue[tuple[Sequence[Delivery], Decision]] = asyncio.Queue(_UNTOLD_BATCHES_MAX)

    async def tell_in_order() -> NoReturn:
        while True:
            deliveries, decision = await untold.get()
            await tell(decision)
            subscription.ack(deliveries)
            untold.task_done()

    async def decide_in_order() -> NoReturn:
        while True:
            deliveries = await subscription.next_batch(batch_max)
            decision = await until_available(decide, deliveries)
            await untold.put((deliveries, decision))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tell_in_order(), name=f"tell-{subscription.queue}")
        tasks.create_task(decide_in_order(), name=f"decide-{subscription.queue}")
    raise AssertionError("unreachable: both tasks run until cancelled")


async def until_available(
    decide: Callable[[Sequence[Delivery]], Awaitable[Decision]], deliveries: Sequence[Delivery]
) -> Decision:
    """Decide, trying again with backoff until the database answers.

    What lost its channel meanwhile is left out: the broker delivers it again.
    """
    pause_seconds = _PAUSE_FIRST_SECONDS
    while True:
        try:
            return await decide([delivery for delivery in deliveries if delivery.live])
        except Unavailable as error:
            logger.warning("decision_postponed", extra={"messages": len(deliveries), "reason": str(error)})
        except asyncpg.PostgresError as error:
            # Not the data's fault (that is split off): a schema that is not there yet, a full disk.
            logger.error("decision_failed", extra={"messages": len(deliveries), "reason": str(error)})
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)
