"""The lines in plain Python: who is taken in, who waits where, who is granted.

Next: `model` adds what workers and time do to them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.proof.model.lines import Asked, Line, Queue, Run


@dataclass(slots=True)
class Queues:
    """All queues."""

    actions: dict[str, tuple[int | None, bool, int | None]] = field(default_factory=dict)
    queues: dict[Line, Queue] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    delayed: dict[int, bool] = field(default_factory=dict)
    """Whether it is due."""
    deadlines: set[int] = field(default_factory=set)
    untold: set[int] = field(default_factory=set)
    workers: list[str] = field(default_factory=list)
    """Everyone who ever registered, the latest last."""
    live_workers: set[str] = field(default_factory=set)
    lost_workers: set[str] = field(default_factory=set)
    attempts: int = 0
    """Rows of history."""
    deleted: dict[str, int] = field(default_factory=dict)
    """What deleted queues counted, by action."""

    def put_action(self, ref: str, limit: int | None, paused: bool, bound: int | None) -> list[int]:
        self.actions[ref] = (limit, paused, bound)
        lines = [line for line in self.queues if line[0] == ref]
        for line in lines:
            queue = self.queues[line]
            queue.limit, queue.paused, queue.bound = limit, paused, bound
        return self.grant(lines)

    def grant(self, lines: Iterable[Line]) -> list[int]:
        granted = []
        for queue in (self.queues[line] for line in set(lines) & self.queues.keys()):
            while queue.waiting and queue.room:
                head = min(queue.waiting)
                queue.waiting.remove(head)
                queue.slots[head] = False
                run = self.runs[head]
                run.status, run.attempt, run.worker = "scheduled", run.attempt + 1, None
                run.stops_told = 0
                granted.append(head)
        return sorted(granted)

    def admit(self, batch: Sequence[Asked], ids: Sequence[int | None]) -> tuple[list[str], list[int]]:
        """`ids` are the tickets that newcomers drew. Returns what became of each, and what was granted."""
        room = {}
        for asked in batch:
            if asked.line not in self.queues:
                limit, paused, bound = self.actions[asked.line[0]]
                self.queues[asked.line] = Queue(limit=limit, paused=paused, bound=bound)
            queue = self.queues[asked.line]
            room[asked.line] = queue.room + (queue.bound or 0) - len(queue.waiting)
        known = {run.asked.key: i for i, run in self.runs.items() if run.asked.key is not None}
        verdicts, refused = [], set()
        for asked, ticket in zip(batch, ids, strict=True):
            if asked.key is not None and asked.key in known:
                same = self.runs[known[asked.key]].asked == asked
                verdicts.append(
                    f"copy of {known[asked.key]}" if same else f"conflict with {known[asked.key]}"
                )
            elif asked.key is not None and asked.key in refused:
                verdicts.append("full")
            elif self._is_full(asked, room):
                refused.add(asked.key)
                verdicts.append("full")
            else:
                assert ticket is not None, f"{asked} was not taken"
                verdicts.append(f"new {ticket}")
                self._take(ticket, asked)
                if asked.key is not None:
                    known[asked.key] = ticket
        return verdicts, self.grant(asked.line for asked in batch)

    def _is_full(self, asked: Asked, room: dict[Line, float]) -> bool:
        if asked.delayed or self.queues[asked.line].bound is None:
            return False
        room[asked.line] -= 1
        return room[asked.line] < 0

    def _take(self, ticket: int, asked: Asked) -> None:
        queue = self.queues[asked.line]
        self.runs[ticket] = Run(asked=asked, status="delayed" if asked.delayed else "queued")
        queue.enqueued += 1
        if asked.delayed:
            self.delayed[ticket] = False
        else:
            queue.waiting.add(ticket)
        if asked.mortal:
            self.deadlines.add(ticket)

    def position(self, i: int) -> int | None:
        waiting = self.queue_of(i).waiting
        return sorted(waiting).index(i) + 1 if i in waiting else None

    def queue_of(self, i: int) -> Queue:
        # Of a queue that was deleted all have ended: nothing waits in it, and nothing holds a slot.
        return self.queues.get(self.runs[i].asked.line) or Queue(limit=None, paused=False, bound=None)

    def delete_idle_queues(self) -> int:
        idle = [line for line, q in self.queues.items() if line[1] and q.enqueued == q.completed]
        for line in idle:
            queue = self.queues.pop(line)
            self.deleted[line[0]] = self.deleted.get(line[0], 0) + queue.completed
        return len(idle)

    def slots(self) -> dict[int, bool]:
        return {i: ended for queue in self.queues.values() for i, ended in queue.slots.items()}

    def idle(self) -> set[Line]:
        return {line for line, queue in self.queues.items() if queue.waiting and queue.room}

    def stand_in_line(self, i: int) -> None:
        self.runs[i].status, self.runs[i].worker = "queued", None
        self.queue_of(i).waiting.add(i)
