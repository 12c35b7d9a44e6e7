"""The expected behaviour of the queues in plain Python: the oracle for the SQL functions.

One method of the model is one statement. A queue is a set of execution ids; a grant takes the lowest ids
while slots are free.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

QueueKey: TypeAlias = tuple[str, str]
"""An action and a concurrency key."""

Message: TypeAlias = tuple[int, int, str | None]
"""A completion: an execution, an attempt, and the terminal status that it reports, if any."""

TERMINAL: Final = frozenset({"completed", "failed", "timeout", "cancelled", "expired", "abandoned"})
UNSTARTED: Final = frozenset({"queued", "delayed", "scheduled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Equal requests with the same key are copies."""

    queue_key: QueueKey
    content: int = 0
    delayed: bool = False
    has_deadline: bool = False
    key: str | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """One execution."""

    request: Request
    status: str
    attempt: int = 0
    failures: int = 0
    reclaims: int = 0
    worker: str | None = None
    cancel_requested: bool = False
    cancels_sent: int = 0
    """Number of cancel messages that the watchdog has sent for this attempt."""
    overdue: bool = False
    """Whether its time to live is over."""


@dataclass(slots=True, kw_only=True)
class Queue:
    """The waiting executions and the held slots of one queue."""

    limit: int | None
    paused: bool
    bound: int | None
    waiting: set[int] = field(default_factory=set)
    slots: dict[int, bool] = field(default_factory=dict)
    """Whether the attempt that holds the slot has ended."""
    enqueued: int = 0
    completed: int = 0

    @property
    def free(self) -> float:
        """How many executions may start now."""
        if self.paused:
            return 0
        return float("inf") if self.limit is None else max(0, self.limit - len(self.slots))


