"""Words to stop: taken from this worker's own queue, and proved able to come while the lease is in doubt.

In: `execution.cancel` messages. Out: the attempts that they name are stopped; and for `worker.lease` the
instant of the last question to which the broker answered that such a word would be delivered here. A worker
that is cut off from the database alone may run on for as long as that holds (P6). Next: `worker.attempt`.
"""

import asyncio
import logging
from typing import Final, NoReturn

from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.subscription import Subscription
from turnstile.common.domain.errors import Refusal
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.messages import ExecutionCancel
from turnstile.common.requests import read_json, read_model
from turnstile.worker.attempt import Attempts
from turnstile.worker.clock import clock
from turnstile.worker.lease import Lease
from turnstile.worker.own_queue import OwnQueue
from turnstile.worker.record import Offer

logger = logging.getLogger(__name__)

_CANCEL_BYTES_MAX: Final = 16 * 1024
_PREFETCH: Final = 100
_LOOK_SECONDS: Final = 1.0
"""Longest wait between two looks at the lease's clock, which also runs while this process is stopped."""
_ASKS_PER_PROOF: Final = 3


class Cancels:
    """Consumes one worker id's own queue."""

    def __init__(self, consumers: ConsumerConnection, own_queue: OwnQueue, attempts: Attempts) -> None:
        self._consumers = consumers
        self._attempts = attempts
        self._subscription: Subscription = consumers.subscribe(
            own_queue.name, prefetch=_PREFETCH, declare=own_queue.declare
        )
        own_queue.tell_when_moved(self._move_to)

    async def obey(self) -> NoReturn:
        """Stop what is named, until cancelled."""
        while True:
            deliveries = await self._subscription.next_batch(_PREFETCH)
            for delivery in deliveries:
                self._obey(delivery)
            self._subscription.ack(deliveries)

    async def prove(self, lease: Lease) -> NoReturn:
        """Ask the broker whether words to stop would come, while renewals do not; until cancelled."""
        pause_seconds = lease.terms.proof_seconds / _ASKS_PER_PROOF
        while True:
            if (spare_seconds := lease.seconds_to_doubt()) > 0:
                await asyncio.sleep(min(spare_seconds, _LOOK_SECONDS))
                continue
            asked_at = clock()
            if await self._consumers.reaches(self._subscription):
                lease.reached_broker(asked_at)
            await asyncio.sleep(max(0.0, asked_at + pause_seconds - clock()))

    def _move_to(self, queue: str) -> None:
        self._subscription.queue = queue

    def _obey(self, delivery: Delivery) -> None:
        try:
            cancel = read_model(ExecutionCancel, read_json(delivery.body, bytes_max=_CANCEL_BYTES_MAX))
        except Refusal as refusal:
            logger.warning("cancel_refused", extra={"reason": refusal.message})
            return
        offer = Offer(execution_id=ExecutionId(cancel.execution_id), attempt=Attempt(cancel.attempt))
        self._attempts.ask_to_stop(offer, "it was asked to stop")
