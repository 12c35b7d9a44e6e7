"""What may become of a worker's lease, and what the watchdog does about it."""

from hypothesis.stateful import precondition, rule

from tests.proof.model.agreement import Agreement
from tests.proof.model.requests import RECLAIMS_MAX, nth, some
from turnstile.common.domain.states import Status

_STOPS_ASKED_MAX = 2


class LeaseRules(Agreement):
    """Workers fall silent, come back too late, start again; the watchdog takes their work away."""

    @rule(n=nth)
    def lose_lease(self, n: int) -> None:
        self.fall_silent(self.worker(n))

    @rule(n=nth)
    def renew_lease(self, n: int) -> None:
        self.renew(self.worker(n))

    @precondition(lambda self: len(self.model.workers) < 9)
    @rule()
    def restart(self) -> None:
        self.start_worker()
        self.agree()

    @precondition(lambda self: self.has("running") and not self.model.live_workers >= set(self.model.workers))
    @rule()
    def reclaim(self) -> None:
        reclaimed = self.do(self.protocol.reclaim())
        found = (reclaimed.returned, reclaimed.ended, reclaimed.granted)
        assert found == self.model.reclaim(RECLAIMS_MAX)
        self.do(
            self.protocol.stops_told(*((i, attempt) for i, attempt, _ in self.do(self.protocol.due_stops())))
        )
        # Whoever was given up goes on as a ghost; somebody has to do the work.
        while len(set(self.model.workers[-2:]) - self.model.lost_workers) < 2:
            self.start_worker()
        self.agree(reclaimed.granted)

    @precondition(
        lambda self: any(run.stop_asked and run.status == "running" for run in self.model.runs.values())
    )
    @rule(which=some)
    def enforce_stops(self, which: list[int]) -> None:
        overdue = {self.choose(n, "running") for n in which} & self.model.runs.keys()
        past = "overdue_at = overdue_at - interval '2 h'"
        self.do(self.update(f"UPDATE slot SET {past} WHERE execution_id = ANY ($1)", overdue))
        told, ended = self.do(self.protocol.stop_overdue(3600, asks_max=_STOPS_ASKED_MAX))
        found = ([m.execution_id for m in told], [m.execution_id for m in ended])
        assert found == self.model.stop_overdue(overdue, _STOPS_ASKED_MAX)
        assert all(m.status is Status.CANCELLED for m in ended)
        self.agree()

    def fall_silent(self, worker: str) -> None:
        self.do(self.protocol.lose_lease(worker))
        self.model.live_workers.discard(worker)

    def renew(self, worker: str) -> None:
        alive = worker not in self.model.lost_workers
        assert self.do(self.protocol.renew(worker)) == (alive, False)
        if alive:
            self.model.live_workers.add(worker)
