"""Messages of the leader: twice, late, in another order, or never."""

from tests.unit.worker_core.world import World, grant, offer
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    Held,
    Offers,
    Recall,
    Welcome,
)
from turnstile.worker.core.ports import NotStarted


def offers(*ids: int, at_once: int | None = None, queue: str = "q", again: int = 0) -> Offers:
    return Offers(queue=queue, at_once=at_once, offers=tuple(offer(each, again=again) for each in ids))


async def test_a_repeated_offer_of_what_waits_changes_nothing(world: World) -> None:
    await world.offer(1, 2, at_once=1)
    await world.offer(2, at_once=1)
    await world.end(1)
    await world.end(2)
    assert world.runner.started == [1, 2]
    assert world.ends() == [(1, "completed"), (2, "completed")]


async def test_a_repeated_offer_of_what_runs_is_answered_with_its_start(world: World) -> None:
    await world.offer(1)
    await world.offer(1)
    await world.passes(0.01)
    assert [each.execution_id for each in world.bodies(AttemptStarted)] == [1]
    assert world.runner.started == [1]


async def test_a_repeated_offer_of_what_has_ended_is_answered_with_the_same_report(world: World) -> None:
    world.is_committing = False
    await world.offer(1)
    await world.end(1)
    await world.offer(1)
    await world.passes()
    copies = [each for each in world.broker.reports if isinstance(each.body, AttemptEnded)]
    assert len(copies) == 2
    assert copies[0].number == copies[1].number
    assert world.runner.started == [1]


async def test_a_repeated_offer_of_what_was_returned_is_answered_with_the_return(world: World) -> None:
    world.is_committing = False
    await world.offer(1, at_once=0)
    await world.recall(1)
    await world.offer(1, at_once=0)
    await world.passes()
    assert len(world.bodies(AttemptReturned, copies=True)) == 2
    assert world.returns() == [(1, False)]


async def test_an_end_whose_commit_the_leader_lost_is_answered_as_started_and_gone(world: World) -> None:
    await world.offer(1)
    await world.end(1)
    await world.passes(4)
    world.epoch = 2
    await world.offer(1)
    await world.passes()
    assert world.runner.started == [1]
    assert world.returns() == [(1, True)]


async def test_a_copy_of_a_message_starts_nothing_that_ended_and_was_forgotten(world: World) -> None:
    assert world.process.worker is not None
    message = world.numbered(offers(1))
    world.deliver(message)
    await world.passes()
    await world.end(1)
    await world.passes(4)
    world.process.worker.outbox._over.clear()
    world.deliver(message)
    await world.passes()
    assert world.runner.started == [1]


async def test_a_lower_epoch_is_refused(world: World) -> None:
    world.epoch = 3
    await world.offer(1)
    world.send(offers(2), Recall(queue="q", barrier=grant(9)), epoch=2)
    await world.passes()
    assert world.process.worker is not None
    assert world.process.worker.receiver.refused == 2
    assert world.runner.started == [1]
    await world.offer(3)
    assert world.runner.started == [1, 3]
    await world.passes(4)
    assert world.broker.heartbeats[-1].epoch_seen == 3


async def test_heartbeats_say_up_to_which_number_everything_was_received(world: World) -> None:
    await world.passes(4)
    last = world.broker.heartbeats[-1].received
    world.deliver(world.numbered(offers(1), skip=1))
    await world.passes(1)
    assert world.broker.heartbeats[-1].received >= last
    before = world.broker.heartbeats[-1].received
    await world.passes(30)
    assert world.broker.heartbeats[-1].received == before


async def test_a_gap_is_reported_at_once_and_an_offer_behind_it_does_not_start(world: World) -> None:
    await world.passes(1)
    count = len(world.broker.heartbeats)
    lost, arrived = world.numbered(offers(1, at_once=1)), world.numbered(offers(2, at_once=2))
    world.deliver(arrived)
    await world.passes(0.3)
    assert world.runner.started == []
    assert len(world.broker.heartbeats) > count
    assert world.broker.heartbeats[-1].received == lost.number - 1
    world.deliver(lost)
    await world.passes()
    assert world.runner.started == [1]
    world.deliver(arrived)
    await world.passes(4)
    assert world.runner.started == [1, 2]
    assert world.broker.heartbeats[-1].received > arrived.number


async def test_a_copy_of_an_older_at_once_is_ignored(world: World) -> None:
    older, newer = world.numbered(offers(1, 2, at_once=2)), world.numbered(offers(3, at_once=1))
    world.deliver(older, newer, older)
    world.deliver(world.numbered(offers(4)))
    await world.passes()
    assert world.runner.started == [1, 2, 3, 4]
    older, newer = world.numbered(offers(at_once=9)), world.numbered(offers(at_once=4))
    world.deliver(older, newer, older, world.numbered(offers(5, at_once=4)))
    await world.passes()
    assert world.runner.started == [1, 2, 3, 4]


