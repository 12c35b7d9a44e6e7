"""What each worker has taken from its session, and what it starts of it: P1 and P2 at one worker, exactly.

In: the messages that a worker takes, each start and each end, in true time. Out: findings at once, and counts
of runs. The book follows the protocol by itself, not by the code of the worker: an offer counts if it comes
in the order of its number from the newest leader, until it starts, is recalled, cancelled or given back.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import (
    CancelAttempt,
    Dismissed,
    LeaderBody,
    Offer,
    Offers,
    Recall,
    ToSession,
)

_NONE: Final = Grant(0, 0)
_EXPIRES: Final = 0.9
"""By its own clock a worker may find that a time to live is over when so much of it is."""


class Known(NamedTuple):
    """An offer that counts."""

    queue: str
    offer: Offer
    at: float


@dataclass(slots=True)
class _Queue:
    at_once: int | None = None
    running: int = 0
    barrier: Grant = _NONE
    closed: Grant = _NONE
    """Up to this grant was given back unasked: nothing is taken before a recall of it."""
    line: list[tuple[int, int, Grant]] = field(default_factory=list)
    is_in_run: bool = False


@dataclass(slots=True)
class _Worker:
    """One worker id: what it has."""

    session: int = 0
    epoch: int = 0
    upto: int = 0
    beyond: set[int] = field(default_factory=set)
    queues: dict[str, _Queue] = field(default_factory=dict)
    waiting: dict[Grant, Known] = field(default_factory=dict)
    gone: dict[Grant, str] = field(default_factory=dict)
    """What waits no more, and why."""

    def queue(self, name: str) -> _Queue:
        return self.queues.setdefault(name, _Queue())

    def drop(self, grants: Iterable[Grant], why: str) -> None:
        for grant in list(grants):
            if self.waiting.pop(grant, None) is not None:
                self.gone[grant] = why

    def in_queue(self, name: str, upto: Grant | None = None) -> list[Grant]:
        return [
            grant
            for grant, each in self.waiting.items()
            if each.queue == name and (upto is None or grant <= upto)
        ]


class AtWorkers:
    """The book of all workers."""

    def __init__(self, now: Callable[[], float], found: Callable[[str], None]) -> None:
        self._now = now
        self._found = found
        self._workers: dict[str, _Worker] = {}
        self._home: dict[str, str] = {}
        """The worker that got the last offers of each queue with a limit."""
        self.counts: Counter[str] = Counter()
        """Starts, those from runs, runs, recalls, and moves of queues with a limit to another worker."""
        self.longest_wait: tuple[float, int] = 0.0, 0
        """At a worker before a start or a return, and the execution."""

    def at_once(self, worker_id: str, queue: str) -> int | None:
        """Return how many of a queue a worker may run at once, as far as it knows."""
        return self._workers[worker_id].queue(queue).at_once

    def takes(self, worker_id: str, session: int, messages: Iterable[ToSession]) -> None:
        """A worker has taken messages from the queue of a session."""
        worker = self._workers.setdefault(worker_id, _Worker())
        if session != worker.session:
            worker.session, worker.upto, worker.beyond = session, 0, set()
        for message in messages:
            if message.epoch < worker.epoch:
                continue
            if message.epoch > worker.epoch:
                worker.epoch, worker.upto, worker.beyond = message.epoch, 0, set()
            number = message.number
            is_behind_a_gap = number > worker.upto + 1
            if isinstance(message.body, Offers) and is_behind_a_gap:
                continue
            if number <= worker.upto or number in worker.beyond:
                if not isinstance(message.body, Offers):
                    self._applies(worker, message.body)
                continue
            worker.beyond.add(number)
            while worker.upto + 1 in worker.beyond:
                worker.upto += 1
                worker.beyond.remove(worker.upto)
            if isinstance(message.body, Offers):
                self._offers(worker_id, worker, message.body)
            else:
                self._applies(worker, message.body)

    def _offers(self, worker_id: str, worker: _Worker, body: Offers) -> None:
        queue = worker.queue(body.queue)
        queue.at_once = body.at_once
        if body.offers and body.at_once is not None:
            before = self._home.get(body.queue)
            self.counts["moves"] += before not in (None, worker_id)
            self._home[body.queue] = worker_id
        for offer in body.offers:
            grant = offer.grant
            if grant in worker.waiting or grant in worker.gone:
                continue
            if grant <= queue.barrier or queue.closed > queue.barrier:
                queue.closed = max(queue.closed, grant)
                worker.gone[grant] = "was recalled"
                continue
            worker.waiting[grant] = Known(body.queue, offer, self._now())
            heappush(queue.line, (offer.priority, offer.execution_id, grant))

    def _applies(self, worker: _Worker, body: LeaderBody) -> None:
        match body:
            case Recall():
                queue = worker.queue(body.queue)
                queue.barrier = max(queue.barrier, body.barrier)
                self.counts["recalls"] += 1
                self._leaves(worker, worker.in_queue(body.queue, queue.barrier), "was recalled")
            case CancelAttempt():
                worker.gone.setdefault(body.grant, "was cancelled")
                worker.drop([body.grant], "was cancelled")
            case Dismissed():
                worker.drop(worker.waiting, "was lost with its worker")
            case _:
                pass

    def starts(self, worker_id: str, offer: Offer) -> Callable[[bool], None]:
        """A worker starts an offer; call the result when it hears of the end: with False, if it never ran."""
        worker = self._workers.get(worker_id, _Worker())
        known = worker.waiting.pop(offer.grant, None)
        named = f"execution {offer.execution_id} as {offer.grant} starts at {worker_id}"
        if known is None:
            why = worker.gone.get(offer.grant, "no message that counts has offered it")
            self._found(f"START_ONCE {named}: {'it ' if offer.grant in worker.gone else ''}{why}")
            return lambda _: None
        worker.gone[offer.grant] = "has started before"
        queue = worker.queue(known.queue)
        self._check_order(worker, queue, offer, named)
        queue.running += 1
        if queue.at_once is not None and queue.running > queue.at_once:
            self._found(f"AT_ONCE {named}: {queue.running} of {known.queue} run, {queue.at_once} may")
        self._count(worker, queue, known)

        def ended(had_started: bool) -> None:
            queue.running -= 1
            if not had_started:
                queue.closed = max(queue.closed, offer.grant)
                self._leaves(worker, worker.in_queue(known.queue), "was given back")

        return ended

    def _check_order(self, worker: _Worker, queue: _Queue, offer: Offer, named: str) -> None:
        while queue.line and (
            queue.line[0][2] not in worker.waiting or self._is_over(worker.waiting[queue.line[0][2]])
        ):
            heappop(queue.line)
        if queue.line and queue.line[0][:2] < (offer.priority, offer.execution_id):
            self._found(f"ORDER {named}, and execution {queue.line[0][1]} waits before it there")

    def _is_over(self, known: Known) -> bool:
        seconds = known.offer.expires_in_seconds
        return seconds is not None and self._now() >= known.at + _EXPIRES * seconds

    def _count(self, worker: _Worker, queue: _Queue, known: Known) -> None:
        is_from_run = known.at < self._now()
        self.counts["starts"] += 1
        self.counts["starts from runs"] += is_from_run
        self.counts["runs"] += is_from_run and not queue.is_in_run
        queue.is_in_run = is_from_run
        self._waited(known)

    def _leaves(self, worker: _Worker, grants: list[Grant], why: str) -> None:
        for grant in grants:
            self._waited(worker.waiting[grant])
        worker.drop(grants, why)

    def _waited(self, known: Known) -> None:
        self.longest_wait = max(self.longest_wait, (self._now() - known.at, known.offer.execution_id))
