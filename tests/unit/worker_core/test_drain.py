"""SIGTERM loses nothing."""

from collections.abc import Callable

from tests.unit.worker_core.world import World, grant
from turnstile.common.worker_protocol import AttemptReturned, Dismissed, Leaving
from turnstile.worker.core.process import Exit


def exit_of(world: World) -> Exit | None:
    assert world.task is not None
    return world.task.result() if world.task.done() else None


async def test_an_idle_worker_leaves_at_once(world: World) -> None:
    world.process.stop()
    await world.passes(4)
    assert exit_of(world) is Exit.DRAINED
    assert len(world.bodies(Leaving)) == 1
    assert not world.broker.heartbeats[-1].is_taking


async def test_what_has_not_started_goes_back_and_what_arrives_later_too(world: World) -> None:
    await world.offer(1, 2, 3, at_once=1)
    world.process.stop()
    await world.passes(1)
    assert world.returns() == [(2, False), (3, False)]
    assert not world.broker.heartbeats[-1].is_taking
    await world.offer(4)
    await world.passes()
    assert world.returns()[-1] == (4, False)
    assert world.runner.started == [1]
    assert exit_of(world) is None


async def test_running_work_finishes_within_the_drain(world: World) -> None:
    await world.offer(1)
    world.process.stop()
    await world.passes(10)
    await world.end(1)
    await world.passes(4)
    assert world.ends() == [(1, "completed")]
    assert exit_of(world) is Exit.DRAINED
    assert isinstance(world.broker.reports[-1].body, Leaving)


async def test_what_is_left_is_stopped_and_goes_back_before_the_worker_leaves(world: World) -> None:
    await world.offer(1)
    world.process.stop()
    await world.passes(21)
    assert world.runner.of(1).asked == ["its worker drains"]
    assert not world.runner.of(1).kills
    await world.passes(10)
    assert world.runner.of(1).kills == 1
    assert world.returns() == [(1, True)]
    assert isinstance(world.broker.reports[-1].body, Leaving)
    assert exit_of(world) is Exit.DRAINED


async def test_a_cancel_during_the_drain_is_the_outcome(world: World) -> None:
    await world.offer(1)
    world.process.stop()
    await world.passes(21)
    await world.cancel(1)
    await world.passes(6)
    assert world.ends() == [(1, "cancelled")]
    assert world.returns() == []


async def test_a_run_that_cannot_be_stopped_is_not_returned_and_the_worker_does_not_leave(
    world: World,
) -> None:
    world.runner.is_mortal = False
    await world.offer(1)
    world.process.stop()
    await world.passes(40)
    assert exit_of(world) is Exit.NOT_STOPPED
    assert world.returns() == []
    assert world.bodies(Leaving) == []


async def test_a_worker_waits_for_the_commit_of_its_last_reports_within_a_bound(world: World) -> None:
    world.is_committing = False
    await world.offer(1)
    await world.end(1)
    world.process.stop()
    await world.passes(9)
    assert exit_of(world) is None
    await world.passes(2)
    assert exit_of(world) is Exit.DRAINED


async def test_a_worker_that_was_never_welcome_just_ends(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.is_welcoming = False
    await world.serve()
    world.process.stop()
    await world.passes(0.1)
    assert exit_of(world) is Exit.DRAINED
    assert world.broker.reports == []


async def test_a_drained_worker_that_its_leader_forgot_has_left(world: World) -> None:
    world.is_committing = False
    world.process.stop()
    await world.passes(1)
    world.send(Dismissed())
    await world.passes(1)
    assert exit_of(world) is Exit.DRAINED


async def test_a_drain_in_which_the_lease_ends_kills_and_does_not_register_anew(world: World) -> None:
    await world.offer(1)
    world.process.stop()
    world.send(Dismissed())
    await world.passes(1)
    assert exit_of(world) is Exit.LOST
    assert world.runner.of(1).kills == 1
    assert len(world.broker.hellos) == 1


async def test_returns_of_a_drain_name_their_grant(world: World) -> None:
    await world.offer(7, at_once=0)
    world.process.stop()
    await world.passes(1)
    assert [each.grant for each in world.bodies(AttemptReturned)] == [grant(7)]
