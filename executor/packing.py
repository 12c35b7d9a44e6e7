"""Decides which offers share a message, so that a dense flow needs fewer messages.

In: the live workers of each pool, noted by the watchdog once per tick, and the grants of one batch. Out: the
grants of each message. A worker cannot take a part of a message, so offers share one only where that leaves
the work balanced: in a batch of many grants for one pool, all of whose live workers take that many at once,
and in so many messages that each worker can get two. All other offers are alone in their messages: lone ones,
those of small batches and of limits that are the bound, and repeated ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from turnstile.executor.results import Grant

OFFERS_MAX: Final = 8
"""Offers in one message. Beyond it a message costs little less per offer, and balances worse."""
_BATCH_MIN: Final = 16
"""The smallest number of grants for one pool in one batch from which offers share messages."""
_MESSAGES_PER_WORKER: Final = 2


class Packing:
    """What is known about the workers of each pool."""

    def __init__(self) -> None:
        self._workers: Mapping[str, tuple[int, int]] = {}

    def note_workers(self, workers: Mapping[str, tuple[int, int]]) -> None:
        """Note for each pool the number of its live workers, and of offers that each takes in a message."""
        self._workers = workers

    def offers_max(self, pool: str) -> int:
        """Return the largest number of offers that a message to this pool may carry."""
        _, offers_max = self._workers.get(pool, (0, 1))
        return max(1, min(OFFERS_MAX, offers_max))

    def messages(self, grants: Sequence[Grant]) -> Iterator[Sequence[Grant]]:
        """Yield the grants of each message; those of one pool in their order."""
        if len(grants) < _BATCH_MIN:
            for grant in grants:
                yield (grant,)
            return
        of_pools: dict[str, list[Grant]] = {}
        for grant in grants:
            of_pools.setdefault(grant.pool, []).append(grant)
        for pool, of_pool in of_pools.items():
            count = self._count(pool, len(of_pool))
            for start in range(0, len(of_pool), count):
                yield of_pool[start : start + count]

    def _count(self, pool: str, grants: int) -> int:
        """Return how many offers each message of a batch carries."""
        workers, _ = self._workers.get(pool, (0, 1))
        if grants < _BATCH_MIN or not workers:
            return 1
        return min(self.offers_max(pool), -(-grants // (_MESSAGES_PER_WORKER * workers)))
