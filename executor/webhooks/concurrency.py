"""Decides which receivers are served next, so that receivers that hang delay none that responds (P9). Pure.

In: receivers with due deliveries, and the result of each delivery. Out: how many to claim for each. A
receiver is an origin: scheme, host and port. Its last response decides which share of the permits serves it:

    new      no delivery yet: one at a time; the newest and the oldest first, alternately
    prompt   responded within a second
    slow     responded later
    silent   did not respond: one at a time

A delivery to a new or prompt receiver that hangs for a second moves to the share of the silent, or ends if
that share is used up, so a hanging receiver blocks a permit for a second at most.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

PROMPT_SECONDS: Final = 1.0
"""A response that takes longer is slow."""
PER_ORIGIN_MAX: Final = 8
"""Concurrent deliveries to one receiver, over all executors."""
_REMEMBERED_MAX: Final = 10_000
"""Receivers remembered per class; beyond that the oldest are new again."""


class Responsiveness(StrEnum):
    """How a receiver responded to its last delivery."""

    NEW = "new"
    PROMPT = "prompt"
    SLOW = "slow"
    SILENT = "silent"


_SHARES: Final[Mapping[Responsiveness, float]] = {
    Responsiveness.NEW: 1 / 2,
    Responsiveness.PROMPT: 1 / 4,
    Responsiveness.SLOW: 1 / 8,
    Responsiveness.SILENT: 1 / 8,
}
_PER_RECEIVER_MAX: Final[Mapping[Responsiveness, int]] = {
    Responsiveness.NEW: 1,
    Responsiveness.PROMPT: PER_ORIGIN_MAX,
    Responsiveness.SLOW: PER_ORIGIN_MAX,
    Responsiveness.SILENT: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A receiver with due deliveries."""

    origin: str
    due_at: datetime
    """Since when the oldest of them is due."""
    count: int


@dataclass(slots=True, kw_only=True)
class Permit:
    """Allows one delivery to run."""

    origin: str
    share: Responsiveness


class DeliveryPermits:
    """Hands out the permits of one executor."""

    def __init__(self, total: int) -> None:
        self._free = {responsiveness: max(int(total * share), 1) for responsiveness, share in _SHARES.items()}
        self._known: dict[Responsiveness, dict[str, None]] = {
            responsiveness: {} for responsiveness in Responsiveness
        }
        self._responsiveness: dict[str, Responsiveness] = {}
        self._active: Counter[str] = Counter()

    @property
    def are_full(self) -> bool:
        """Whether no permit is free."""
        return all(free <= 0 for free in self._free.values())

    def responsiveness_of(self, origin: str) -> Responsiveness:
        """Return how a receiver responded to its last delivery."""
        return self._responsiveness.get(origin, Responsiveness.NEW)

    def choose(self, due: Iterable[Due]) -> dict[str, int]:
        """Return how many deliveries to claim for each receiver, as far as permits are free."""
        by_class: dict[Responsiveness, list[Due]] = {responsiveness: [] for responsiveness in Responsiveness}
        for receiver in due:
            by_class[self.responsiveness_of(receiver.origin)].append(receiver)
        chosen: dict[str, int] = {}
        for responsiveness, receivers in by_class.items():
            chosen |= self._chosen(responsiveness, receivers)
        return chosen

    def acquire(self, origin: str) -> Permit:
        """Take a permit for a claimed delivery."""
        permit = Permit(origin=origin, share=self.responsiveness_of(origin))
        # May fall below zero if the class has changed since the choice; the next choice waits for it.
        self._free[permit.share] -= 1
        self._active[origin] += 1
        return permit

    def keep_waiting(self, permit: Permit) -> bool:
        """Note that a delivery has no response after `PROMPT_SECONDS`; False: it has to end."""
        if permit.share in (Responsiveness.SLOW, Responsiveness.SILENT):
            return True
        self._note(permit.origin, Responsiveness.SILENT)
        if self._free[Responsiveness.SILENT] <= 0:
            return False
        self._free[permit.share] += 1
        self._free[Responsiveness.SILENT] -= 1
        permit.share = Responsiveness.SILENT
        return True

    def release(self, permit: Permit, *, seconds: float | None, answered: bool) -> None:
        """Return a permit after a POST of so many seconds, or none; `answered`: with any status."""
        self._free[permit.share] += 1
        self._active[permit.origin] -= 1
        if not self._active[permit.origin]:
            del self._active[permit.origin]
        if seconds is None:
            return
        if seconds < PROMPT_SECONDS:
            # A refused connection too: it was quick.
            self._note(permit.origin, Responsiveness.PROMPT)
        else:
            self._note(permit.origin, Responsiveness.SLOW if answered else Responsiveness.SILENT)

    def _chosen(self, responsiveness: Responsiveness, receivers: Sequence[Due]) -> dict[str, int]:
        free, at_once = self._free[responsiveness], _PER_RECEIVER_MAX[responsiveness]
        ordered = sorted(receivers, key=lambda receiver: receiver.due_at)
        if responsiveness is Responsiveness.NEW:
            ordered = _from_both_ends(ordered)
        counts = {each.origin: self._active[each.origin] for each in ordered}
        chosen: dict[str, int] = {}
        # One delivery of each receiver before a second one of any.
        for rank in range(at_once):
            for receiver in ordered:
                chosen_count = chosen.get(receiver.origin, 0)
                if free <= 0:
                    return chosen
                if counts[receiver.origin] + chosen_count == rank and chosen_count < receiver.count:
                    chosen[receiver.origin] = chosen_count + 1
                    free -= 1
        return chosen

    def _note(self, origin: str, responsiveness: Responsiveness) -> None:
        if (before := self._responsiveness.get(origin)) is not None:
            del self._known[before][origin]
        known = self._known[responsiveness]
        known[origin] = None
        self._responsiveness[origin] = responsiveness
        if len(known) > _REMEMBERED_MAX:
            forgotten = next(iter(known))
            del known[forgotten]
            del self._responsiveness[forgotten]


def _from_both_ends(ordered: Sequence[Due]) -> list[Due]:
    """Return the newest, the oldest, the second newest, ...: so no flood delays a receiver for long."""
    newest_first, half = ordered[::-1], (len(ordered) + 1) // 2
    pairs = zip(newest_first[:half], ordered[:half], strict=True)
    return list({each.origin: each for pair in pairs for each in pair}.values())
