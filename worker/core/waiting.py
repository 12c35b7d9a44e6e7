"""What was offered and has not started, by queue, and which offer may start next (P1, P2). Pure.

In: offers, how many of a queue may run at once, recalls, ends. Out: the next offer to start. Within a queue
the order is (priority, id); queues take turns, so a full or slow queue delays only itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import Offer

_IDLE_QUEUES_MAX: Final = 10_000
"""Queues without work of which barrier and number of runs at once are remembered."""

_NONE: Final = Grant(0, 0)
_ALL: Final = Grant(2**63, 0)


class Waiting(NamedTuple):
    """An offer that has not started; `expires_at` is an instant of the worker's monotonic clock."""

    queue: str
    offer: Offer
    expires_at: float


@dataclass(slots=True)
class _Queue:
    at_once: int | None = None
    barrier: Grant = _NONE
    """What was granted up to this starts no more: the leader recalled it."""
    returned: Grant = _NONE
    """The last grant that was returned unasked (`close`)."""
    running: int = 0
    line: list[tuple[int, int, Grant]] = field(default_factory=list)
    """A heap by priority and id; some of it may have been removed."""

    @property
    def may_start(self) -> bool:
        return bool(self.line) and (self.at_once is None or self.running < self.at_once)

    @property
    def is_closed(self) -> bool:
        return self.returned > self.barrier

    @property
    def is_idle(self) -> bool:
        return not (self.line or self.running or self.is_closed)


class WaitingList:
    """The offers of one worker that have not started, and how many of each queue run."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._running = 0
        self._waiting: dict[Grant, Waiting] = {}
        self._queues: dict[str, _Queue] = {}
        self._turns: dict[str, None] = {}
        """Queues of which one more may start, in the order of their turns."""
        self._idle: dict[str, None] = {}

    def __contains__(self, grant: Grant) -> bool:
        return grant in self._waiting

    def held(self) -> Iterable[tuple[int, Grant]]:
        """Return execution ids and grants of all offers that have not started."""
        return ((each.offer.execution_id, grant) for grant, each in self._waiting.items())

    def put(self, waiting: Waiting) -> bool:
        """Add an offer at its place; False if it is to be returned, and was not added."""
        queue, offer = self._queue(waiting.queue), waiting.offer
        if offer.grant <= queue.barrier or queue.is_closed:
            queue.returned = max(queue.returned, offer.grant)
            self._note(waiting.queue, queue)
            return False
        self._waiting[offer.grant] = waiting
        heappush(queue.line, (offer.priority, offer.execution_id, offer.grant))
        self._note(waiting.queue, queue)
        return True

    def limit(self, name: str, at_once: int | None) -> bool:
        """Set how many of a queue may run at once; return if that is fewer."""
        queue = self._queue(name)
        is_lower = at_once is not None and (queue.at_once is None or at_once < queue.at_once)
        queue.at_once = at_once
        self._note(name, queue)
        return is_lower

    def recall(self, name: str, barrier: Grant) -> list[Offer]:
        """Start nothing of a queue up to the barrier, from now on; remove and return what waits, in order."""
        queue = self._queue(name)
        queue.barrier = max(queue.barrier, barrier)
        return self._remove_upto(queue.barrier, name, queue)

    def close(self, name: str, returned: Grant) -> list[Offer]:
        """Take nothing of a queue until the leader recalls what was returned now, unasked.

        What is offered until then may have been granted before the leader knew, and would start too early.
        What waits goes back too: it is removed and returned, in order.
        """
        queue = self._queue(name)
        queue.returned = max(queue.returned, returned)
        return self._remove_upto(_ALL, name, queue)

    def _remove_upto(self, barrier: Grant, name: str, queue: _Queue) -> list[Offer]:
        line = sorted(entry for entry in queue.line if entry[2] in self._waiting)
        queue.line = [entry for entry in line if entry[2] > barrier]
        self._note(name, queue)
        return [self._waiting.pop(grant).offer for *_, grant in line if grant <= barrier]

    def remove(self, grant: Grant) -> Offer | None:
        """Remove an offer that has not started; None: there is no such one."""
        waiting = self._waiting.pop(grant, None)
        return None if waiting is None else waiting.offer

    def clear(self) -> list[Offer]:
        """Close all queues; remove and return everything."""
        last: dict[str, Grant] = {}
        for grant, waiting in self._waiting.items():
            last[waiting.queue] = max(grant, last.get(waiting.queue, _NONE))
        return [offer for name, grant in last.items() for offer in self.close(name, grant)]

    def has_more(self, name: str) -> bool:
        """Return whether an offer of a queue has not started."""
        return any(entry[2] in self._waiting for entry in self._queues[name].line)

    def next(self) -> Waiting | None:
        """Remove the offer that starts next and count it as running; `ended` ends that."""
        while self._turns and self._running < self._concurrency:
            name = next(iter(self._turns))
            del self._turns[name]
            queue = self._queue(name)
            waiting = None
            while queue.line and waiting is None:
                waiting = self._waiting.pop(heappop(queue.line)[2], None)
            if waiting is not None:
                queue.running += 1
                self._running += 1
            self._note(name, queue)
            if waiting is not None:
                return waiting
        return None

    def ended(self, name: str) -> None:
        """Note that what `next` returned of this queue does not run any more."""
        queue = self._queue(name)
        queue.running -= 1
        self._running -= 1
        self._note(name, queue)

    def _queue(self, name: str) -> _Queue:
        self._idle.pop(name, None)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
        return queue

    def _note(self, name: str, queue: _Queue) -> None:
        """Give the queue a turn if one more may start, and forget the queues that were idle for longest."""
        if not queue.may_start:
            self._turns.pop(name, None)
        else:
            self._turns.setdefault(name)
        if queue.is_idle:
            self._idle[name] = None
            if len(self._idle) > _IDLE_QUEUES_MAX:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._queues[oldest]
