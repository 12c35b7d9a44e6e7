"""Messages of leaders in any order, with losses, copies and faults: what a worker never and always does."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.worker_core.world import FakeQueue, JumpingLoop, World
from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    CancelAttempt,
    LeaderBody,
    Offer,
    Offers,
    Recall,
    ReportBody,
    ToSession,
    Welcome,
)
from turnstile.worker.core.outcomes import Completed, Failed, Failure
from turnstile.worker.core.ports import NotStarted
from turnstile.worker.core.process import Worker
from turnstile.worker.core.waiting import Waiting

CONCURRENCY: Final = 3
QUEUES: Final = st.sampled_from(["q", "r"])
FATES: Final = st.sampled_from(["arrives", "arrives", "arrives", "twice", "late", "lost"])
ENDS: Final = st.sampled_from(
    [
        Completed(result_json="1"),
        Failed(failure=Failure(type="E", message="m")),
        NotStarted(reason="n"),
    ]
)


def is_forgotten(body: AttemptEnded | AttemptReturned) -> bool:
    """Return whether this answers an offer or a cancel of what ended and was committed."""
    return isinstance(body, AttemptReturned) and "is not kept any more" in body.reason


@dataclass(frozen=True, slots=True)
class Given:
    """A grant of the leader to the present worker id."""

    queue: str
    offer: Offer


class WorkerMachine(RuleBasedStateMachine):
    """Plays leaders against one worker process; every check is made when something starts or arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = JumpingLoop()
        asyncio.set_event_loop(None)
        self.world = self.run(self._begin())
        self.given: list[Given] = []
        self.held_back: list[tuple[FakeQueue, ToSession]] = []
        self.sent: list[tuple[FakeQueue, ToSession]] = []
        self.counter = 0
        self.ids = 0
        self.watched: Worker | None = None
        self.picked: list[Grant] = []
        self.taken: set[tuple[str, Grant]] = set()
        """What a worker id accepted."""
        self.read = 0
        self.contents: dict[tuple[str, int], ReportBody] = {}
        self.ended: set[tuple[str, Grant]] = set()
        self.watch()

    async def _begin(self) -> World:
        world = World(concurrency=CONCURRENCY, kept_bytes_max=3000, grace_seconds=2.0)
        return await world.serve()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        self.watch()

    # What is checked while the worker works.

    def watch(self) -> None:
        """Check every start of the present worker id; a leader gives its grants to one worker id."""
        worker = self.world.process.worker
        assert worker is not None
        if worker is self.watched:
            return
        self.watched, self.given, self.held_back, self.sent = worker, [], [], []
        self.epoch = 0
        self.limits: dict[str, int | None] = {}
        self.barriers: dict[str, Grant] = {}
        waiting, worker_id = worker.waiting, worker.session.worker_id
        receive = worker.receiver._apply
        next_one: Callable[[], Waiting | None] = waiting.next
        put: Callable[[Waiting], bool] = waiting.put

        def receives(message: ToSession) -> None:
            self.note(message, worker.session.received.upto)
            receive(message)

        def picks() -> Waiting | None:
            before = list(waiting._waiting.values())
            running = Counter(each.queue for each in worker.attempts._running.values())
            chosen = next_one()
            if chosen is not None:
                self.check_start(worker, chosen, before, running)
            return chosen

        def puts(waiting: Waiting) -> bool:
            is_put = put(waiting)
            if is_put:
                self.taken.add((worker_id, waiting.offer.grant))
            return is_put

        for of, name, call in (
            (waiting, "next", picks),
            (waiting, "put", puts),
            (worker.receiver, "_apply", receives),
        ):
            setattr(of, name, call)

    def note(self, message: ToSession, upto: int) -> None:
        """Note what the newest leader has said of limits and barriers."""
        assert message.epoch >= self.epoch
        self.epoch = message.epoch
        match message.body:
            case Offers(queue=queue, at_once=at_once):
                if message.number == upto + 1:
                    self.limits[queue] = at_once
            case Recall(queue=queue, barrier=barrier):
                self.barriers[queue] = max(barrier, self.barriers.get(queue, barrier))
            case _:
                pass

    def check_start(
        self, worker: Worker, chosen: Waiting, before: list[Waiting], running: Counter[str]
    ) -> None:
        offer, queue = chosen.offer, chosen.queue
        at_once = self.limits[queue]
        assert worker.lease.standing(self.world.clock.monotonic()).value == "certain"
        assert running.total() < CONCURRENCY
        assert at_once is None or running[queue] < at_once
        assert offer.grant > self.barriers.get(queue, Grant(0, 0))
        others = [each.offer for each in before if each.queue == queue]
        assert (offer.priority, offer.execution_id) == min((o.priority, o.execution_id) for o in others)
        assert offer.grant not in self.picked
        self.picked.append(offer.grant)

    @invariant()
    def starts_no_grant_twice_and_in_the_order_of_the_choice(self) -> None:
        started = [run.offer.grant for run in self.world.runner.runs]
        assert len(started) == len(set(started))
        positions = [self.picked.index(each) for each in started]
        assert positions == sorted(positions)

    @invariant()
    def a_grant_has_one_end_or_return(self) -> None:
        reports = self.world.broker.reports
        for report in reports[self.read :]:
            key = (report.sender.worker_id, report.number)
            if key in self.contents:
                assert self.contents[key] == report.body
                continue
            self.contents[key] = report.body
            if isinstance(report.body, AttemptEnded | AttemptReturned) and not is_forgotten(report.body):
                end = (report.sender.worker_id, report.body.grant)
                assert end not in self.ended
                self.ended.add(end)
        self.read = len(reports)

    # What leaders do.

    def send(self, body: LeaderBody, fate: str = "arrives", *, below: int = 0) -> None:
        queue = self.world.broker.queues[-1]
        message = self.world.numbered(body, epoch=self.world.epoch - below)
        self.sent.append((queue, message))
        if fate in ("late", "lost"):
            self.held_back.append((queue, message))
        else:
            queue.put(*[message] * (2 if fate == "twice" else 1))
        self.passes(0.001)

    @rule(
        queue=QUEUES,
        fate=FATES,
        at_once=st.sampled_from([None, 0, 1, 2, 3]),
        priorities=st.lists(st.integers(1, 3), max_size=3),
        ttl=st.sampled_from([None, None, 0.0, 5.0]),
        timeout=st.sampled_from([None, None, 0.02, 4.0]),
    )
    def grants(
        self, *, queue: str, fate: str, at_once: int | None, priorities: list[int], ttl: float | None,
        timeout: float | None,
    ) -> None:  # fmt: skip
        offers = []
        for priority in priorities:
            self.counter += 1
            self.ids += 1
            offers.append(
                Offer(
                    execution_id=self.ids, grant=Grant(self.world.epoch, self.counter), attempt=1,
                    action_ref="a", parameters=b"{}", priority=priority, expires_in_seconds=ttl,
                    timeout_seconds=timeout,
                )
            )  # fmt: skip
        self.given += [Given(queue, each) for each in offers]
        self.send(Offers(queue=queue, at_once=at_once, offers=tuple(offers)), fate)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), fate=FATES, below=st.integers(0, 1))
    def offers_again(self, data: st.DataObject, fate: str, below: int) -> None:
        given = data.draw(st.sampled_from(self.given))
        self.send(Offers(queue=given.queue, at_once=None, offers=(given.offer,)), fate, below=below)

    @precondition(lambda self: self.held_back)
    @rule(data=st.data())
    def sends_what_was_lost(self, data: st.DataObject) -> None:
        queue, message = data.draw(st.sampled_from(self.held_back))
        queue.put(message)
        self.passes(0.001)

    @rule()
    def sends_again_what_is_missing(self) -> None:
        worker = self.world.process.worker
        assert worker is not None
        for queue, message in self.sent:
            is_missing = message.epoch == self.world.epoch and message.number > worker.session.received.upto
            if is_missing and queue is self.world.broker.queues[-1]:
                queue.put(message)
        self.passes(0.001)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), fate=FATES)
    def cancels(self, data: st.DataObject, fate: str) -> None:
        offer = data.draw(st.sampled_from(self.given)).offer
        self.send(CancelAttempt(execution_id=offer.execution_id, grant=offer.grant, reason="r"), fate)

    @rule(queue=QUEUES, fate=FATES, back=st.integers(0, 3))
    def recalls(self, queue: str, fate: str, back: int) -> None:
        self.send(Recall(queue=queue, barrier=Grant(self.world.epoch, max(self.counter - back, 0))), fate)

    @rule(fate=FATES)
    def takes_over(self, fate: str) -> None:
        self.world.epoch += 1
        self.send(Welcome(), fate)

    @rule(is_answering=st.booleans(), is_committing=st.booleans())
    def answers_and_commits(self, is_answering: bool, is_committing: bool) -> None:
        self.world.is_answering, self.world.is_committing = is_answering, is_committing

    # What else happens.

    @precondition(lambda self: self.world.runner.runs)
    @rule(data=st.data(), end=ENDS)
    def a_run_ends(self, data: st.DataObject, end: Any) -> None:
        running = [run for run in self.world.runner.runs if not run.is_over]
        if running:
            data.draw(st.sampled_from(running)).end(end)
            self.passes(0.001)

    @rule(seconds=st.sampled_from([0.06, 1.0, 4.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.passes(seconds)

    @rule(
        what=st.sampled_from(["is_down", "is_silent", "is_losing", "is_probe_returned"]), value=st.booleans()
    )
    def the_broker_changes(self, what: str, value: bool) -> None:
        setattr(self.world.broker, what, value)

    @rule()
    def the_session_breaks(self) -> None:
        self.world.broker.queues[-1].close()
        self.passes(0.5)

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def the_process_is_stopped(self, seconds: float) -> None:
        self.world.clock.stopped_seconds += seconds
        self.passes(0.001)

    def teardown(self) -> None:
        """Heal everything: all is reported and committed, and every accepted grant has its word."""
        world, broker = self.world, self.world.broker
        broker.is_down = broker.is_silent = broker.is_losing = False
        broker.is_probe_returned = world.is_answering = world.is_committing = True
        self.passes(5.0)
        for name in ("q", "r"):
            self.send(Recall(queue=name, barrier=Grant(world.epoch, self.counter)))
        for run in world.runner.runs:
            run.end()
        self.passes(1.0)
        for run in world.runner.runs:
            run.end()
        self.passes(150.0)
        try:
            worker = self.watched
            assert worker is not None
            assert worker is world.process.worker
            assert worker.outbox.empty.is_set(), worker.outbox._kept
            assert worker.attempts.idle.is_set()
            self.a_grant_has_one_end_or_return()
            of_present = {each for each in self.taken if each[0] == worker.session.worker_id}
            assert of_present - self.ended == set()
        finally:
            self.run(world.close())
            self.loop.close()


TestWorkerMachine = WorkerMachine.TestCase
TestWorkerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