@dataclass(slots=True)
class Model:
    """All queues, and the effects of workers, cancel requests and time on them."""

    actions: dict[str, tuple[int | None, bool, int | None]] = field(default_factory=dict)
    queues: dict[QueueKey, Queue] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    delayed: dict[int, bool] = field(default_factory=dict)
    """Whether it is due."""
    deadlines: set[int] = field(default_factory=set)
    unpublished: set[int] = field(default_factory=set)
    workers: list[str] = field(default_factory=list)
    """All workers that ever registered, the latest one last."""
    live_workers: set[str] = field(default_factory=set)
    lost_workers: set[str] = field(default_factory=set)
    attempts: int = 0
    """Number of rows in the history of attempts."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Totals of deleted queues, by action."""

    def put_action(self, ref: str, limit: int | None, paused: bool, bound: int | None) -> list[int]:
        self.actions[ref] = (limit, paused, bound)
        keys = [key for key in self.queues if key[0] == ref]
        for key in keys:
            queue = self.queues[key]
            queue.limit, queue.paused, queue.bound = limit, paused, bound
        return self.grant(keys)

    def grant(self, keys: Iterable[QueueKey]) -> list[int]:
        granted = []
        for queue in (self.queues[key] for key in set(keys) & self.queues.keys()):
            while queue.waiting and queue.free:
                head = min(queue.waiting)
                queue.waiting.remove(head)
                queue.slots[head] = False
                run = self.runs[head]
                run.status, run.attempt, run.worker = "scheduled", run.attempt + 1, None
                run.cancels_sent = 0
                granted.append(head)
        return sorted(granted)

    def admit(self, batch: Sequence[Request], ids: Sequence[int | None]) -> tuple[list[str], list[int]]:
        """Return the outcome of each request, and the granted ids. `ids` are those of new executions."""
        free = {}
        for request in batch:
            if request.queue_key not in self.queues:
                limit, paused, bound = self.actions[request.queue_key[0]]
                self.queues[request.queue_key] = Queue(limit=limit, paused=paused, bound=bound)
            queue = self.queues[request.queue_key]
            free[request.queue_key] = queue.free + (queue.bound or 0) - len(queue.waiting)
        known = {run.request.key: i for i, run in self.runs.items() if run.request.key is not None}
        verdicts, refused = [], set()
        for request, execution_id in zip(batch, ids, strict=True):
            if request.key is not None and request.key in known:
                same = self.runs[known[request.key]].request == request
                verdicts.append(
                    f"copy of {known[request.key]}" if same else f"conflict with {known[request.key]}"
                )
            elif request.key is not None and request.key in refused:
                verdicts.append("full")
            elif self._is_full(request, free):
                refused.add(request.key)
                verdicts.append("full")
            else:
                assert execution_id is not None, f"{request} was not admitted"
                verdicts.append(f"new {execution_id}")
                self._insert(execution_id, request)
                if request.key is not None:
                    known[request.key] = execution_id
        return verdicts, self.grant(request.queue_key for request in batch)

    def _is_full(self, request: Request, free: dict[QueueKey, float]) -> bool:
        if request.delayed or self.queues[request.queue_key].bound is None:
            return False
        free[request.queue_key] -= 1
        return free[request.queue_key] < 0

    def _insert(self, execution_id: int, request: Request) -> None:
        queue = self.queues[request.queue_key]
        self.runs[execution_id] = Run(request=request, status="delayed" if request.delayed else "queued")
        queue.enqueued += 1
        if request.delayed:
            self.delayed[execution_id] = False
        else:
            queue.waiting.add(execution_id)
        if request.has_deadline:
            self.deadlines.add(execution_id)

    def position(self, i: int) -> int | None:
        waiting = self.queue_of(i).waiting
        return sorted(waiting).index(i) + 1 if i in waiting else None

    def queue_of(self, i: int) -> Queue:
        # All executions of a deleted queue are terminal and settled.
        return self.queues.get(self.runs[i].request.queue_key) or Queue(limit=None, paused=False, bound=None)

    def delete_idle_queues(self) -> int:
        idle = [key for key, q in self.queues.items() if key[1] and q.enqueued == q.completed]
        for key in idle:
            queue = self.queues.pop(key)
            self.deleted[key[0]] = self.deleted.get(key[0], 0) + queue.completed
        return len(idle)

    def slots(self) -> dict[int, bool]:
        return {i: ended for queue in self.queues.values() for i, ended in queue.slots.items()}

    def grantable(self) -> set[QueueKey]:
        return {key for key, queue in self.queues.items() if queue.waiting and queue.free}

    def enqueue(self, i: int) -> None:
        self.runs[i].status, self.runs[i].worker = "queued", None
        self.queue_of(i).waiting.add(i)

    def claim(self, worker: str, i: int, attempt: int) -> str:
        run = self.runs.get(i)
        if worker not in self.live_workers:
            return "lease_over"
        if run is None or (run.attempt < attempt and run.status not in TERMINAL):
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
        if retry and not run.cancel_requested and not run.overdue:
            run.status, self.delayed[i] = "delayed", False
        else:
            run.status = status

    def settle(self, messages: Sequence[Message]) -> tuple[int, set[int], set[int], list[int]]:
        """Return the number of settled executions, the early ones, the unknown ones, and the granted ids."""
        known = [message for message in messages if message[0] in self.runs]
        ended_waiting, settled = set(self.unpublished), set()
        for i, attempt, end in known:
            queue, run = self.queue_of(i), self.runs[i]
            if attempt != run.attempt:
                continue
            if queue.slots.get(i):
                del queue.slots[i]
                settled.add(i)
                queue.completed += run.status in TERMINAL and i not in ended_waiting
            if i in self.unpublished and end == run.status:
                self.unpublished.remove(i)
                settled.add(i)
                queue.completed += 1
        early = {
            i for i, n, _ in known
            if (n > self.runs[i].attempt and self.runs[i].status not in TERMINAL)
            or (n == self.runs[i].attempt and i in self.queue_of(i).slots)
        }  # fmt: skip
        unknown = {i for i, *_ in messages if i not in self.runs}
        return len(settled), early, unknown, self.grant(self.runs[i].request.queue_key for i, *_ in known)

    def cancel(self, i: int) -> str:
        """Return the status that the statement returns."""
        run = self.runs[i]
        if run.status == "running":
            run.cancel_requested = True
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
        if run.status == "scheduled":
            queue.slots[i] = True
        else:
            self.unpublished.add(i)
        run.status = status

    def wake_due(self) -> tuple[list[int], list[int]]:
        """Return the enqueued and the granted ids."""
        woken = sorted(i for i, is_due in self.delayed.items() if is_due and i not in self.queue_of(i).slots)
        for i in woken:
            del self.delayed[i]
            self.enqueue(i)
        return woken, self.grant(self.runs[i].request.queue_key for i in woken)

    def hand_back(self, worker: str, i: int, attempt: int) -> bool:
        run = self.runs.get(i)
        if run is None or (run.status, run.attempt, run.worker) != ("running", attempt, worker):
            return False
        if run.cancel_requested:
            self._end_here(i, "cancelled")
            return False
        self._requeue(i)
        return True

    def reclaim(self, max_reclaims: int) -> tuple[list[int], dict[int, str], list[int]]:
        """Return the requeued ids, the terminal status of others, and the granted ids."""
        self.lost_workers |= set(self.workers) - self.live_workers
        orphans = [i for i in sorted(self.slots()) if self._runs_under_a_lost_worker(i)]
        keys = {self.runs[i].request.queue_key for i in orphans}
        returned, ended = [], {}
        for i in orphans:
            run = self.runs[i]
            if run.cancel_requested or run.reclaims >= max_reclaims:
                ended[i] = "cancelled" if run.cancel_requested else "abandoned"
                self._end_here(i, ended[i])
            else:
                run.reclaims += 1
                self._requeue(i)
                returned.append(i)
        return returned, ended, self.grant(keys)

    def stop_overdue(self, overdue: set[int], cancels_max: int) -> tuple[list[int], list[int]]:
        """Return the executions that need a cancel message, and those that end here."""
        late = sorted(
            i for i in overdue if self.runs[i].status == "running" and self.runs[i].cancel_requested
        )
        to_cancel = [i for i in late if self.runs[i].cancels_sent < cancels_max]
        ended = [i for i in late if i not in to_cancel]
        for i in to_cancel:
            self.runs[i].cancels_sent += 1
        for i in ended:
            self._end_here(i, "cancelled")
        return to_cancel, ended

    def _runs_under_a_lost_worker(self, i: int) -> bool:
        return self.runs[i].status == "running" and self.runs[i].worker in self.lost_workers

    def _end_here(self, i: int, status: str) -> None:
        self.attempts += 1
        self.runs[i].status = status
        self.queue_of(i).slots[i] = True

    def _requeue(self, i: int) -> None:
        self.attempts += 1
        del self.queue_of(i).slots[i]
        self.enqueue(i)
        if self.runs[i].request.has_deadline:
            self.deadlines.add(i)
