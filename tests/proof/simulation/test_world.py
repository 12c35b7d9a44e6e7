"""The simulated world itself: what its servers, processes and time do, without leader and worker."""

import asyncio
import random
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.proof.simulation import database
from tests.proof.simulation.broker import (
    COMPLETIONS,
    NOTICED_AFTER_SECONDS,
    REQUESTS,
    LeaderBroker,
    Message,
    Rabbit,
    WorkerBroker,
)
from tests.proof.simulation.database import Postgres, SimulatedStore
from tests.proof.simulation.directed import directed_story
from tests.proof.simulation.faults import Fault
from tests.proof.simulation.interference import world_of
from tests.proof.simulation.judge import violations
from tests.proof.simulation.loop import Hang, SimulatedLoop
from tests.proof.simulation.processes import Process, Processes, SimulatedClock, Trap
from tests.proof.simulation.shrink import shortest
from tests.proof.simulation.story import CommandPlan, story_of
from tests.proof.simulation.world import World
from tests.support.sizes import sizes, within
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import ToSession, Welcome
from turnstile.executor.leader.ports import (
    BrokerUnavailable,
    Deposed,
    OutcomeUnknown,
    Publication,
    TurnRefused,
)
from turnstile.executor.leader.records import AdmittedRow, EndedRow, GrantRow, Turn


