"""Sessions: hello, welcome, what is held; and again after each reconnection."""

from collections.abc import Callable

from tests.unit.worker_core.world import World, grant
from turnstile.common.worker_protocol import Heartbeat, Held
from turnstile.worker.core.session import Received


def test_numbers_are_received_up_to_the_first_gap() -> None:
    received = Received()
    assert [received.add(each) for each in (1, 2, 5, 4, 2, 5)] == [True, True, True, True, False, False]
    assert received.upto == 2
    assert received.has_gap
    assert received.add(3)
    assert received.upto == 5
    assert not received.has_gap


async def test_a_session_begins_with_a_hello_that_says_what_the_worker_is(
    make_world: Callable[..., World],
) -> None:
    world = await make_world(pools=("a", "b"), actions=("x",), concurrency=7).serve()
    (hello,) = world.broker.hellos
    assert (hello.name, hello.pools, hello.actions, hello.concurrency) == ("w", ("a", "b"), ("x",), 7)
    assert (hello.lease_seconds, hello.epoch_seen, hello.is_taking) == (30.0, 0, True)


async def test_a_hello_is_repeated_until_it_is_answered(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.is_welcoming = False
    await world.serve()
    await world.passes(10)
    assert len(world.broker.hellos) > 3
    assert world.broker.heartbeats == []
    world.is_welcoming = True
    await world.passes(4)
    count = len(world.broker.hellos)
    await world.passes(30)
    assert len(world.broker.hellos) == count
    assert world.is_certain()


async def test_a_broker_that_is_out_at_the_start_is_tried_until_it_is_back(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.broker.is_down = True
    await world.serve()
    await world.passes(600)
    world.broker.is_down = False
    await world.passes(1)
    assert world.is_certain()
    assert world.broker.queues[0].number > 100


async def test_after_a_reconnection_a_new_session_says_hello_and_lists_what_it_holds(world: World) -> None:
    await world.offer(1, 2, at_once=1)
    world.broker.queues[-1].close()
    await world.passes(1)
    assert [each.sender.session for each in world.broker.hellos] == [1, 2]
    held = world.bodies(Held)[-1]
    assert held.grants == ((1, grant(1)), (2, grant(2)))
    assert world.is_certain()
    assert not world.runner.of(1).kills
    await world.offer(2, 3, at_once=1)
    await world.end(1)
    await world.end(2)
    assert world.runner.started == [1, 2, 3]


async def test_numbers_of_the_leader_begin_again_with_a_session(world: World) -> None:
    await world.passes(30)
    world.broker.queues[-1].close()
    await world.passes(0.5)
    last: Heartbeat = world.broker.heartbeats[-1]
    assert last.sender.session == 2
    assert last.received < 3


async def test_numbers_of_reports_go_on_over_sessions(world: World) -> None:
    await world.offer(1)
    await world.end(1)
    world.broker.queues[-1].close()
    await world.passes(1)
    await world.offer(2)
    await world.end(2)
    numbers = [each.number for each in world.broker.reports]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
    assert len(world.bodies(Held)) == 2


async def test_a_new_epoch_is_seen_with_any_message(world: World) -> None:
    world.epoch = 7
    await world.offer(1)
    await world.passes(4)
    assert world.broker.heartbeats[-1].epoch_seen == 7
    await world.end(1)
    assert world.broker.reports[-1].epoch_seen == 7
