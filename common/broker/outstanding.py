"""Which deliveries of one channel are not settled yet, what they hold, and the fewest frames to settle them.

In: tags as they arrive (ascending) and as they are settled (in any order). Out: one tag up to which all may
be settled at once, and the single tags beyond it. Pure; what keeps `multiple` from ever settling another's
delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_SLACK = 1000
_RECENT = 256
"""How many deliveries the mean size looks back on."""
_GROWTH = 4
"""How many times as many must fit before that is worth a new start."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteBounds:
    """How much the unsettled deliveries of one channel may hold."""

    held: int
    """All of them together, unless there is only one."""
    one: int
    """A single one: of a larger one the body is never kept."""


class Holding:
    """What the unsettled deliveries of one channel hold, and whether more may come.

    The broker bounds what it sends by count alone. So what comes beyond the bound is dropped while it comes,
    with all behind it, and stays unsettled; once what came before it is settled the channel is `spent`, and a
    new one gets the dropped ones again, in their order, with a count that fits their size. Nothing is ever
    left unread: a broker that cannot send gives its consumer up.
    """

    __slots__ = (
        "_bounds",
        "_count",
        "_held",
        "_mean_bytes",
        "_prefetch",
        "_prefetch_max",
        "_sizes",
        "full",
    )

    def __init__(self, bounds: ByteBounds, *, prefetch: int, prefetch_max: int) -> None:
        self._bounds = bounds
        self._prefetch = prefetch
        self._prefetch_max = prefetch_max
        self._sizes: dict[int, int] = {}
        self._held = 0
        self._count = 0
        self._mean_bytes = 0.0
        self.full = False
        """Whether nothing more is kept."""

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return self._held

    @property
    def spent(self) -> bool:
        """Whether all that was kept is settled, and nothing more will be."""
        return self.full and not self._sizes

    def keeps(self, size_bytes: int) -> bool:
        """Decide whether the body of the next delivery is kept."""
        if size_bytes > self._bounds.one:
            return False
        if self._held and self._held + size_bytes > self._bounds.held:
            self.full = True
        return not self.full

    def arrive(self, tag: int, size_bytes: int, *, kept: bool) -> bool:
        """Note a delivery; return whether it is to be handed out."""
        self._count += 1
        self._mean_bytes += (size_bytes - self._mean_bytes) / min(self._count, _RECENT)
        oversized = size_bytes > self._bounds.one
        if not (kept or oversized):
            return False
        self._sizes[tag] = 0 if oversized else size_bytes
        self._held += self._sizes[tag]
        if (
            self._prefetch < self._prefetch_max
            and self._count >= _GROWTH * self._prefetch
            and self.fitting_prefetch >= min(_GROWTH * self._prefetch, self._prefetch_max)
        ):
            self.full = True
        return True

    def settle(self, tags: Iterable[int]) -> None:
        """Note that they are settled."""
        for tag in tags:
            self._held -= self._sizes.pop(tag, 0)

    @property
    def fitting_prefetch(self) -> int:
        """How many deliveries like the latest ones may come at once."""
        fitting = int(self._bounds.held / max(self._mean_bytes, 1.0))
        return max(1, min(fitting, self._prefetch_max))