class Place:
    """A loop, both servers, and processes."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.loop = SimulatedLoop(Processes())
        self.rabbit = Rabbit(self.loop, self.random)
        self.postgres = Postgres(self.loop, self.random)

        self.processes: list[Process] = []

    def process(self, name: str) -> Process:
        self.processes.append(Process(self.loop, self.random, name))
        return self.processes[-1]

    def brokers(self) -> tuple[LeaderBroker, LeaderBroker]:
        """Return the open brokers of two leaders; the first one consumes."""
        opened = LeaderBroker(self.rabbit, self.process("e1")), LeaderBroker(self.rabbit, self.process("e2"))
        for broker, process in zip(opened, self.processes[-2:], strict=True):
            self.run(broker.open(), process=process)
        return opened

    def leads(self, name: str) -> tuple[Process, SimulatedStore, int]:
        """Let a process take over; return it, its store and its epoch."""
        process = self.process(name)
        store = SimulatedStore(self.postgres, process)
        return process, store, self.run(store.take_over(name), process=process)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.bury()
        self.loop.clear()
        self.loop.close()

    def run(self, main: Coroutine[Any, Any, Any], *, process: Process | None = None) -> Any:
        """Run a coroutine to its end, in a process."""
        task = (process or self.process("test")).start(main)
        task.add_done_callback(lambda _: self.loop.stop_world())
        self.loop.run_world()
        return task.result()

    def pass_seconds(self, seconds: float) -> None:
        self.loop.after(seconds, self.loop.stop_world)
        self.loop.run_world()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def message(number: int) -> Message:
    return Message(number, UUID(int=number))


def bodies(broker: LeaderBroker, queue: str = REQUESTS) -> list[Any]:
    """Take what has arrived."""
    return [each.body for each in broker.take(queue, 10_000)]


def admitted(number: int, key: str = "") -> AdmittedRow:
    return AdmittedRow(
        id=number, action_ref="a", key=key, priority=3, status=Status.QUEUED, created_at=1.0, run_at=None,
        expires_at=None, timeout_seconds=None, parameters=b"{}", request_hash=UUID(int=number),
        delivery_key=UUID(int=number),
    )  # fmt: skip


def ended(number: int) -> EndedRow:
    return EndedRow(
        id=number, status=Status.COMPLETED, attempt=0, failures=0, reclaims=0, worker_id=None, queued_at=1.0,
        scheduled_at=None, started_at=None, completed_at=2.0, result=None, error=None, passages=(),
    )  # fmt: skip


# Time and processes.


def test_a_world_in_which_nothing_is_scheduled_hangs(place: Place) -> None:
    with pytest.raises(Hang):
        place.run(asyncio.Event().wait())


def test_a_loop_that_never_waits_hangs(place: Place) -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Hang):
        place.run(main())


def test_a_paused_process_runs_nothing_and_its_clock_goes_on(place: Place) -> None:
    process = place.process("p")
    seen: list[float] = []

    async def main() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(process.monotonic())

    process.start(main())
    place.loop.at(2.5, process.pause)
    place.loop.at(7.5, process.resume)
    place.pass_seconds(9.0)

    assert seen == [1.0, 2.0, 7.5, 8.5]


def test_a_killed_process_does_nothing_in_its_finally(place: Place) -> None:
    process = place.process("p")
    clock, seen = SimulatedClock(process), list[str]()

    async def main() -> None:
        try:
            await clock.sleep(10.0)
        finally:
            await clock.sleep(0.0)
            seen.append("cleaned up")

    process.start(main())
    place.loop.at(1.0, process.kill)
    place.pass_seconds(20.0)

    assert seen == []


@pytest.mark.parametrize(("is_after", "turns"), [(False, 0), (True, 1)])
def test_a_trap_kills_before_or_after_a_call_takes_effect(place: Place, is_after: bool, turns: int) -> None:
    process = place.process("e1")
    store = SimulatedStore(place.postgres, process)
    seen: list[str] = []

    async def main() -> None:
        epoch = await store.take_over("e1")
        process.arm(Trap(calls=0, is_after=is_after, kind="kill", spring=process.kill))
        await store.write(Turn(epoch=epoch, number=1, at=1.0))
        seen.append("answered")

    process.start(main())
    place.pass_seconds(1.0)

    assert (place.postgres.turns, seen) == (turns, [])


# The broker.


def test_unacknowledged_messages_come_back_to_the_front_in_order(place: Place) -> None:
    one, two = place.brokers()
    first, _ = place.processes
    place.rabbit.enqueue(REQUESTS, [message(number) for number in range(5)])
    place.pass_seconds(0.1)
    taken = one.take(REQUESTS, 3)
    one.acknowledge(taken[:1])
    place.pass_seconds(0.1)

    first.kill()
    place.pass_seconds(0.1)
    place.rabbit.enqueue(REQUESTS, [message(9)])
    place.pass_seconds(0.1)
    found = two.take(REQUESTS, 10)

    values: list[Any] = [each.body for each in found]
    assert values == [1, 2, 3, 4, 9]
    assert [each.is_redelivered for each in found] == [True, True, True, True, False]


def test_a_paused_consumer_keeps_its_messages_until_its_heartbeats_are_missed(place: Place) -> None:
    one, two = place.brokers()
    first, _ = place.processes
    first.pause()
    place.rabbit.enqueue(REQUESTS, [message(1)])

    place.pass_seconds(0.8 * NOTICED_AFTER_SECONDS)
    before = bodies(two)
    place.pass_seconds(0.4 * NOTICED_AFTER_SECONDS)

    assert before == []
    assert bodies(two) == [1]
    first.resume()
    place.pass_seconds(0.1)
    assert not one.is_open


@pytest.mark.parametrize(("outcome", "arrived"), [("never", 0), ("late", 2), ("part", 1), ("unconfirmed", 2)])
def test_a_publication_in_doubt_arrives_late_in_part_or_never(
    place: Place, outcome: str, arrived: int
) -> None:
    process = place.process("e1")
    broker = LeaderBroker(place.rabbit, process)
    process.outcomes["publish"] = deque([(outcome, 0.5)])
    publications = [Publication(to=COMPLETIONS, body={"n": number}) for number in range(2)]

    with pytest.raises(BrokerUnavailable):
        place.run(broker.publish(publications), process=process)
    place.pass_seconds(5.0)

    assert len(place.rabbit.queues[COMPLETIONS].messages) == arrived


def test_a_session_queue_vanishes_with_its_connection(place: Place) -> None:
    worker, leader = place.process("w1"), place.process("e1")
    broker = LeaderBroker(place.rabbit, leader)
    queue = place.run(WorkerBroker(place.rabbit, worker).open_session("w1", 1), process=worker)
    publication = Publication(to="session w1 1", body=ToSession(epoch=1, number=1, body=Welcome()))

    assert place.run(broker.publish([publication]), process=leader) == [True]
    assert [each.body for each in place.run(queue.take(10), process=worker)] == [Welcome()]
    place.rabbit.break_connections(worker)
    place.pass_seconds(0.1)
    assert place.run(broker.publish([publication]), process=leader) == [False]
    with pytest.raises(Unavailable):
        place.run(queue.take(10), process=worker)


def test_what_was_sent_into_a_short_partition_arrives_after_it(place: Place) -> None:
    process = place.process("e1")
    broker = LeaderBroker(place.rabbit, process)
    place.run(broker.open(), process=process)
    place.rabbit.partition(process)
    place.rabbit.enqueue(REQUESTS, [message(1)])
    place.pass_seconds(1.0)
    before = bodies(broker)
    place.rabbit.heal(process)
    place.pass_seconds(0.1)

    assert before == []
    assert bodies(broker) == [1]


# The database.


def test_a_turn_of_an_old_leader_writes_nothing(place: Place) -> None:
    first, one, epoch = place.leads("e1")
    *_, later = place.leads("e2")
    assert later > epoch

    with pytest.raises(Deposed):
        place.run(one.write(Turn(epoch=epoch, number=1, at=1.0, admitted=[admitted(1)])), process=first)
    with pytest.raises(Deposed):
        place.run(one.load(epoch), process=first)
    assert not place.postgres.tables.admitted


@pytest.mark.parametrize(
    ("outcome", "seconds", "is_committed"),
    [("running", 0.5, True), ("running", 3.0, False), ("queued", 2.0, False)],
)
def test_a_takeover_waits_a_second_for_a_running_statement_and_refuses_what_arrives_later(
    place: Place, outcome: str, seconds: float, is_committed: bool
) -> None:
    first, one, epoch = place.leads("e1")
    first.outcomes["write"] = deque([(outcome, seconds)])
    turn = Turn(epoch=epoch, number=1, at=1.0, reserved_id=100, admitted=[admitted(1)])
    with pytest.raises(OutcomeUnknown):
        place.run(one.write(turn), process=first)

    place.leads("e2")
    after = set(place.postgres.tables.admitted)
    place.pass_seconds(5.0)

    assert (after == {1}) is is_committed
    assert set(place.postgres.tables.admitted) == after


@pytest.mark.parametrize(
    "fields",
    [
        {"number": 1},
        {"number": 3, "ended": [ended(1), ended(1)]},
        {"number": 3, "ended": [ended(7)]},
        {"number": 3, "admitted": [admitted(1)]},
        {"number": 3, "admitted": [admitted(1000)]},
        {
            "number": 3,
            "granted": [
                GrantRow(epoch=5, counter=1, worker_id="w", granted_at=1.0, execution_ids=(1,), counters=(1,))
            ],
        },
    ],
)
def test_what_a_constraint_forbids_is_refused_and_noted(place: Place, fields: dict[str, Any]) -> None:
    process, store, epoch = place.leads("e1")
    grant = GrantRow(epoch=5, counter=1, worker_id="w", granted_at=1.0, execution_ids=(1,), counters=(1,))
    first = Turn(epoch=epoch, number=1, at=1.0, reserved_id=100, admitted=[admitted(1)], granted=[grant])
    place.run(store.write(first), process=process)
    place.run(store.write(Turn(epoch=epoch, number=2, at=1.0)), process=process)

    with pytest.raises(TurnRefused):
        place.run(store.write(Turn(epoch=epoch, at=1.0, **fields)), process=process)
    assert place.postgres.findings


def test_a_failover_loses_what_the_standby_had_not_received(place: Place) -> None:
    process, store, epoch = place.leads("e1")
    turn = Turn(epoch=epoch, number=1, at=1.0, reserved_id=100, admitted=[admitted(1)])
    place.run(store.write(turn), process=process)
    place.postgres.begin_standby()
    turn = Turn(epoch=epoch, number=2, at=1.0, admitted=[admitted(2)])
    place.run(store.write(turn), process=process)
    place.postgres.fail_over()

    assert set(place.postgres.tables.admitted) == {1}


def test_the_end_of_a_locked_row_delays_only_itself(place: Place) -> None:
    process, store, epoch = place.leads("e1")
    turn = Turn(epoch=epoch, number=1, at=1.0, reserved_id=100, admitted=[admitted(1), admitted(2)])
    place.run(store.write(turn), process=process)
    place.postgres.lock_row(1)
    place.run(store.write(Turn(epoch=epoch, number=2, at=1.0, ended=[ended(1), ended(2)])), process=process)

    assert set(place.postgres.tables.ended) == {2}
    assert [row.id for row in place.run(store.load(epoch), process=process).waiting] == []
    place.postgres.unlock_rows()
    assert set(place.postgres.tables.ended) == {1, 2}


# Whole stories.


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (World(story_of(3, size=0.2)).run() for _ in range(2))

    assert (first.steps, first.ended_at) == (second.steps, second.ended_at)
    assert first.postgres.tables.ended == second.postgres.tables.ended


def test_an_epoch_that_is_not_drawn_is_issued_again_after_a_failover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "EPOCHS", 1)
    found = violations(world_of(directed_story("lost epoch", 0)).run())

    assert any("is issued again" in each for each in found)


def test_an_operator_sends_again_what_a_failover_lost() -> None:
    story = story_of(3, size=0.05)
    lost = Fault(at=1.0, kind="failover", seconds=1.0)
    resumed_meanwhile = CommandPlan(at=0.2, kind="pause", target=0, seconds=1.3)
    story = replace(story, faults=(lost,), commands=(resumed_meanwhile,))

    assert violations(World(story).run()) == []


def test_a_failing_story_gets_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Postgres, row: EndedRow, at: int) -> None:
        self.found("every end is wrong")
        original(self, row, at)

    original = Postgres._end
    monkeypatch.setattr(Postgres, "_end", broken)
    story = story_of(3, size=0.05)

    short, sentences = shortest(story, violations(World(story).run()), seconds=20)

    assert len(short.requests) == 1
    assert not short.faults
    assert sentences


@pytest.mark.timeout(900)
@sizes("seconds", short=15.0, whole=300.0)
def test_stories_break_no_promise(seconds: float) -> None:
    for seed in within(seconds):
        assert violations(World(story_of(seed, size=0.1)).run()) == [], f"seed {seed}"
