"""What the queues should do, in plain Python: the oracle that the statements are held to.

One call of the model is one statement. It knows nothing of PostgreSQL: a line is a set of tickets, a grant
takes the smallest while there is room.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.stateful.lines import TERMINAL, UNSTARTED, Asked, Line, Queue, Run


@dataclass(slots=True)
class Model:
    """All queues."""

    actions: dict[str, tuple[int | None, bool, int | None]] = field(default_factory=dict)
    queues: dict[Line, Queue] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    delayed: dict[int, bool] = field(default_factory=dict)
    """Whether it is due."""
    deadlines: set[int] = field(default_factory=set)
    untold: set[int] = field(default_factory=set)
    live_workers: set[str] = field(default_factory=set)
    attempts: int = 0
    """Rows of history."""

    def put_action(self, ref: str, limit: int | None, paused: bool, bound: int | None) -> list[int]:
        self.actions[ref] = (limit, paused, bound)
        lines = [line for line in self.queues if line[0] == ref]
        for line in lines:
            queue = self.queues[line]
            queue.limit, queue.paused, queue.bound = limit, paused, bound
        return self.grant(lines)

    def grant(self, lines: Iterable[Line]) -> list[int]:
        granted = []
        for queue in (self.queues[line] for line in set(lines)):
            while queue.waiting and queue.room:
                head = min(queue.waiting)
                queue.waiting.remove(head)
                queue.slots[head] = False
                run = self.runs[head]
                run.status, run.attempt, run.worker = "scheduled", run.attempt + 1, None
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

    def claim(self, worker: str, i: int, attempt: int) -> str:
        run = self.runs.get(i)
        if worker not in self.live_workers:
            return "lease_over"
        if run is None or run.attempt < attempt:
            return "unknown"
        if run.status == "scheduled" and run.attempt == attempt and not run.overdue:
            run.status, run.worker = "running", worker
        mine = run.status == "running" and run.attempt == attempt and run.worker == worker
        return "claimed" if mine else "stale"

    def finish(self, worker: str, i: int, attempt: int, status: str, retry: bool) -> str:
        run = self.runs.get(i)
        live = worker in self.live_workers
        if run is not None and (run.attempt, run.worker) == (attempt, worker):
            if run.status == status or (retry and run.status == "delayed"):
                return "already"
            if live and run.status == "running":
                self._end_attempt(i, run, status, retry)
                return "applied"
        return "stale" if live else "lease_over"

    def _end_attempt(self, i: int, run: Run, status: str, retry: bool) -> None:
        run.failures += status == "failed"
        self.queue_of(i).slots[i] = True
        self.attempts += 1
        if retry and not run.stop_asked and not run.overdue:
            run.status, self.delayed[i] = "delayed", False
        else:
            run.status = status

    def settle(self, completions: Sequence[tuple[int, int]]) -> tuple[int, set[int], set[int], list[int]]:
        """Return how many were settled, the early ones, the unknown ones, and what was granted."""
        known = [(i, attempt) for i, attempt in completions if i in self.runs]
        count = 0
        for i, attempt in known:
            queue, run = self.queue_of(i), self.runs[i]
            if queue.slots.get(i) and attempt == run.attempt:
                del queue.slots[i]
                queue.completed += run.status in TERMINAL
                count += 1
            elif i in self.untold:
                self.untold.remove(i)
                queue.completed += 1
                count += 1
        early = {
            i for i, n in known
            if (n > self.runs[i].attempt and self.runs[i].status not in TERMINAL)
            or (n == self.runs[i].attempt and i in self.queue_of(i).slots)
        }  # fmt: skip
        unknown = {i for i, _ in completions} - {i for i, _ in known}
        return count, early, unknown, self.grant(self.runs[i].asked.line for i, _ in known)

    def cancel(self, i: int) -> str:
        """Return the status that is answered."""
        run = self.runs[i]
        if run.status == "running":
            run.stop_asked = True
        elif run.status not in TERMINAL:
            self._end_unstarted(i, "cancelled")
        return run.status

    def expire_due(self) -> set[int]:
        overdue = {i for i in self.deadlines if self.runs[i].overdue}
        self.deadlines -= overdue
        ended = {i for i in overdue if self.runs[i].status in UNSTARTED}
        for i in ended:
            self._end_unstarted(i, "expired")
        return ended

    def _end_unstarted(self, i: int, status: str) -> None:
        queue, run = self.queue_of(i), self.runs[i]
        queue.waiting.discard(i)
        self.delayed.pop(i, None)
        if i in queue.slots:
            queue.slots[i] = True
        else:
            self.untold.add(i)
        run.status = status

    def wake_due(self) -> tuple[list[int], list[int]]:
        """Return what took its place in line, and what was granted."""
        woken = sorted(i for i, is_due in self.delayed.items() if is_due and i not in self.queue_of(i).slots)
        for i in woken:
            del self.delayed[i]
            self._stand_in_line(i)
        return woken, self.grant(self.runs[i].asked.line for i in woken)

    def hand_back(self, worker: str, i: int, attempt: int) -> bool:
        run = self.runs.get(i)
        if run is None or (run.status, run.attempt, run.worker) != ("running", attempt, worker):
            return False
        self.attempts += 1
        if run.stop_asked:
            run.status = "cancelled"
            self.queue_of(i).slots[i] = True
            return False
        del self.queue_of(i).slots[i]
        self._stand_in_line(i)
        if run.asked.mortal:
            self.deadlines.add(i)
        return True

    def _stand_in_line(self, i: int) -> None:
        self.runs[i].status, self.runs[i].worker = "queued", None
        self.queue_of(i).waiting.add(i)

    def queue_of(self, i: int) -> Queue:
        return self.queues[self.runs[i].asked.line]

    def slots(self) -> dict[int, bool]:
        return {i: ended for queue in self.queues.values() for i, ended in queue.slots.items()}

    def idle(self) -> set[Line]:
        return {line for line, queue in self.queues.items() if queue.waiting and queue.room}