async def test_a_lower_at_once_is_confirmed_at_once(world: World) -> None:
    await world.passes(0.5)
    await world.offer(1, at_once=2)
    await world.passes(0.5)
    count = len(world.broker.heartbeats)
    await world.offer(at_once=1)
    await world.passes(0.3)
    assert len(world.broker.heartbeats) == count + 1


async def test_a_recall_returns_what_has_not_started_and_leaves_what_runs(world: World) -> None:
    await world.offer(1, 2, 3, at_once=1)
    await world.offer(4, queue="r", at_once=0)
    await world.recall(2)
    assert world.returns() == [(2, False)]
    await world.end(1)
    assert world.runner.started == [1, 3]


async def test_an_offer_up_to_the_barrier_that_arrives_later_is_returned(world: World) -> None:
    late, recall = world.numbered(offers(1)), world.numbered(Recall(queue="q", barrier=grant(1)))
    world.deliver(recall)
    await world.passes()
    world.deliver(late)
    await world.passes()
    assert world.runner.started == []
    assert world.returns() == [(1, False)]
    world.deliver(world.numbered(offers(1, again=1)))
    await world.passes()
    assert world.runner.started == [1]


async def test_every_repetition_of_a_recall_changes_nothing(world: World) -> None:
    await world.offer(1, at_once=0)
    await world.recall(1)
    await world.recall(1)
    assert world.returns() == [(1, False)]


async def test_the_answer_to_a_welcome_lists_all_that_waits_runs_or_is_kept(world: World) -> None:
    world.is_committing = False
    await world.offer(1, 2, 3, at_once=2)
    await world.offer(4, queue="r", at_once=0)
    await world.recall(4, queue="r")
    await world.end(2)
    world.epoch = 2
    world.send(Welcome())
    await world.passes()
    held = world.bodies(Held)[-1]
    assert held.epoch == 2
    assert sorted(held.grants) == [(each, grant(each)) for each in (1, 2, 3, 4)]


async def test_what_was_committed_is_not_held(world: World) -> None:
    await world.offer(1)
    await world.end(1)
    await world.passes(4)
    world.epoch = 2
    world.send(Welcome())
    await world.passes()
    assert world.bodies(Held)[-1].grants == ()


async def test_every_welcome_is_answered(world: World) -> None:
    await world.passes(4)
    for _ in range(2):
        count = len(world.bodies(Held, copies=True))
        world.send(Welcome())
        await world.passes(4)
        assert len(world.bodies(Held, copies=True)) > count


async def test_an_answer_to_a_welcome_that_is_not_committed_is_sent_again_and_not_collected(
    world: World,
) -> None:
    world.is_committing = False
    await world.passes(4)
    for _ in range(5):
        world.send(Welcome())
        await world.passes()
    assert len(world.bodies(Held)) == 2
    assert len(world.bodies(Held, copies=True)) == 6
    world.broker.queues[-1].close()
    await world.passes(1)
    assert len(world.bodies(Held)) == 3


async def test_an_offer_before_the_welcome_of_its_epoch_waits_for_it(world: World) -> None:
    world.epoch = 2
    lost, arrived = world.numbered(Welcome()), world.numbered(offers(1))
    world.deliver(arrived)
    await world.passes()
    assert world.runner.started == []
    world.deliver(lost, arrived)
    await world.passes()
    assert world.runner.started == [1]


async def test_what_is_behind_an_attempt_that_could_not_begin_is_returned_too(world: World) -> None:
    await world.offer(1, 2, 3, at_once=1)
    await world.offer(7, queue="r")
    await world.end(1, end=NotStarted(reason="no process"))
    await world.offer(4, at_once=1)
    await world.passes()
    assert world.returns() == [(1, False), (2, False), (3, False), (4, False)]
    assert world.runner.started == [1, 7]
    await world.recall(4)
    await world.offer(1, again=1, at_once=1)
    assert world.runner.started == [1, 7, 1]


async def test_cancels_come_twice_and_after_the_end(world: World) -> None:
    await world.offer(1)
    await world.end(1)
    await world.cancel(1)
    await world.passes(4)
    await world.cancel(1)
    assert world.ends() == [(1, "completed")]
    assert world.returns() == []


async def test_a_cancel_of_what_has_ended_is_not_answered(world: World) -> None:
    """A leader that cancels whatever it hears of and does not know would never be finished with it."""
    world.is_committing = False
    await world.offer(1)
    await world.end(1)
    count = len(world.broker.reports)
    await world.cancel(1)
    assert len(world.broker.reports) == count
