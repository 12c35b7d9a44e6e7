"""The end of every story: the faults stop, the watchdog looks, one worker works, and everything drains."""

from typing import Final

from tests.proof.model.executor_rules import ExecutorRules
from tests.proof.model.lines import TERMINAL
from tests.proof.model.requests import BOUNDS
from tests.proof.model.time_rules import TimeRules
from tests.proof.model.worker_rules import WorkerRules
from turnstile.common.domain.states import Status

_ROUNDS_MAX: Final = 60


class Healing(ExecutorRules, WorkerRules, TimeRules):
    """All rules, and the way back to an empty house."""

    def heal(self) -> None:
        """Reach the end of everything, in as many rounds as there can be executions in one line."""
        for ref in BOUNDS:
            self.agree(self.put(ref, 2, False))
        for worker in self.model.workers:
            self.fall_silent(worker)
        self.start_worker()
        for _ in range(_ROUNDS_MAX):
            if self._is_drained():
                return
            self._one_round()
        raise AssertionError(f"not drained: {self.model.runs}")

    def _one_round(self) -> None:
        if self.has("running"):
            self.reclaim()
        self.settle_all()
        self.wake_due([*range(1, 1000)])
        self.expire()
        self.watch()
        worker = self.model.workers[-1]
        self.renew(worker)
        scheduled = [i for i, run in self.model.runs.items() if run.status == "scheduled"]
        offers = [self.offer(i) for i in sorted(scheduled)]
        self.claim_as(worker, offers)
        self.finish_as(worker, offers, Status.COMPLETED, False)
        self.settle_all()

    def _is_drained(self) -> bool:
        ended = all(run.status in TERMINAL for run in self.model.runs.values())
        return ended and not self.model.slots() and not self.model.untold
