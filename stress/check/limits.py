"""The limits of all queues over time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from turnstile.stress.check.gates import UNLIMITED, GateStep, Move
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

    def of(self, queue: int) -> tuple[LimitPeriod, ...]:
        """Return the limits of one queue."""
        return self.changed.get(queue // self.keys) or (LimitPeriod(self.at_first, ALWAYS, NEVER),)

    def highest(self, queue: int, first: int, last: int) -> int:
        """Return the highest limit that may have been in force between `first` and `last`."""
        return max(p.limit for p in self.of(queue) if first <= p.until and last >= p.since)

    def moves(self, queue: int) -> Iterator[Move]:
        """Yield the lowest and the highest possible limit of one queue wherever they may change."""
        own = self.of(queue)
        for at in sorted({edge for p in own for edge in (p.since, p.until, p.until + 1) if edge < NEVER}):
            lowest = min((p.limit for p in own if p.since <= at < p.until), default=UNLIMITED)
            yield Move(queue, at, GateStep.AT_LEAST, lowest)
            yield Move(queue, at, GateStep.AT_MOST, self.highest(queue, at, at))

    def first_change(self, queues: Instants) -> Instants:
        """Return when a change of each queue's limit was first requested; NEVER where there was none."""
        every, rows = np.unique(queues, return_inverse=True)
        found = [
            min((p.since for p in self.of(queue) if p.limit != self.at_first), default=NEVER)
            for queue in every.tolist()
        ]
        return np.array(found, np.int64)[rows]


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
