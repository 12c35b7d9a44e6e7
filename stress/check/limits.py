"""The limits of all queues over time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.check.gates import UNLIMITED
from turnstile.stress.recording import NEVER, Instants, Recording

ALWAYS: Final = -NEVER


class LimitPeriod(NamedTuple):
    """A limit, and the period in which it may have been in force."""

    limit: int
    since: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTimeline:
    """The limits of all queues over time.

    A change takes effect between its request and its answer; in that period both limits may apply.
    """

    at_first: int
    keys: int
    changed: Mapping[int, tuple[LimitPeriod, ...]]
    """By action, where the limit was changed."""

    def highest(self, queues: Instants, first: Instants, last: Instants) -> Instants:
        """Return the highest limit that may have been in force between `first` and `last`."""
        found = np.full(len(queues), self.at_first, np.int64)
        for rows, pieces in self._of_changed(queues):
            possible = [
                np.where((first[rows] <= p.until) & (last[rows] >= p.since), p.limit, ALWAYS) for p in pieces
            ]
            found[rows] = np.maximum.reduce(possible)
        return found

    def lowest(self, queues: Instants, at: Instants) -> Instants:
        """Return the lowest limit that may have been in force from the instant on."""
        found = np.full(len(queues), self.at_first, np.int64)
        for rows, pieces in self._of_changed(queues):
            possible = [
                np.where((at[rows] >= p.since) & (at[rows] < p.until), p.limit, NEVER) for p in pieces
            ]
            found[rows] = np.minimum.reduce(possible)
        return found

    def first_change(self, queues: Instants) -> Instants:
        """Return when a change of each queue's limit was first requested; NEVER where there was none."""
        found = np.full(len(queues), NEVER, np.int64)
        for rows, pieces in self._of_changed(queues):
            found[rows] = min((p.since for p in pieces if p.limit != self.at_first), default=NEVER)
        return found

    def breakpoints(self) -> tuple[Instants, Instants]:
        """Return queues and the instants at which their lowest possible limit may change."""
        pairs = [
            (action * self.keys + key, at)
            for action, pieces in self.changed.items()
            for at in {edge for p in pieces for edge in (p.since, p.until)} - {ALWAYS, NEVER}
            for key in range(self.keys)
        ]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        return table[:, 0].copy(), table[:, 1].copy()

    def _of_changed(self, queues: Instants) -> list[tuple[NDArray[np.int64], tuple[LimitPeriod, ...]]]:
        if not self.changed:
            return []
        actions = queues // self.keys
        return [(np.flatnonzero(actions == action), pieces) for action, pieces in self.changed.items()]


def limit_timeline(recording: Recording) -> LimitTimeline:
    """Return the limits of a scenario over time."""
    at_first = _number(recording.scenario.limit)
    changes = sorted(recording.limit_changes, key=lambda change: change.asked_at)
    changed: dict[int, tuple[LimitPeriod, ...]] = {}
    for action in {change.action for change in changes}:
        own = [change for change in changes if change.action == action]
        limits = [at_first, *(_number(change.limit) for change in own)]
        sinces = [ALWAYS, *(change.asked_at - recording.clock_error_ns for change in own)]
        untils = [*(min(c.answered_at, NEVER - recording.clock_error_ns) for c in own), NEVER]
        untils[:-1] = [until + recording.clock_error_ns for until in untils[:-1]]
        changed[action] = tuple(map(LimitPeriod, limits, sinces, untils))
    return LimitTimeline(at_first=at_first, keys=max(recording.scenario.load.keys, 1), changed=changed)


def _number(limit: int | None) -> int:
    return UNLIMITED if limit is None else limit
