"""The log of each line, played again commit by commit: who stood in it, who held its slots, its limit.

In: moves. Out: a `Line` after each transaction that changed it. The numbers of two transactions on one line
never interleave (see `log`), so what one of them did is what stands together. Within one, the order is that
of the server's plan and means nothing.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import TypeAlias

from tests.proof.history.recording import LineMove, Move, QueueMove, SlotMove, Step

LineChange: TypeAlias = QueueMove | SlotMove | LineMove


@dataclass(slots=True, kw_only=True)
class Line:
    """One queue as it stands after a commit."""

    queue_id: int
    at: datetime | None = None
    limit: int | None = None
    paused: bool = False
    waiting: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    granted: list[SlotMove] = field(default_factory=list)
    """The slots that the last transaction gave."""
    _ids: list[int] = field(default_factory=list)

    @property
    def head(self) -> int | None:
        """The smallest id that waits."""
        while self._ids and self._ids[0] not in self.waiting:
            heapq.heappop(self._ids)
        return self._ids[0] if self._ids else None

    @property
    def is_idle(self) -> bool:
        """A free slot stands beside somebody who may have it."""
        return bool(self.waiting) and not self.paused and (self.limit is None or len(self.held) < self.limit)

    def commit(self, changes: Sequence[LineChange]) -> None:
        """Take over what one transaction did."""
        self.at = changes[-1].stamp.at
        self.granted = []
        for change in changes:
            match change:
                case QueueMove():
                    self.limit, self.paused = change.limit, change.paused
                case LineMove(step=Step.INSERT):
                    self.waiting.add(change.execution_id)
                    heapq.heappush(self._ids, change.execution_id)
                case LineMove():
                    self.waiting.discard(change.execution_id)
                case SlotMove(step=Step.INSERT):
                    self.held.add(change.execution_id)
                    self.granted.append(change)
                case SlotMove(step=Step.DELETE):
                    self.held.discard(change.execution_id)
                case SlotMove():
                    pass


def replayed(moves: Sequence[Move]) -> Iterator[Line]:
    """Yield each line after each of its commits, line by line. It is one object per line: look at once."""
    for queue_id, changes in changes_of(moves).items():
        line = Line(queue_id=queue_id)
        for _, made_at_once in groupby(changes, key=lambda change: change.stamp.txid):
            line.commit(list(made_at_once))
            yield line


def changes_of(moves: Sequence[Move]) -> Mapping[int, list[LineChange]]:
    """Return what changed each line; what merely marks a slot changes none."""
    lines: dict[int, list[LineChange]] = defaultdict(list)
    for move in moves:
        match move:
            case SlotMove(step=Step.UPDATE):
                pass
            case QueueMove() | SlotMove() | LineMove():
                lines[move.queue_id].append(move)
            case _:
                pass
    return lines
