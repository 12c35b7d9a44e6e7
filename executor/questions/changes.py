"""Which queues changed since the last question: so a dashboard reads what changed, not every queue.

In: what each turn decided. Out: pages of names in the order of their last change. Nothing is noted while
there is no asker.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.state import State

FORGOTTEN_SECONDS: Final = 30.0
"""Without a question for so long, the next one begins anew."""
QUEUES_MAX: Final = 200_000
"""Queues that the log may name, also those that are idle by now; above it everybody begins anew."""
_STEP: Final = 1000
"""Queues that are named between two steps."""


class QueueName(NamedTuple):
    """An action and a key; the key "" also stands for what all queues of the action share."""

    action_ref: str
    key: str


class ChangeLog:
    """The changes of one leadership, while it is asked for them. Instants in seconds, of any one clock."""

    def __init__(self, label: str) -> None:
        self._label = label
        """No other leadership has the same: a cursor of that one is unknown here."""
        self._lives = 0
        self._serial = 0
        self._changed: dict[QueueName, int] | None = None
        """Each queue with the number of its last change; None: there is no asker."""
        self._log: list[tuple[int, QueueName]] = []
        """All changes in order, also those that were followed by another one of the same queue."""
        self._counts: dict[QueueName, list[int]] = {}
        """How many were enqueued and ended in each queue since this log began."""
        self._asked_at = 0.0

    def note(self, state: State, out: Decisions, refs: Iterable[str], now: float) -> None:
        """Note what a turn changed; `refs` are the actions that it defined, deleted, or changed a key of."""
        if self._changed is None:
            return
        if now - self._asked_at > FORGOTTEN_SECONDS or len(self._changed) > QUEUES_MAX:
            self._changed, self._log, self._counts = None, [], {}
            return
        self._count(out)
        moved = chain(out.changed, (each.id for each in out.attempts))
        executions = (state.executions.get(execution_id) for execution_id in moved)
        queues = chain(
            (each.queue for each in out.admitted),
            (each.queue for each in out.granted),
            (each.queue for each in out.finished),
            (each.queue for each in executions if each is not None),
        )
        for queue in dict.fromkeys(queues):
            self._mark(QueueName(queue.action.ref, queue.key))
        for ref in refs:
            for name in _queues_of(state, ref):
                self._mark(name)
        if len(self._log) > 2 * len(self._changed) + _STEP:
            self._log = sorted((number, name) for name, number in self._changed.items())

    def _count(self, out: Decisions) -> None:
        moved = chain(((0, each.queue) for each in out.admitted), ((1, each.queue) for each in out.finished))
        for index, queue in moved:
            self._counts.setdefault(QueueName(queue.action.ref, queue.key), [0, 0])[index] += 1

    def counted(self, name: QueueName) -> tuple[int, int]:
        """Return how many executions were admitted to a queue, and ended there, since this log began."""
        enqueued, completed = self._counts.get(name, (0, 0))
        return enqueued, completed

    def _mark(self, name: QueueName) -> None:
        assert self._changed is not None
        self._serial += 1
        self._changed[name] = self._serial
        self._log.append((self._serial, name))

    def begin(self, state: State, now: float) -> Iterator[None]:
        """Note a question. The first one makes every queue a changed one; yields between steps."""
        self._asked_at = now
        if self._changed is not None:
            return
        self._changed, self._log, self._counts = {}, [], {}
        self._lives += 1
        names = [name for ref in state.actions for name in _queues_of(state, ref)]
        for start in range(0, len(names), _STEP):
            for each in names[start : start + _STEP]:
                self._mark(each)
            yield

    def knows(self, cursor: str) -> bool:
        """Return whether a cursor is from this log: a page of an unknown one begins with the first change."""
        return self._since(cursor) is not None

    def page(self, cursor: str, limit: int) -> tuple[list[QueueName], str, bool]:
        """Return what changed since a cursor, at most so many; the next cursor; whether there is more."""
        changed, serial, names = self._changed or {}, self._since(cursor) or 0, list[QueueName]()
        for number, name in islice(self._log, bisect_right(self._log, serial, key=_serial_of), None):
            if changed[name] == number:
                if len(names) == limit:
                    return names, f"{self._label}.{self._lives}-{serial}", True
                names.append(name)
            serial = number
        return names, f"{self._label}.{self._lives}-{serial}", False

    def _since(self, cursor: str) -> int | None:
        label, _, serial = cursor.rpartition("-")
        is_known = self._changed is not None and label == f"{self._label}.{self._lives}"
        return int(serial) if is_known and serial.isdecimal() else None


def _serial_of(change: tuple[int, QueueName]) -> int:
    return change[0]


def _queues_of(state: State, ref: str) -> list[QueueName]:
    action = state.actions.get(ref)
    queues: Mapping[str, object] = {} if action is None else action.queues
    return [QueueName(ref, key) for key in dict.fromkeys(("", *queues))]
