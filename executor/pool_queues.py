"""The queues of the pools: each is declared before the first offer, and one that cannot be holds up no other.

A stranger may have declared the queue of a pool otherwise, and the broker then refuses ours. The offers to
that pool are withheld until the queue can be declared; their rows remain, and the watchdog offers them
again. In: names of pools. Out: which of them can be published to, and for the others why not.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from turnstile.common.broker.connection import BrokerUnavailable, DeclarationRefused
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import QueueType, declare_pool, pool_queue
from turnstile.common.telemetry.episodes import Episodes
from turnstile.executor.metrics import POOL_UNUSABLE

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.2
_TRIES_MAX: Final = 2
"""A declaration that the broker does not answer is tried so often while the connection stands."""
_REFUSAL_STANDS_SECONDS: Final = 1.0


class PoolQueues:
    """What one executor has declared, and what it could not."""

    def __init__(self, publisher: Publisher, queue_type: QueueType) -> None:
        self._publisher = publisher
        self._queue_type: QueueType = queue_type
        self._declared: set[str] = set()
        self._unusable: dict[str, str] = {}
        self._tried_at: dict[str, float] = {}
        self._episodes = Episodes(logger, "pool_unusable")

    @property
    def unusable(self) -> Mapping[str, str]:
        """The pools whose queues cannot be declared, and why."""
        return self._unusable

    async def usable(self, pools: Iterable[str]) -> set[str]:
        """Declare what was not declared yet; return the pools that can be published to."""
        wanted = set(pools)
        for pool in wanted - self._declared:
            await self._declare(pool)
        return wanted & self._declared

    async def declare_again(self) -> None:
        """Declare all of them again: the broker says that a queue is missing."""
        pools, self._declared = self._declared, set()
        await self.usable(pools)

    async def _declare(self, pool: str) -> None:
        loop = asyncio.get_running_loop()
        if pool in self._unusable and loop.time() - self._tried_at[pool] < _REFUSAL_STANDS_SECONDS:
            return
        tries_left = _TRIES_MAX
        while True:
            try:
                await self._publisher.declare(lambda c: declare_pool(c, pool, queue_type=self._queue_type))
            except DeclarationRefused as error:
                self._note_unusable(pool, str(error))
                return
            except BrokerUnavailable as error:
                tries_left -= self._publisher.connected
                if not tries_left:
                    self._note_unusable(pool, str(error))
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._note_usable(pool)
                return

    def _note_unusable(self, pool: str, error: str) -> None:
        queue = pool_queue(pool)
        reason = f"queue {queue!r} cannot be declared: {error}; delete that queue, and it is declared anew"
        self._unusable[pool] = reason
        self._tried_at[pool] = asyncio.get_running_loop().time()
        POOL_UNUSABLE.set(1, pool)
        self._episodes.failed(pool, pool=pool, queue=queue, reason=reason)

    def _note_usable(self, pool: str) -> None:
        self._declared.add(pool)
        if self._unusable.pop(pool, None) is not None:
            POOL_UNUSABLE.set(0, pool)
            self._episodes.works(pool, pool=pool)
