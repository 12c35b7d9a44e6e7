"""Decides who is delivered to next, so that receivers that hang hold up none that answers (P9).

In: the receivers to which something is due, and how each delivery went. Out: how many to claim for which. A
receiver is known by its origin: scheme, host and port. What it did last says which share of the places serves
it:

    new      not delivered to yet: one at a time; the newest and the oldest first, in turns
    prompt   answered within a second
    slow     answered later
    silent   did not answer: one at a time

A delivery to a new or prompt one that hangs for a second moves to the share of the silent, or is released
where that is full: so a receiver keeps a place from those that answer for a second at most. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

PROMPT_SECONDS: Final = 1.0
"""An answer that takes longer is slow."""
PER_ORIGIN_MAX: Final = 8
"""Webhooks under way to one receiver, over all executors."""
_REMEMBERED_MAX: Final = 10_000
"""Receivers of each standing; of more the first known are new again."""


class Standing(StrEnum):
    """What a receiver did last."""

    NEW = "new"
    PROMPT = "prompt"
    SLOW = "slow"
    SILENT = "silent"


_SHARES: Final[Mapping[Standing, float]] = {
    Standing.NEW: 1 / 2,
    Standing.PROMPT: 1 / 4,
    Standing.SLOW: 1 / 8,
    Standing.SILENT: 1 / 8,
}
_AT_ONCE: Final[Mapping[Standing, int]] = {
    Standing.NEW: 1,
    Standing.PROMPT: PER_ORIGIN_MAX,
    Standing.SLOW: PER_ORIGIN_MAX,
    Standing.SILENT: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A receiver to which something can be delivered now."""

    origin: str
    due_at: datetime
    """Since when the first of it is due."""
    count: int


@dataclass(slots=True, kw_only=True)
class Place:
    """What a delivery under way holds."""

    origin: str
    share: Standing


class Places:
    """Hands out the places of one executor."""

    def __init__(self, total: int) -> None:
        self._free = {standing: max(int(total * share), 1) for standing, share in _SHARES.items()}
        self._known: dict[Standing, dict[str, None]] = {standing: {} for standing in Standing}
        self._standings: dict[str, Standing] = {}
        self._under_way: Counter[str] = Counter()

    @property
    def are_full(self) -> bool:
        """Whether nothing at all can be taken."""
        return all(free <= 0 for free in self._free.values())

    def standing_of(self, origin: str) -> Standing:
        """Return what a receiver did last."""
        return self._standings.get(origin, Standing.NEW)

    def choose(self, due: Iterable[Due]) -> dict[str, int]:
        """Return how many to claim for each receiver, as far as there are places."""
        by_standing: dict[Standing, list[Due]] = {standing: [] for standing in Standing}
        for receiver in due:
            by_standing[self.standing_of(receiver.origin)].append(receiver)
        chosen: dict[str, int] = {}
        for standing, receivers in by_standing.items():
            chosen |= self._chosen(standing, receivers)
        return chosen

    def take(self, origin: str) -> Place:
        """Take a place for a delivery that was claimed."""
        place = Place(origin=origin, share=self.standing_of(origin))
        # May fall below zero, if the standing has changed since the choice: the next choice waits for it.
        self._free[place.share] -= 1
        self._under_way[origin] += 1
        return place

    def hangs(self, place: Place) -> bool:
        """Note that a delivery has no answer after `PROMPT_SECONDS`; False: it has to give its place back."""
        if place.share in (Standing.SLOW, Standing.SILENT):
            return True
        self._note(place.origin, Standing.SILENT)
        if self._free[Standing.SILENT] <= 0:
            return False
        self._free[place.share] += 1
        self._free[Standing.SILENT] -= 1
        place.share = Standing.SILENT
        return True

    def leave(self, place: Place, *, seconds: float | None, answered: bool) -> None:
        """Give a place back after a POST of so many seconds, or none; `answered`: whatever was said."""
        self._free[place.share] += 1
        self._under_way[place.origin] -= 1
        if not self._under_way[place.origin]:
            del self._under_way[place.origin]
        if seconds is None:
            return
        if seconds < PROMPT_SECONDS:
            # A refused connection as well: who is quick keeps nobody waiting.
            self._note(place.origin, Standing.PROMPT)
        else:
            self._note(place.origin, Standing.SLOW if answered else Standing.SILENT)

    def _chosen(self, standing: Standing, receivers: Sequence[Due]) -> dict[str, int]:
        free, at_once = self._free[standing], _AT_ONCE[standing]
        ordered = sorted(receivers, key=lambda receiver: receiver.due_at)
        if standing is Standing.NEW:
            ordered = _from_both_ends(ordered)
        counts = {each.origin: self._under_way[each.origin] for each in ordered}
        chosen: dict[str, int] = {}
        # The first of each before the second of any.
        for rank in range(at_once):
            for receiver in ordered:
                mine = chosen.get(receiver.origin, 0)
                if free <= 0:
                    return chosen
                if counts[receiver.origin] + mine == rank and mine < receiver.count:
                    chosen[receiver.origin] = mine + 1
                    free -= 1
        return chosen

    def _note(self, origin: str, standing: Standing) -> None:
        if (before := self._standings.get(origin)) is not None:
            del self._known[before][origin]
        known = self._known[standing]
        known[origin] = None
        self._standings[origin] = standing
        if len(known) > _REMEMBERED_MAX:
            forgotten = next(iter(known))
            del known[forgotten]
            del self._standings[forgotten]


def _from_both_ends(ordered: Sequence[Due]) -> list[Due]:
    """Return the newest, the oldest, the second newest, ...: a flood before or behind one leaves it a way."""
    newest_first, half = ordered[::-1], (len(ordered) + 1) // 2
    pairs = zip(newest_first[:half], ordered[:half], strict=True)
    return list({each.origin: each for pair in pairs for each in pair}.values())
