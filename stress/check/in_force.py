"""Which limit was in force when: that of the stage, and what it was changed to.

In: a recording. Out: the largest or the smallest limit that may have been in force. A change acts at some
instant between the asking and the answer; until it is known which, both limits may be meant. Next: `limit`
judges by the largest, `idle` by the smallest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, Instants

UNLIMITED: Final = NEVER
"""More than any count."""
_ALWAYS: Final = -NEVER


class Piece(NamedTuple):
    """A limit, and the instants between which it may have been in force."""

    limit: int
    since: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsInForce:
    """The limits of all queues over time."""

    at_first: int
    keys: int
    changed: Mapping[int, tuple[Piece, ...]]
    """Of each action whose limit was changed."""

    def most(self, queues: Instants, first: Instants, last: Instants) -> Instants:
        """Return the largest limit that may have been in force at any moment from `first` to `last`."""
        found = np.full(len(queues), self.at_first, np.int64)
        for rows, pieces in self._of_changed(queues):
            possible = [
                np.where((first[rows] <= p.until) & (last[rows] >= p.since), p.limit, _ALWAYS) for p in pieces
            ]
            found[rows] = np.maximum.reduce(possible)
        return found

    def least(self, queues: Instants, at: Instants) -> Instants:
        """Return the smallest limit that may have been in force from the instant on."""
        found = np.full(len(queues), self.at_first, np.int64)
        for rows, pieces in self._of_changed(queues):
            possible = [
                np.where((at[rows] >= p.since) & (at[rows] < p.until), p.limit, NEVER) for p in pieces
            ]
            found[rows] = np.minimum.reduce(possible)
        return found

    def first_change(self, queues: Instants) -> Instants:
        """Return when the limit of each queue was first asked to be another; NEVER: it never was."""
        found = np.full(len(queues), NEVER, np.int64)
        for rows, pieces in self._of_changed(queues):
            found[rows] = min((p.since for p in pieces if p.limit != self.at_first), default=NEVER)
        return found

    def breakpoints(self) -> tuple[Instants, Instants]:
        """Return queues, and instants at which their smallest limit may become another."""
        pairs = [
            (action * self.keys + key, at)
            for action, pieces in self.changed.items()
            for at in {edge for p in pieces for edge in (p.since, p.until)} - {_ALWAYS, NEVER}
            for key in range(self.keys)
        ]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        return table[:, 0].copy(), table[:, 1].copy()

    def _of_changed(self, queues: Instants) -> list[tuple[NDArray[np.int64], tuple[Piece, ...]]]:
        if not self.changed:
            return []
        actions = queues // self.keys
        return [(np.flatnonzero(actions == action), pieces) for action, pieces in self.changed.items()]


def limits_in_force(recording: Recording) -> LimitsInForce:
    """Return the limits of a stage over time."""
    at_first = _number(recording.stage.limit)
    changes = sorted(recording.limit_changes, key=lambda change: change.asked_at)
    changed: dict[int, tuple[Piece, ...]] = {}
    for action in {change.action for change in changes}:
        own = [change for change in changes if change.action == action]
        limits = [at_first, *(_number(change.limit) for change in own)]
        sinces = [_ALWAYS, *(change.asked_at - recording.clock_error_ns for change in own)]
        untils = [*(min(c.answered_at, NEVER - recording.clock_error_ns) for c in own), NEVER]
        untils[:-1] = [until + recording.clock_error_ns for until in untils[:-1]]
        changed[action] = tuple(map(Piece, limits, sinces, untils))
    return LimitsInForce(at_first=at_first, keys=max(recording.stage.load.keys, 1), changed=changed)


def _number(limit: int | None) -> int:
    return UNLIMITED if limit is None else limit
