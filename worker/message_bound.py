"""How many messages a worker may hold, where messages carry different numbers of offers.

In: the offers of each message, and once per instant how many messages are held and how many slots are free.
Out: the bound on held messages. The broker counts messages and offers need slots, so the bound is lower than
the slots by what messages hold beyond one offer each. It is not computed from that at every change: a change
costs a few exchanges with the broker. It changes only where it proved wrong.
"""

import math
from typing import Final

_OFFERS_MAX: Final = 8
_SHARE_OF_ONE_MESSAGE: Final = 4
_RECENT_MESSAGES: Final = 4


def offers_per_message(concurrency: int) -> int:
    """Return how many offers a worker takes in one message: a quarter of what it runs at once, at most 8."""
    return max(1, min(_OFFERS_MAX, concurrency // _SHARE_OF_ONE_MESSAGE))


class MessageBound:
    """The bound of one subscription. It equals the slots until messages with several offers come."""

    def __init__(self) -> None:
        self._lowered_by = 0
        self._offers_per_message = 1.0
        self._free_before = 0

    @property
    def is_lowered(self) -> bool:
        """Whether it may be lower than the slots."""
        return self._lowered_by > 0

    def of(self, slots: int) -> int:
        """Return how many messages may be held where there are so many slots."""
        return min(slots, max(1, slots - self._lowered_by))

    def note_message(self, offers: int) -> None:
        """Note the number of offers of a message that arrived."""
        self._offers_per_message += (offers - self._offers_per_message) / _RECENT_MESSAGES

    def lower(self, slots: int, *, held: int, free: int) -> None:
        """Fit the bound to the messages that are held, because other offers found no slot."""
        self._lowered_by = max(0, slots - held - int(free / self._offers_per_message))
        self._free_before = 0

    def raise_if_unused(self, slots: int, *, held: int, free: int) -> bool:
        """Raise the bound if it was reached, and slots were free, at this call and at the one before."""
        if not self._lowered_by or held < self.of(slots):
            self._free_before = 0
            return False
        unused, self._free_before = min(free, self._free_before), free
        self._lowered_by = max(0, self._lowered_by - math.ceil(unused / self._offers_per_message))
        return unused > 0
