"""What the process around the worker changes: readiness, an operator's drain, gathered reports."""

from collections.abc import Callable

from tests.unit.worker_core.world import World
from turnstile.common.worker_protocol import AttemptEnded, Heard, Leaving
from turnstile.worker.core.process import Exit


async def test_a_worker_that_is_not_ready_says_why_and_returns_what_has_not_started(world: World) -> None:
    await world.offer(1, 2, at_once=1)
    world.process.set_not_ready("no model")
    await world.passes(1)
    assert world.returns() == [(2, False)]
    assert (world.broker.heartbeats[-1].is_taking, world.broker.heartbeats[-1].not_ready) == (
        False,
        "no model",
    )
    await world.offer(3)
    await world.passes(1)
    assert world.returns() == [(2, False), (3, False)]
    # What runs is finished.
    await world.end(1)
    assert world.ends() == [(1, "completed")]
    world.process.set_not_ready(None)
    await world.passes(1)
    assert (world.broker.heartbeats[-1].is_taking, world.broker.heartbeats[-1].not_ready) == (True, None)


async def test_the_next_worker_of_a_process_is_not_ready_either(world: World) -> None:
    world.process.set_not_ready("no model")
    assert world.process.worker is not None
    world.process.worker.lease.lose()
    await world.passes(5)
    assert world.is_over()
    assert (world.broker.hellos[-1].is_taking, world.broker.hellos[-1].not_ready) == (False, "no model")


async def test_a_worker_that_an_operator_drains_leaves(world: World) -> None:
    await world.offer(1, 2, at_once=1)
    world.send(Heard(heartbeat=1, committed=0, is_draining=True))
    await world.passes(0.5)
    assert world.returns() == [(2, False)]
    await world.end(1)
    await world.passes(5)
    assert world.bodies(Leaving)
    assert world.task is not None
    assert await world.task is Exit.DRAINED


async def test_reports_of_a_dense_flow_share_a_write(make_world: Callable[..., World]) -> None:
    world = await make_world(gather_seconds=0.5).serve()
    writes = len(world.broker.writes)
    await world.offer(1, 2, 3)
    for each in (1, 2, 3):
        await world.end(each)
    await world.passes(1)
    assert len(world.bodies(AttemptEnded)) == 3
    assert len(world.broker.writes) - writes <= 2


async def test_an_end_of_a_run_waits_for_others_until_nothing_more_can_start(
    make_world: Callable[..., World],
) -> None:
    world = await make_world(run_gather_seconds=0.5).serve()
    await world.offer(1, 2, 3, at_once=1)
    await world.end(1)
    await world.passes(0.1)
    assert not world.bodies(AttemptEnded)
    await world.passes(0.5)
    assert len(world.bodies(AttemptEnded)) == 1
    await world.end(2)
    await world.end(3)
    # The slot is free now: the leader hears it at once.
    assert len(world.bodies(AttemptEnded)) == 3


async def test_an_end_goes_at_once_if_what_waited_behind_it_was_cancelled(
    make_world: Callable[..., World],
) -> None:
    world = await make_world(run_gather_seconds=0.5).serve()
    await world.offer(1, 2, at_once=1)
    await world.cancel(2)
    await world.end(1)
    assert len(world.bodies(AttemptEnded)) == 2
