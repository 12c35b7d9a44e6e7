"""What the queues should do, in plain Python: the oracle that the statements are held to.

One call of the model is one statement. It knows nothing of PostgreSQL: a line is a set of tickets, a grant
takes the smallest while there is room.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.proof.model.lines import TERMINAL, UNSTARTED, Run, Told
from tests.proof.model.queues import Queues


@dataclass(slots=True)
class Model(Queues):
    """All queues, and what workers, requests to stop and time do to them."""

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

    def settle(self, messages: Sequence[Told]) -> tuple[int, set[int], set[int], list[int]]:
        """Return how many were settled, the early ones, the unknown ones, and what was granted."""
        known = [told for told in messages if told[0] in self.runs]
        ended_waiting, settled = set(self.untold), set()
        for i, attempt, end in known:
            queue, run = self.queue_of(i), self.runs[i]
            if attempt != run.attempt:
                continue
            if queue.slots.get(i):
                del queue.slots[i]
                settled.add(i)
                queue.completed += run.status in TERMINAL and i not in ended_waiting
            if i in self.untold and end == run.status:
                self.untold.remove(i)
                settled.add(i)
                queue.completed += 1
        early = {
            i for i, n, _ in known
            if (n > self.runs[i].attempt and self.runs[i].status not in TERMINAL)
            or (n == self.runs[i].attempt and i in self.queue_of(i).slots)
        }  # fmt: skip
        unknown = {i for i, *_ in messages if i not in self.runs}
        return len(settled), early, unknown, self.grant(self.runs[i].asked.line for i, *_ in known)

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
        if run.status == "scheduled":
            queue.slots[i] = True
        else:
            self.untold.add(i)
        run.status = status

    def wake_due(self) -> tuple[list[int], list[int]]:
        """Return what took its place in line, and what was granted."""
        woken = sorted(i for i, is_due in self.delayed.items() if is_due and i not in self.queue_of(i).slots)
        for i in woken:
            del self.delayed[i]
            self.stand_in_line(i)
        return woken, self.grant(self.runs[i].asked.line for i in woken)

    def hand_back(self, worker: str, i: int, attempt: int) -> bool:
        run = self.runs.get(i)
        if run is None or (run.status, run.attempt, run.worker) != ("running", attempt, worker):
            return False
        if run.stop_asked:
            self._end_here(i, "cancelled")
            return False
        self._return_to_line(i)
        return True

    def reclaim(self, max_reclaims: int) -> tuple[list[int], dict[int, str], list[int]]:
        """Return what went back, how others ended, and what was granted."""
        self.lost_workers |= set(self.workers) - self.live_workers
        orphans = [i for i in sorted(self.slots()) if self._runs_under_a_lost_worker(i)]
        lines = {self.runs[i].asked.line for i in orphans}
        returned, ended = [], {}
        for i in orphans:
            run = self.runs[i]
            if run.stop_asked or run.reclaims >= max_reclaims:
                ended[i] = "cancelled" if run.stop_asked else "abandoned"
                self._end_here(i, ended[i])
            else:
                run.reclaims += 1
                self._return_to_line(i)
                returned.append(i)
        return returned, ended, self.grant(lines)

    def stop_overdue(self, overdue: set[int], asks_max: int) -> tuple[list[int], list[int]]:
        """Return whose workers are told to stop, and what ends without them."""
        late = sorted(i for i in overdue if self.runs[i].status == "running" and self.runs[i].stop_asked)
        told = [i for i in late if self.runs[i].stops_told < asks_max]
        ended = [i for i in late if i not in told]
        for i in told:
            self.runs[i].stops_told += 1
        for i in ended:
            self._end_here(i, "cancelled")
        return told, ended

    def _runs_under_a_lost_worker(self, i: int) -> bool:
        return self.runs[i].status == "running" and self.runs[i].worker in self.lost_workers

    def _end_here(self, i: int, status: str) -> None:
        self.attempts += 1
        self.runs[i].status = status
        self.queue_of(i).slots[i] = True

    def _return_to_line(self, i: int) -> None:
        self.attempts += 1
        del self.queue_of(i).slots[i]
        self.stand_in_line(i)
        if self.runs[i].asked.mortal:
            self.deadlines.add(i)
