"""Replays gates commit by commit, and checks their capacity, their order and their idle slots.

In: `Move`s in the order of gates and instants, from any source: the tables of a recording (`timelines`), or a
log of every change of the rows. Out: the states of the gates, and a `Broken` for each violation. A queue is a
gate; an execution passes it with the grant of a slot. The moves of one instant are one commit: only the
states between commits count. One gate is in memory at a time.

More than the limit may be granted if all that is held is at one worker: the rest is a run there.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from turnstile.stress.check.verdict import Rule

NS_PER_SECOND: Final = 1_000_000_000
UNLIMITED: Final = 2**63 - 1
"""Larger than any count."""
ANYWHERE: Final = -1
"""It is not known which worker has it."""
RUN_MAX: Final = 2 * 256
"""Most of a queue beyond its limit: a run, and as many that are more urgent."""


class GateStep(IntEnum):
    """A change of a gate. A source without an order within an instant gives its moves in this order."""

    FREED = 0
    AT_LEAST = 1
    """From here on the limit is at least the value; differs from AT_MOST while a change is under way."""
    AT_MOST = 2
    ARRIVED = 3
    GRANTED = 4


class Move(NamedTuple):
    """One change of one gate."""

    gate: int
    at: int
    """Nanoseconds, on any clock that does not go back."""
    step: int
    value: int
    """The id of the execution, or the limit."""
    worker: int = ANYWHERE
    """To which it is granted."""


class Broken(NamedTuple):
    """A violation at a gate."""

    rule: Rule
    gate: int
    at: int
    what: str
    execution_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleAllowance:
    """How long a slot may be free while an execution waits."""

    seconds: float
    excused: Sequence[tuple[int, int]] = ()
    """Periods that do not count, in the order of their beginnings."""
    exact: bool = False
    """Whether a slot is free as soon as its end shows.

    If not, a slot may seem free until its end is committed, so a grant takes the slot that has been free for
    longest. If so, a grant takes the slot that was freed last: any free slot is one that nothing used.
    """


@dataclass(slots=True)
class Gate:
    """One gate after a commit."""

    number: int
    allowance: IdleAllowance | None
    """None: idle slots are not of interest."""
    at: int = 0
    at_least: int = UNLIMITED
    at_most: int = UNLIMITED
    waiting: set[int] = field(default_factory=set)
    held: dict[int, int] = field(default_factory=dict)
    """Each with its worker."""
    granted: list[int] = field(default_factory=list)
    """What the commit granted, in the order of ids."""
    broken: list[Broken] = field(default_factory=list)
    """What the commit showed to be broken."""
    longest_idle_ns: int = 0
    """So far, without excused periods."""
    _at: Counter[int] = field(default_factory=Counter)
    """How many each worker has."""
    _ids: list[int] = field(default_factory=list)
    _free: deque[tuple[int, int]] = field(default_factory=deque)
    """Free slots: since when, and how many; the oldest first."""
    _waiting_since: int | None = None
    _reported_until: int = -UNLIMITED

    def commit(self, at: int, moves: Iterable[Move]) -> None:
        """Apply the moves of one instant, then check the grants."""
        self.at, self.granted, self.broken = at, [], []
        for _, _, step, value, worker in moves:
            if step == GateStep.GRANTED:
                self.granted.append(value)
                self.held[value] = worker
                self._at[worker] += 1
                self.waiting.discard(value)
            elif step == GateStep.FREED:
                self._at[self.held.pop(value, ANYWHERE)] -= 1
            elif step == GateStep.ARRIVED:
                self.waiting.add(value)
                heapq.heappush(self._ids, value)
            elif step == GateStep.AT_LEAST:
                self.at_least = value
            else:
                self.at_most = value
        if self.granted:
            self.granted.sort()
            self._check_grants()
        if self.allowance is not None:
            self._count_idle(self.allowance)

    def end(self, at: int) -> None:
        """Check the slots that are idle at the end of the history."""
        self.at, self.granted, self.broken = at, [], []
        self._idle_until(at)

    def _check_grants(self) -> None:
        head = self._head()
        held = len(self.held) - len(self.granted)
        for execution_id in self.granted:
            held += 1
            if held > self.at_most and not self._is_in_run(execution_id):
                what = (
                    f"execution {execution_id} was granted a slot: {held} were held,"
                    f" the limit was {self.at_most}"
                )
                self.broken.append(Broken(Rule.LIMIT_HELD, self.number, self.at, what, execution_id))
            if head is not None and head < execution_id:
                what = f"execution {execution_id} was granted a slot while execution {head} waited"
                self.broken.append(Broken(Rule.GRANTED_IN_ORDER, self.number, self.at, what, execution_id))

    def _is_in_run(self, execution_id: int) -> bool:
        """Return whether all that is held is at its worker, which starts no more at once than the limit."""
        worker = self.held[execution_id]
        is_alone = worker != ANYWHERE and self._at[worker] == len(self.held)
        return is_alone and self.at_most > 0 and len(self.held) <= self.at_most + RUN_MAX

    def _head(self) -> int | None:
        while self._ids and self._ids[0] not in self.waiting:
            heapq.heappop(self._ids)
        return self._ids[0] if self._ids else None

    def _count_idle(self, allowance: IdleAllowance) -> None:
        # Without a limit all may start at once, but one commit grants a bounded number: one slot stands for
        # all, and each grant uses it.
        if not allowance.exact or self.at_least == UNLIMITED:
            self._take(len(self.granted), oldest=True)
        free = 1 if self.at_least == UNLIMITED else max(self.at_least - len(self.held), 0)
        change = free - sum(count for _, count in self._free)
        if change > 0:
            self._free.append((self.at, change))
        else:
            self._take(-change, oldest=False)
        if not self.waiting:
            self._idle_until(self.at)
            self._waiting_since = None
            self._free = deque([(self.at, free)]) if free else deque()
        elif self._waiting_since is None:
            self._waiting_since = self.at

    def _take(self, count: int, *, oldest: bool) -> None:
        while count > 0 and self._free:
            since, number = self._free.popleft() if oldest else self._free.pop()
            self._idle(since, self.at)
            if number > count:
                rest = since, number - count
                self._free.appendleft(rest) if oldest else self._free.append(rest)
            count -= number

    def _idle_until(self, at: int) -> None:
        if self._free:
            self._idle(self._free[0][0], at)

    def _idle(self, since: int, until: int) -> None:
        """Check a slot that was free in this period; of two at once, one counts."""
        if self._waiting_since is None or self.allowance is None:
            return
        since = max(since, self._waiting_since)
        allowed_ns = self.allowance.seconds * NS_PER_SECOND
        if until - since <= min(self.longest_idle_ns, allowed_ns):
            return
        idle_ns = longest_outside(since, until, self.allowance.excused)
        self.longest_idle_ns = max(self.longest_idle_ns, idle_ns)
        if idle_ns > allowed_ns and since >= self._reported_until:
            self._reported_until = until
            what = f"a slot was free while an execution waited, for {idle_ns / NS_PER_SECOND:.2f} s"
            self.broken.append(Broken(Rule.NO_IDLE_SLOT, self.number, since, what))


def replayed(moves: Iterable[Move], *, until: int, allowance: IdleAllowance | None = None) -> Iterator[Gate]:
    """Yield each gate after each of its commits and at the end: one object per gate, changed in place."""
    for number, own in groupby(moves, key=itemgetter(0)):
        gate = Gate(number, allowance)
        for at, together in groupby(own, key=itemgetter(1)):
            gate.commit(at, together)
            yield gate
        gate.end(until)
        yield gate


def longest_outside(since: int, until: int, windows: Sequence[tuple[int, int]]) -> int:
    """Return the longest part of a period outside all windows, which are in the order of beginnings."""
    longest, at = 0, since
    for begins, ends in windows:
        longest = max(longest, min(begins, until) - at)
        at = max(at, ends)
    return max(longest, until - at)
