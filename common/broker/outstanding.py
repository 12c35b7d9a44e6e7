"""Which deliveries of one channel are not settled yet, and the fewest frames that settle some of them.

In: tags as they arrive (ascending) and as they are settled (in any order). Out: one tag up to which all may
be settled at once, and the single tags beyond it. Pure; what keeps `multiple` from ever settling another's
delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

_SLACK = 1000


class Outstanding:
    """The unsettled tags of one channel, in order of arrival."""

    __slots__ = ("_open", "_order")

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def arrive(self, tag: int) -> None:
        """Note a delivery; tags of a channel only grow."""
        self._open.add(tag)
        self._order.append(tag)

    def settle(self, tags: Iterable[int]) -> tuple[int, list[int]]:
        """Give (the tag up to which everything outstanding is meant, or 0; the single tags beyond it).

        Tags that are not outstanding any more are left out, so settling twice is harmless.
        """
        settled = self._open.intersection(tags)
        self._open -= settled
        upto = 0
        while self._order and self._order[0] not in self._open:
            tag = self._order.popleft()
            if tag in settled:
                upto = tag
                settled.discard(tag)
        # One early delivery that stays open for hours must not keep the tags of all later ones in memory.
        if len(self._order) > 2 * len(self._open) + _SLACK:
            self._order = deque(tag for tag in self._order if tag in self._open)
        return upto, sorted(settled)
