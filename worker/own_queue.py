"""A worker's own queue, over the loss of the node that holds it.

In: channels on which to declare. Out: the name under which words to stop arrive. The queue is classic, so one
node of the broker holds it, and while that node is down nobody may declare the name again. Then another queue
takes its place, under one of the names that words to stop are addressed to: the worker goes on with the nodes
that are left (P7). Next: `worker.cancels` consumes it.
"""

import logging
from collections import deque
from collections.abc import Callable

from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity

from turnstile.common.broker.topology import QueueType, declare_own_queue, declare_workers, worker_queues
from turnstile.common.domain.identifiers import WorkerId

logger = logging.getLogger(__name__)


class OwnQueue:
    """The queue of one worker id; several connections declare it."""

    def __init__(self, worker_id: WorkerId, queue_type: QueueType) -> None:
        self._queue_type: QueueType = queue_type
        self._names = deque(worker_queues(worker_id))
        self._on_moved: Callable[[str], None] = lambda _: None

    @property
    def name(self) -> str:
        """Its name now."""
        return self._names[0]

    def tell_when_moved(self, on_moved: Callable[[str], None]) -> None:
        """Call `on_moved` with each new name."""
        self._on_moved = on_moved

    async def declare(self, channel: AbstractChannel) -> None:
        """Create it; where its node is down, raise what the broker said, and be another queue from now on."""
        # What the workers share may go in the middle of this, which says nothing about this queue's node.
        await declare_workers(channel, queue_type=self._queue_type)
        name = self.name
        try:
            await declare_own_queue(channel, name)
        except ChannelNotFoundEntity:
            if name == self.name:
                self._names.rotate(-1)
                logger.warning("own_queue_moved", extra={"queue": self.name})
                self._on_moved(self.name)
            raise
