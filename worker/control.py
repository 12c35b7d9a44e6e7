"""Consumes cancel messages from the worker's control queue, and probes that they can be delivered.

In: `execution.cancel` messages. Out: the attempts that they name are stopped; and `worker.lease` learns when
the broker last confirmed that a cancel message would be delivered here. While that is so, a worker that is
cut off from the database alone may let its runs go on (P6).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity

from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.topology import QueueType, declare_own_queue, declare_workers, worker_queues
from turnstile.common.domain.errors import Refusal
from turnstile.common.domain.identifiers import Attempt, ExecutionId, WorkerId
from turnstile.common.messages import ExecutionCancel
from turnstile.common.requests import read_json, read_model
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker.attempt import Attempts
from turnstile.worker.lease import Lease, clock
from turnstile.worker.protocol import Offer

logger = logging.getLogger(__name__)
_MOVED: Final = Episodes(logger, "control_queue_moved")
_REFUSED: Final = Episodes(logger, "cancel_refused")

_CANCEL_BYTES_MAX: Final = 16 * 1024
_PREFETCH: Final = 100
_POLL_SECONDS: Final = 1.0
"""Longest sleep: the lease's clock also runs while this process is stopped, the loop's clock does not."""
_PROBES_PER_PROOF: Final = 3


class ControlQueue:
    """The control queue of one worker id; several connections declare it.

    The queue is classic, so one node of the broker holds it, and its name cannot be declared while that node
    is down. The worker then uses the next of the names that cancel messages are addressed to (P7).
    """

    def __init__(self, worker_id: WorkerId, queue_type: QueueType) -> None:
        self._queue_type: QueueType = queue_type
        self._names = deque(worker_queues(worker_id))
        self._on_moved: Callable[[str], None] = lambda _: None

    @property
    def name(self) -> str:
        """The name in use."""
        return self._names[0]

    def on_moved(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with each new name."""
        self._on_moved = callback

    async def declare(self, channel: AbstractChannel) -> None:
        """Declare the queue; if its node is down, switch to the next name and raise the broker's error."""
        # A shared queue may be missing here; the node of the control queue may be up.
        await declare_workers(channel, queue_type=self._queue_type)
        name = self.name
        try:
            await declare_own_queue(channel, name)
        except ChannelNotFoundEntity:
            if name == self.name:
                self._names.rotate(-1)
                _MOVED.failed("queue", queue=self.name)
                self._on_moved(self.name)
            raise


class CancelConsumer:
    """Consumes one worker id's control queue."""

    def __init__(self, consumers: ConsumerConnection, queue: ControlQueue, attempts: Attempts) -> None:
        self._consumers = consumers
        self._attempts = attempts
        self._subscription: Subscription = consumers.subscribe(
            queue.name, prefetch=_PREFETCH, declare=queue.declare
        )
        queue.on_moved(self._move_to)

    async def run(self) -> NoReturn:
        """Stop the attempts that cancel messages name, until cancelled."""
        while True:
            deliveries = await self._subscription.next_batch(_PREFETCH)
            for delivery in deliveries:
                self._cancel(delivery)
            self._subscription.ack(deliveries)

    async def probe(self, lease: Lease) -> NoReturn:
        """While renewals are late, ask the broker whether cancel messages would arrive; until cancelled."""
        pause_seconds = lease.terms.proof_seconds / _PROBES_PER_PROOF
        while True:
            if (spare_seconds := lease.seconds_to_probe()) > 0:
                await asyncio.sleep(min(spare_seconds, _POLL_SECONDS))
                continue
            probed_at = clock()
            if await self._consumers.reaches(self._subscription):
                lease.reached_broker(probed_at)
            await asyncio.sleep(max(0.0, probed_at + pause_seconds - clock()))

    def _move_to(self, queue: str) -> None:
        self._subscription.queue = queue

    def _cancel(self, delivery: Delivery) -> None:
        try:
            cancel = read_model(ExecutionCancel, read_json(delivery.body, bytes_max=_CANCEL_BYTES_MAX))
        except Refusal as refusal:
            _REFUSED.failed("cancels", reason=refusal.message)
            return
        offer = Offer(execution_id=ExecutionId(cancel.execution_id), attempt=Attempt(cancel.attempt))
        self._attempts.cancel(offer, "cancelled on request")
