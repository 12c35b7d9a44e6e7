"""A bound in bytes on what one channel holds unsettled.

In: deliveries as they arrive and as they are settled. Out: bodies kept or dropped, and the prefetch that
fits. Keeps memory independent of what others send (P9).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_RECENT = 256
"""The number of latest deliveries in the mean size."""
_GROWTH = 4
"""A channel is renewed for a larger prefetch only from this factor on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteBounds:
    """How much the unsettled deliveries of one channel may hold."""

    held: int
    """All of them together, unless there is only one."""
    one: int
    """A single one: the body of a larger one is never kept."""


class ByteBudget:
    """Keeps the unsettled deliveries of one channel within a bound in bytes.

    The broker bounds what it sends by count alone. So a delivery beyond the bound is dropped while it is
    read, with all behind it, and stays unsettled. Once everything before it is settled the channel is
    `spent`: a new channel receives the dropped ones again, in order, with a prefetch that fits their size.
    Everything is still read: a broker that cannot send closes the consumer's connection.
    """

    __slots__ = ("_bounds", "_count", "_held", "_mean_bytes", "_prefetch", "_prefetch_max", "_sizes", "full")

    def __init__(self, bounds: ByteBounds, *, prefetch: int, prefetch_max: int) -> None:
        self._bounds = bounds
        self._prefetch = prefetch
        self._prefetch_max = prefetch_max
        self._sizes: dict[int, int] = {}
        self._held = 0
        self._count = 0
        self._mean_bytes = 0.0
        self.full = False
        """Whether no further body is kept."""

    @property
    def spent(self) -> bool:
        """Whether everything kept is settled, and nothing more will be kept."""
        return self.full and not self._sizes

    def keeps(self, size_bytes: int) -> bool:
        """Decide whether the body of the next delivery is kept."""
        if size_bytes > self._bounds.one:
            return False
        if self._held and self._held + size_bytes > self._bounds.held:
            self.full = True
        return not self.full

    def arrive(self, tag: int, size_bytes: int, *, kept: bool) -> bool:
        """Count a delivery; return whether to hand it out."""
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
        """Stop counting these deliveries."""
        for tag in tags:
            self._held -= self._sizes.pop(tag, 0)

    @property
    def fitting_prefetch(self) -> int:
        """How many deliveries of the recent mean size fit at once."""
        fitting = int(self._bounds.held / max(self._mean_bytes, 1.0))
        return max(1, min(fitting, self._prefetch_max))
