"""What workers may do, the living and those given up: claim, finish, hand back."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.proof.model.lease_rules import LeaseRules
from tests.proof.model.requests import ends, nth, seldom, some, strayed
from turnstile.common.domain.states import Status
from turnstile.worker.record import Claim, Finished, Offer, Report, Verdict


class WorkerRules(LeaseRules):
    """Two workers, and the ghosts of those before them."""

    @rule(n=nth, off=strayed, which=some, late=seldom)
    @precondition(lambda self: self.has("scheduled"))
    def claim(self, n: int, off: int, which: list[int], late: bool) -> None:
        worker = self.worker(n)
        self._pass_time(worker, late)
        self.claim_as(worker, self.offers("scheduled", which, off))

    @rule(n=nth, off=strayed, which=some, status=ends, retry=st.booleans(), late=seldom)
    @precondition(lambda self: self.has("running"))
    def finish(self, *, n: int, off: int, which: list[int], status: Status, retry: bool, late: bool) -> None:
        worker = self.worker(n)
        self._pass_time(worker, late)
        self.finish_as(worker, self.offers("running", which, off), status, retry)

    @rule(n=nth, which=some, status=ends, retry=st.booleans(), meanwhile=st.integers(0, 3))
    @precondition(lambda self: self.has("scheduled"))
    def work(self, n: int, which: list[int], status: Status, retry: bool, meanwhile: int) -> None:
        """What a worker in good health does, from claim to finish, and what may come between."""
        worker = self.worker(n)
        self.renew(worker)
        offers = self.offers("scheduled", which, 0)
        self.claim_as(worker, offers)
        if meanwhile == 0:
            self.ask_to_stop({o.execution_id for o in offers})
        elif meanwhile == 1:
            self.run_out({o.execution_id for o in offers})
        self.finish_as(worker, offers, status, retry)

    @rule(n=nth, which=some, off=strayed, late=seldom)
    @precondition(lambda self: self.has("running"))
    def hand_back(self, n: int, which: list[int], off: int, late: bool) -> None:
        worker = self.worker(n)
        offers = self.offers("running", which, off)
        if late:
            self.run_out({o.execution_id for o in offers})
            self.expire()
        back = self.do(self.protocol.record(worker).hand_back(offers))
        expected_back = {
            o.execution_id for o in offers if self.model.hand_back(worker, o.execution_id, o.attempt)
        }
        assert back == expected_back
        self.agree()

    def _pass_time(self, worker: str, late: bool) -> None:
        if late:
            self.fall_silent(worker)

    def claim_as(self, worker: str, offers: list[Offer]) -> None:
        said = self.do(self.protocol.record(worker).exchange(offers))
        assert [_verdict(s) for s in said] == [
            self.model.claim(worker, o.execution_id, o.attempt) for o in offers
        ]
        self.agree()

    def finish_as(self, worker: str, offers: list[Offer], status: Status, retry: bool) -> None:
        again = retry and status is Status.FAILED
        reports = [
            Report(
                execution_id=o.execution_id, attempt=o.attempt, status=status,
                result_json="1" if status is Status.COMPLETED else None,
                retry_delay_seconds=60.0 if again else None,
            )
            for o in offers
        ]  # fmt: skip
        said = self.do(self.protocol.record(worker).exchange(reports))
        assert [_verdict(s) for s in said] == [
            self.model.finish(worker, o.execution_id, o.attempt, status.value, again) for o in offers
        ]
        self.agree()


def _verdict(answer: Claim | Verdict | Finished) -> str:
    match answer:
        case Claim():
            return "claimed"
        case Finished():
            return answer.verdict.value
        case _:
            return answer.value
